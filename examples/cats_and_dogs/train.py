"""Trains a network to tell pictures of cats from pictures of dogs, or any other classes, in two phases.

First a new head learns what the features of DenseNet121, which has seen ImageNet, mean here. Then the last 30 layers of
DenseNet121 are trained too, at a hundredth of the learning rate. Pack the pictures with `pack.py`, then run

- alone: `python train.py --data BUCKET --job-dir FOLDER`;
- as a managed job: `lockstep submit NAME --package-path examples/cats_and_dogs --module-name train
  --config examples/cats_and_dogs/config.yaml -- --data BUCKET`.

A run that was killed goes on where it was, if it is started again with the same arguments.
"""

import argparse
import logging
import sys

import network
from weights import open_weights

from lockstep.data import Batches, ExampleParser, RecordSource, read_manifest
from lockstep.data.images import ImageDecoder, RandomFlip, RandomResizedCrop, Resizing
from lockstep.errors import InvalidInputError, LockstepError, MissingInputError
from lockstep.storage import join_url, open_bucket, split_url
from lockstep.strategies import STRATEGY_NAMES, from_env
from lockstep.topology import Outputs, Topology
from lockstep.training import BackupAndRestore, Progress, TensorBoard, choose_precision, load_model, save_model

# isort: split
import keras  # after lockstep, which has it run on JAX

FINE_TUNING_RATE = 1 / 100
"""The learning rate of the fine-tuning, in parts of the head's: it moves weights that were good already."""


def parse_arguments():
    parser = argparse.ArgumentParser(description="Trains a network to tell pictures apart, in two phases.")
    parser.add_argument("--data", required=True, help="bucket with the pictures that pack.py has packed")
    parser.add_argument("--name", default="cats-and-dogs", help="of the packed data set")
    parser.add_argument("--job-dir", help="bucket for model, checkpoints and logs; a job has its own")
    parser.add_argument("--backbone", choices=network.BACKBONES, default="densenet121")
    parser.add_argument(
        "--weights",
        default="imagenet",
        help="of the backbone: imagenet (default), the path or URL of a file, or none to train from scratch",
    )
    parser.add_argument("--weights-checksum", help="MD5 or SHA-256 that the file of --weights has to have")
    parser.add_argument("--image-size", type=int, help="height and width in pixels; by default as packed")
    parser.add_argument("--epochs", type=int, default=5, help="of the head, at most")
    parser.add_argument("--fine-tuning-epochs", type=int, default=5, help="at most; 0 leaves the fine-tuning out")
    parser.add_argument("--fine-tuning-layers", type=int, default=30, help="how many of the backbone's last layers")
    parser.add_argument("--batch-size", type=int, default=64, help="pictures of a step, over all devices")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="of the head")
    parser.add_argument("--patience", type=int, default=3, help="epochs without progress after which a phase ends")
    parser.add_argument("--precision", choices=("auto", *network.PRECISIONS), default="auto")
    parser.add_argument("--strategy", choices=STRATEGY_NAMES, default="auto")
    parser.add_argument("--save-every", type=int, default=100, help="steps from one checkpoint to the next")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def find_outputs(job_dir):
    """Returns where results go: what the job says, then folders of --job-dir, then nowhere."""
    outputs = Topology.from_env().outputs
    if not job_dir:
        return outputs
    return Outputs(
        model_dir=outputs.model_dir or join_url(job_dir, "model"),
        checkpoint_dir=outputs.checkpoint_dir or join_url(job_dir, "checkpoints"),
        tensorboard_dir=outputs.tensorboard_dir or join_url(job_dir, "logs"),
    )


class Reader:
    """Reads the packed pictures: decoded and brought to one size by threads, while the devices compute.

    Args:
        arguments: those of the command line.
        strategy: decides which rows of a batch this process reads.
    """

    def __init__(self, arguments, strategy):
        self._arguments = arguments
        self._strategy = strategy
        try:
            manifest = read_manifest(arguments.data, name=arguments.name, split="train")
        except MissingInputError:
            what = f"there is no packed data set {arguments.name} in {arguments.data}"
            raise MissingInputError(what, action="pack it with pack.py, or correct --data or --name") from None
        self.classes = manifest.classes
        packed_size = manifest.options.get("image_size")
        if not self.classes or packed_size is None:
            raise InvalidInputError(
                f"the data set {arguments.name} in {arguments.data} has no classes, or pictures of several sizes",
                action="pack it with pack.py",
            )
        self.image_size = arguments.image_size or packed_size[0]
        self._parse = ExampleParser(manifest.features)

    def train_batches(self):
        """Returns shuffled batches. A picture gets another crop in each epoch, and the same one after a restart."""
        size = self.image_size
        decode = ImageDecoder(RandomResizedCrop(size, size, scale=(0.6, 1.0)), RandomFlip())

        def transform(records, random):
            columns = self._parse(records)
            return decode(columns["image"], random), columns["label"]

        return self._batches("train", random_transform=transform, seed=self._arguments.seed)

    def validation_batches(self):
        decode = ImageDecoder(Resizing(self.image_size, self.image_size, crop_to_aspect_ratio=True))

        def transform(records):
            columns = self._parse(records)
            return decode(columns["image"]), columns["label"]

        return self._batches("validation", transform=transform)

    def _batches(self, split, **options):
        return Batches(
            RecordSource(join_url(self._arguments.data, f"{self._arguments.name}-{split}-*.tfrec")),
            batch_size=self._arguments.batch_size,
            input_context=self._strategy.input_context,
            **options,
        )


class Training:
    """The phases of a training. The model at the end of a phase is kept, so a restart goes on with the right one.

    Args:
        arguments: those of the command line.
        strategy: where the model lives.
        reader: the pictures.
        outputs: where results go.
    """

    def __init__(self, arguments, *, strategy, reader, outputs):
        self._arguments = arguments
        self._strategy = strategy
        self._reader = reader
        self._outputs = outputs
        self._train_batches = reader.train_batches()
        self._validation_batches = reader.validation_batches()
        self.precision = choose_precision(arguments.precision, devices=strategy.devices)

    def run(self):
        """Trains all phases that are not done, and returns the model."""
        arguments = self._arguments
        last_epoch = arguments.epochs + arguments.fine_tuning_epochs
        tuned = self._finished("fine_tuning")
        if tuned is not None:
            return tuned
        model = self._finished("head")
        if model is None:
            model = self._build()
            self._fit(model, "head", first_epoch=0, last_epoch=arguments.epochs, rate=arguments.learning_rate)
        if arguments.fine_tuning_epochs:
            with self._strategy.scope():
                network.train_last(model, num_layers=arguments.fine_tuning_layers)
            rate = arguments.learning_rate * FINE_TUNING_RATE
            self._fit(model, "fine_tuning", first_epoch=arguments.epochs, last_epoch=last_epoch, rate=rate)
        return model

    def evaluate(self, model):
        return model.evaluate(self._validation_batches, verbose=0, return_dict=True)

    def server(self, model):
        """Returns the model to deploy."""
        with self._strategy.scope():
            return network.build_server(
                model,
                classes=self._reader.classes,
                backbone=self._arguments.backbone,
                image_size=self._reader.image_size,
                precision=self.precision,
            )

    def say(self, text):
        if self._strategy.is_chief:
            print(text, flush=True)

    def _build(self):
        arguments = self._arguments
        if arguments.backbone == "small" and arguments.weights == "imagenet":
            raise InvalidInputError("the backbone small has no weights of ImageNet", action="use --weights none")
        with self._strategy.scope(), open_weights(arguments.weights, checksum=arguments.weights_checksum) as path:
            model = network.build_network(
                backbone=arguments.backbone,
                num_classes=len(self._reader.classes),
                image_size=self._reader.image_size,
                precision=self.precision,
            )
            if path is None:
                network.train_all(model)  # frozen random features would say little
            else:
                network.load_backbone(model, path)
                network.train_head(model)
        return model

    def _fit(self, model, phase, *, first_epoch, last_epoch, rate):
        self.say(f"phase {phase}: {network.describe_trained(model)}, learning rate {rate:g}")
        with self._strategy.scope():
            model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.fit(
            self._train_batches,
            initial_epoch=first_epoch,
            epochs=last_epoch,
            validation_data=self._validation_batches,
            callbacks=self._callbacks(phase),
            verbose=0,
        )
        if self._outputs.checkpoint_dir:
            save_model(model, self._phase_url(phase))

    def _callbacks(self, phase):
        patience = self._arguments.patience
        found = [
            Progress(),
            keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.3, patience=max(1, patience // 2)),
            keras.callbacks.EarlyStopping("val_loss", patience=patience, restore_best_weights=True),
        ]
        if self._outputs.tensorboard_dir:
            found.append(TensorBoard(self._outputs.tensorboard_dir))
        if self._outputs.checkpoint_dir:
            url = join_url(self._outputs.checkpoint_dir, phase)
            found.append(BackupAndRestore(url, save_freq=self._arguments.save_every))
        return found

    def _phase_url(self, phase):
        return join_url(self._outputs.checkpoint_dir, f"after_{phase}.keras")

    def _finished(self, phase):
        """Returns the model at the end of a phase that an earlier run has finished; None if there is none."""
        if not self._outputs.checkpoint_dir:
            return None
        bucket_url, key = split_url(self._phase_url(phase))
        if not open_bucket(bucket_url).exists(key):
            return None
        self.say(f"phase {phase} is finished: going on from {self._phase_url(phase)}")
        with self._strategy.scope():
            return load_model(self._phase_url(phase))


def train(arguments):
    strategy = from_env(arguments.strategy)  # before the first computation
    keras.utils.set_random_seed(arguments.seed)
    outputs = find_outputs(arguments.job_dir)
    reader = Reader(arguments, strategy)
    training = Training(arguments, strategy=strategy, reader=reader, outputs=outputs)
    training.say(f"precision: {training.precision}; classes: {', '.join(reader.classes)}")
    model = training.run()
    results = training.evaluate(model)
    saved = "nowhere: name a --job-dir to keep it"
    if outputs.model_dir:
        saved = save_model(training.server(model), outputs.model_dir)
    training.say(f"validation accuracy {results['accuracy']:.4f}, validation loss {results['loss']:.4f}")
    training.say(f"model saved: {saved}")


def main():
    # Keras has set up logging when it was imported; a job's log wants plain lines.
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout, force=True)
    logging.getLogger("lockstep").setLevel(logging.INFO)
    arguments = parse_arguments()
    try:
        train(arguments)
    except LockstepError as error:
        print(f"train.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
