"""An image classifier with arguments, TFRecord files and a base that stays as it is: the reference workflow's trainer."""

import argparse
import os

import numpy as np
import tensorflow as tf

AUTOTUNE = tf.data.experimental.AUTOTUNE
IMAGE_SIZE = [8, 8]


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="where the TFRecord files are")
    parser.add_argument("--job-dir", required=True)
    parser.add_argument("--num-epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--learning-rate", default=0.01, type=float)
    return parser.parse_args()


def read_tfrecord(example):
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    example = tf.io.parse_single_example(example, features)
    image = tf.image.decode_png(example["image"], channels=3)
    image = tf.cast(image, tf.float32) / 127.5 - 1
    image = tf.reshape(image, [*IMAGE_SIZE, 3])
    return image, example["label"]


def load_dataset(pattern, batch_size):
    filenames = sorted(tf.io.gfile.glob(pattern))
    dataset = tf.data.TFRecordDataset(filenames, num_parallel_reads=1)
    dataset = dataset.map(read_tfrecord, num_parallel_calls=AUTOTUNE)
    return dataset.batch(batch_size).prefetch(AUTOTUNE)


def create_model(learning_rate):
    base = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(input_shape=(*IMAGE_SIZE, 3)),
            tf.keras.layers.Conv2D(6, 3, activation="relu"),
            tf.keras.layers.GlobalAveragePooling2D(),
        ],
        name="base",
    )
    base.trainable = False
    model = tf.keras.Sequential([base, tf.keras.layers.Dense(3, activation="softmax")])
    model.build((None, *IMAGE_SIZE, 3))
    first = np.random.default_rng(0)
    for variable in [*base.weights, *model.layers[-1].weights]:
        variable.assign(first.normal(0, 0.3, variable.shape).astype("float32"))
    model.compile(
        optimizer=tf.keras.optimizers.SGD(learning_rate=learning_rate, momentum=0.9),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(),
        metrics=["accuracy"],
    )
    return model


def train_and_evaluate(args):
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = create_model(args.learning_rate)
    train_dataset = load_dataset(os.path.join(args.data, "*-train-*.tfrec"), args.batch_size)
    callbacks = [tf.keras.callbacks.TensorBoard(os.path.join(args.job_dir, "logs"))]
    history = model.fit(train_dataset, epochs=args.num_epochs, callbacks=callbacks, verbose=0)
    print("loss {:.6f} accuracy {:.6f}".format(history.history["loss"][-1], history.history["accuracy"][-1]))
    model.save(os.path.join(args.job_dir, "model"))
    print("saved:", tf.io.gfile.exists(os.path.join(args.job_dir, "model")))


if __name__ == "__main__":
    tf.get_logger().setLevel("INFO")
    train_and_evaluate(get_args())
