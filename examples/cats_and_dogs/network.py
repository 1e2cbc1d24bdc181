"""The network: a backbone that finds features in pictures, and a head that tells the classes apart by them."""

import lockstep  # noqa: F401 - has Keras run on JAX

# isort: split
import keras
from keras import layers

from lockstep.errors import InvalidInputError, ModelError
from lockstep.training import set_precision

BACKBONES = ("densenet121", "small")
PRECISIONS = ("float32", "bfloat16", "float16")
"""The dtypes in which most is computed. Weights are float32 in any case. Convolutions have no float8."""

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the pictures of ImageNet, by channel, in pixels from 0 to 1: as `keras.applications.densenet` prepares them."""


def build_network(*, backbone, num_classes, image_size, precision, dropout=0.2):
    """Builds the network with random weights. It takes pixels from 0 to 255, and returns a probability of each class.

    Args:
        backbone: one of `BACKBONES`.
        num_classes: how many classes there are.
        image_size: the height and width of the pictures, in pixels.
        precision: one of `PRECISIONS`.
        dropout: the share of the features that a training step leaves out.
    """
    image = keras.Input((image_size, image_size, 3), name="image")
    x = layers.Rescaling(1 / 255, dtype="float32")(image)
    x = layers.Normalization(mean=MEAN, variance=[value**2 for value in DEVIATION], dtype="float32")(x)
    policy_before = keras.config.dtype_policy()
    set_precision(precision)
    try:
        build = densenet121 if backbone == "densenet121" else small
        x = build(image_size)(x)
        x = layers.GlobalAveragePooling2D()(x)
        x = layers.Dropout(dropout)(x)
        # The probabilities of a batch are added up in the loss: in float32.
        x = layers.Dense(num_classes, activation="softmax", dtype="float32", name="probabilities")(x)
    finally:
        keras.config.set_dtype_policy(policy_before)
    return keras.Model(image, x, name="cats_and_dogs")


def densenet121(image_size):
    if image_size < 32:
        raise InvalidInputError("the size of pictures for DenseNet121", received=image_size, allowed="32 or more")
    shape = (image_size, image_size, 3)
    return keras.applications.DenseNet121(include_top=False, weights=None, input_shape=shape, name="backbone")


def small(image_size):
    """A net of a few layers that learns simple pictures from scratch, within a minute on a CPU."""
    image = keras.Input((image_size, image_size, 3))
    x = image
    for num_filters in (16, 32, 64):
        x = layers.Conv2D(num_filters, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization(momentum=0.9)(x)
        x = layers.Activation("relu")(x)
        x = layers.MaxPooling2D()(x)
    return keras.Model(image, x, name="backbone")


def load_backbone(network, path):
    """Reads the backbone's weights from a file of `keras.applications`, or one that `save_weights` wrote."""
    try:
        network.get_layer("backbone").load_weights(path)
    except (ValueError, KeyError, OSError) as error:
        raise ModelError(
            f"{path} has no weights of this backbone: {str(error).partition(chr(10))[0]}",
            allowed="the file without the top: ..._notop.h5, or one that save_weights wrote of the same backbone",
        ) from None


def train_all(network):
    network.trainable = True


def train_head(network):
    """Freezes the backbone. Its batch normalization uses the statistics that came with the weights."""
    network.trainable = True
    network.get_layer("backbone").trainable = False


def train_last(network, *, num_layers):
    """Freezes the backbone except for its last layers.

    Batch normalization stays frozen: its statistics are of many pictures, and a fine-tuning has few.
    """
    network.trainable = True
    backbone = network.get_layer("backbone")
    trained = backbone.layers[-num_layers:] if num_layers else []
    for layer in backbone.layers:
        layer.trainable = layer in trained and not isinstance(layer, layers.BatchNormalization)


def describe_trained(network):
    """Returns how many parameters are trained, in words."""
    num_trained = sum(variable.value.size for variable in network.trainable_variables)
    return f"{num_trained:,} of {network.count_params():,} parameters are trained"


def build_server(network, *, classes, backbone, image_size, precision):
    """Returns the model that is deployed: it takes pictures of any size, and returns each class's probability by name.

    It computes in float32, so that it answers the same on every machine.
    """
    if precision != "float32":
        trained = network
        network = build_network(backbone=backbone, num_classes=len(classes), image_size=image_size, precision="float32")
        for variable, value in zip(network.weights, trained.weights, strict=True):
            variable.assign(value)
    image = keras.Input((None, None, 3), dtype="uint8", name="image")
    x = layers.Resizing(image_size, image_size, crop_to_aspect_ratio=True, antialias=True, dtype="float32")(image)
    probabilities = network(x)
    return keras.Model(image, {name: probabilities[:, number] for number, name in enumerate(classes)})
