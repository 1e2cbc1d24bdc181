"""`OneDeviceStrategy`: everything on one device that is named, with the code that several devices would run.

After the lab on one device of the course "Custom and Distributed Training with TensorFlow": a feature extractor from
`keras.applications` and a new last layer tell cats from dogs. It reads a folder of image files with a folder for each
class, such as `cats_vs_dogs/cat/*.jpg`, or a zip archive of one, packs it into sharded records, and trains on these;
where none is named it draws small pictures in two classes first.

    python examples/labs/one_device.py
    python examples/labs/one_device.py --data cats_vs_dogs --pixels 160 --weights imagenet --device gpu:0

Needs what reads images: `pip install 'lockstep-train[images]'`.
"""

import argparse
import tempfile

from drawn_pictures import draw_pictures, write_folder

from lockstep.data import Batches, ExampleParser, RecordSource, pack, read_manifest
from lockstep.data.images import ImageDecoder, Resizing
from lockstep.data.sources import Transcoding, open_source
from lockstep.strategies import OneDeviceStrategy, simulate_devices

# isort: split
import keras  # after lockstep, which has it run on JAX

CLASSES = ("cat", "dog")


def parse_arguments():
    parser = argparse.ArgumentParser(description="Everything on one device: a feature extractor and a new last layer.")
    parser.add_argument("--data", help="folder or zip of images with a folder for each class; drawn ones by default")
    parser.add_argument("--rows", type=int, default=1000, help="how many pictures to draw")
    parser.add_argument("--pixels", type=int, default=32, help="height and width that images are brought to")
    parser.add_argument("--weights", choices=["imagenet"], help="of the extractor, downloaded; random ones by default")
    parser.add_argument("--fine-tune", action="store_true", help="train the extractor too")
    parser.add_argument("--device", help="such as gpu:0; the first of the fastest kind by default")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--simulate", type=int, metavar="N", help="N virtual devices, of which it uses one")
    return parser.parse_args()


def pack_images(folder, bucket):
    """Packs a folder of images into sharded record files, four fifths to train on and the rest to test on.

    Files that are damaged, of which such collections have some, are named and left out.
    """
    source = open_source(folder, transcoding=Transcoding())
    packed = pack(source, bucket, name="pictures", split={"train": 0.8, "test": 0.2}, on_error="skip", say=print)
    return packed.manifests["train"]


def read_images(bucket, split, *, arguments, seed=None):
    """Returns batches of a split: its images decoded and resized by threads while the device computes."""
    manifest = read_manifest(bucket, name="pictures", split=split)
    parse = ExampleParser(manifest.features)
    decode = ImageDecoder(Resizing(arguments.pixels, arguments.pixels))

    def transform(records):
        columns = parse(records)
        return decode(columns["image"]), columns["label"]

    source = RecordSource(f"{bucket}/pictures-{split}-*.tfrec")
    return Batches(source, batch_size=arguments.batch_size, transform=transform, seed=seed)


def build_extractor(*, arguments):
    """A net that was trained on photographs, without its last layer; or the first layer of one that never was.

    Random filters say something of colours and edges. After many layers of them nothing of that is left.
    """
    options = {"input_shape": (arguments.pixels, arguments.pixels, 3), "include_top": False}
    whole = keras.applications.MobileNetV2(weights=arguments.weights, **options)
    layer = whole.layers[-1] if arguments.weights else whole.get_layer("Conv1_relu")
    features = keras.layers.GlobalAveragePooling2D()(layer.output)
    return keras.Model(whole.input, features, name="extractor")


def build_model(*, arguments, num_classes):
    extractor = build_extractor(arguments=arguments)
    extractor.trainable = arguments.fine_tune
    inputs = keras.Input((arguments.pixels, arguments.pixels, 3))
    features = extractor(keras.applications.mobilenet_v2.preprocess_input(inputs))
    model = keras.Model(inputs, keras.layers.Dense(num_classes)(features))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Fine-tuning moves weights that were good already: slowly.
    optimizer = keras.optimizers.Adam(1e-4 if arguments.fine_tune else 1e-2)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def train(arguments, folder):
    strategy = OneDeviceStrategy(arguments.device)
    print(strategy.describe() + (" (simulated)" if arguments.simulate else ""))
    keras.utils.set_random_seed(1)
    if not arguments.data:
        options = {"num_classes": len(CLASSES), "num_pixels": arguments.pixels, "seed": 1}
        write_folder(f"{folder}/images", *draw_pictures(arguments.rows, **options), names=CLASSES)
        print(f"{arguments.rows} pictures drawn, in the place of photographs")
    classes = pack_images(arguments.data or f"{folder}/images", f"{folder}/bucket").classes
    train_batches = read_images(f"{folder}/bucket", "train", arguments=arguments, seed=1)
    test_batches = read_images(f"{folder}/bucket", "test", arguments=arguments)

    with strategy.scope():
        model = build_model(arguments=arguments, num_classes=len(classes))
    num_trained = sum(variable.value.size for variable in model.trainable_variables)
    print(f"classes {', '.join(classes)}; {num_trained:,} of {model.count_params():,} parameters are trained")
    devices = {device for variable in model.variables for device in variable.value.devices()}
    print(f"variables lie on {len(devices)} device")

    history = model.fit(train_batches, validation_data=test_batches, epochs=arguments.epochs, verbose=0).history
    for epoch in range(arguments.epochs):
        print(f"epoch {epoch + 1}: " + ", ".join(f"{name} {values[epoch]:.4f}" for name, values in history.items()))


def main():
    arguments = parse_arguments()
    if arguments.simulate:
        simulate_devices(arguments.simulate)  # before the first computation
    with tempfile.TemporaryDirectory() as folder:
        train(arguments, folder)


if __name__ == "__main__":
    main()
