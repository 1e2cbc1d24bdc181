"""Every layer of Keras that computes, with its options, as cases that a strategy has to compute as one device does.

`FAMILIES` holds the cases by family: those of one family become branches of one model. `LEFT_OUT` names the layers
that no case has, and why: a layer that a new Keras brings fails `test_every_layer.py` until it stands in one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import layers


@dataclass(frozen=True)
class Case:
    """One layer with its options.

    Attributes:
        make: returns the layer, or a function of its inputs that calls layers.
        shapes: of each input, without the batch.
        num_ids: where the inputs are whole numbers: how many there are; None where they are floats.
        has_mask: whether the first input's last steps are masked, differently in each row.
        needs_whole_batch: whether a replica's own step gives something else than the whole batch's: a layer that draws
            random numbers in training, or that adds to the loss.
    """

    make: Callable[[], Callable[..., Any]]
    shapes: tuple[tuple[int, ...], ...]
    num_ids: int | None = None
    has_mask: bool = False
    needs_whole_batch: bool = False

    def inputs(self, num_rows: int, *, seed: int) -> list[np.ndarray]:
        """Returns arrays of so many rows, always the same."""
        generator = np.random.default_rng(seed)
        arrays = []
        for shape in self.shapes:
            if self.num_ids is not None:
                arrays.append(generator.integers(0, self.num_ids, (num_rows, *shape)).astype(np.int32))
                continue
            array = generator.normal(size=(num_rows, *shape)).astype(np.float32)
            if self.has_mask and not arrays:
                for row in range(num_rows):
                    array[row, shape[0] - row % shape[0] :] = 0.0  # of the first row, nothing
            arrays.append(array)
        return arrays


def case(layer, *shapes, **options):
    """A case of a layer class, or of a function that calls layers."""
    own = {name: options.pop(name) for name in ("num_ids", "has_mask", "needs_whole_batch") if name in options}
    return Case(make=partial(layer, **options), shapes=shapes, **own)


def calling(function, *shapes, **own):
    """A case of several layers: a function that makes them and returns what calls them."""
    return Case(make=function, shapes=shapes, **own)


def channels_first(*shape):
    return (shape[-1], *shape[:-1])


LINE, SQUARE, CUBE = (12, 8), (9, 9, 8), (5, 5, 5, 4)
WORDS = (6, 8)
FIRST = {"data_format": "channels_first"}

CONVOLUTIONS_1D = {
    "plain": case(layers.Conv1D, LINE, filters=4, kernel_size=3),
    "causal_dilated": case(layers.Conv1D, LINE, filters=4, kernel_size=3, padding="causal", dilation_rate=2),
    "strided": case(layers.Conv1D, LINE, filters=4, kernel_size=3, strides=2, padding="same"),
    "grouped": case(layers.Conv1D, LINE, filters=8, kernel_size=3, groups=4),
    "one_channel_a_group": case(layers.Conv1D, LINE, filters=8, kernel_size=3, groups=8),
    "first": case(layers.Conv1D, channels_first(*LINE), filters=8, kernel_size=3, groups=2, **FIRST),
    "depthwise": case(layers.DepthwiseConv1D, LINE, kernel_size=3, depth_multiplier=2),
    "separable": case(layers.SeparableConv1D, LINE, filters=4, kernel_size=3, padding="same"),
    "transposed": case(layers.Conv1DTranspose, LINE, filters=4, kernel_size=3, strides=2),
}
CONVOLUTIONS_2D = {
    "plain": case(layers.Conv2D, SQUARE, filters=4, kernel_size=3),
    "same_strided": case(layers.Conv2D, SQUARE, filters=4, kernel_size=3, strides=2, padding="same"),
    "dilated": case(layers.Conv2D, SQUARE, filters=4, kernel_size=3, dilation_rate=2),
    "pointwise": case(layers.Conv2D, SQUARE, filters=4, kernel_size=1),
    "oblong": case(layers.Conv2D, SQUARE, filters=4, kernel_size=(1, 5), strides=(2, 1)),
    "whole": case(layers.Conv2D, SQUARE, filters=4, kernel_size=9),
    "first": case(layers.Conv2D, channels_first(*SQUARE), filters=4, kernel_size=3, **FIRST),
    "transposed": case(layers.Conv2DTranspose, SQUARE, filters=4, kernel_size=3, strides=2, padding="same"),
    "transposed_dilated": case(layers.Conv2DTranspose, SQUARE, filters=4, kernel_size=3, dilation_rate=2),
    "transposed_first": case(layers.Conv2DTranspose, channels_first(*SQUARE), filters=4, kernel_size=3, **FIRST),
}
GROUPED_2D = {
    "two": case(layers.Conv2D, SQUARE, filters=4, kernel_size=3, groups=2),
    "four_strided": case(layers.Conv2D, SQUARE, filters=8, kernel_size=3, groups=4, strides=2, padding="same"),
    "four_dilated": case(layers.Conv2D, SQUARE, filters=8, kernel_size=3, groups=4, dilation_rate=2),
    "one_channel_a_group": case(layers.Conv2D, SQUARE, filters=16, kernel_size=3, groups=8),
    "pointwise": case(layers.Conv2D, SQUARE, filters=8, kernel_size=1, groups=2),
    "first": case(layers.Conv2D, channels_first(*SQUARE), filters=8, kernel_size=3, groups=4, **FIRST),
}
DEPTHWISE_2D = {
    "plain": case(layers.DepthwiseConv2D, SQUARE, kernel_size=3),
    "strided": case(layers.DepthwiseConv2D, SQUARE, kernel_size=3, strides=2, padding="same"),
    "dilated": case(layers.DepthwiseConv2D, SQUARE, kernel_size=3, dilation_rate=2),
    "multiplied": case(layers.DepthwiseConv2D, SQUARE, kernel_size=3, depth_multiplier=3),
    "first": case(layers.DepthwiseConv2D, channels_first(*SQUARE), kernel_size=3, **FIRST),
    "separable": case(layers.SeparableConv2D, SQUARE, filters=4, kernel_size=3),
    "separable_strided": case(layers.SeparableConv2D, SQUARE, filters=4, kernel_size=3, strides=2, depth_multiplier=2),
    "separable_first": case(layers.SeparableConv2D, channels_first(*SQUARE), filters=4, kernel_size=3, **FIRST),
}
CONVOLUTIONS_3D = {
    "plain": case(layers.Conv3D, CUBE, filters=2, kernel_size=3),
    "strided": case(layers.Conv3D, CUBE, filters=2, kernel_size=3, strides=2, padding="same"),
    "grouped": case(layers.Conv3D, CUBE, filters=4, kernel_size=2, groups=2),
    "one_channel_a_group": case(layers.Conv3D, CUBE, filters=4, kernel_size=2, groups=4),
    "first": case(layers.Conv3D, channels_first(*CUBE), filters=2, kernel_size=2, **FIRST),
    "transposed": case(layers.Conv3DTranspose, CUBE, filters=2, kernel_size=2, strides=2),
}
POOLING = {
    "average_1d": case(layers.AveragePooling1D, LINE, pool_size=3, strides=2, padding="same"),
    "average_2d": case(layers.AveragePooling2D, SQUARE, pool_size=3, strides=2, padding="same"),
    "average_2d_first": case(layers.AveragePooling2D, channels_first(*SQUARE), pool_size=2, **FIRST),
    "average_3d": case(layers.AveragePooling3D, CUBE, pool_size=2),
    "max_1d": case(layers.MaxPooling1D, LINE, pool_size=3, strides=2, padding="same"),
    "max_2d": case(layers.MaxPooling2D, SQUARE, pool_size=3, strides=2, padding="same"),
    "max_2d_first": case(layers.MaxPooling2D, channels_first(*SQUARE), pool_size=2, **FIRST),
    "max_3d": case(layers.MaxPooling3D, CUBE, pool_size=2),
    "global_average_1d": case(layers.GlobalAveragePooling1D, LINE),
    "global_average_2d": case(layers.GlobalAveragePooling2D, SQUARE, keepdims=True),
    "global_average_3d": case(layers.GlobalAveragePooling3D, channels_first(*CUBE), **FIRST),
    "global_max_1d": case(layers.GlobalMaxPooling1D, LINE),
    "global_max_2d": case(layers.GlobalMaxPooling2D, SQUARE),
    "global_max_3d": case(layers.GlobalMaxPooling3D, CUBE),
    "masked_average": calling(
        lambda: lambda x: layers.GlobalAveragePooling1D()(layers.Masking()(x)), WORDS, has_mask=True
    ),
}
ADAPTIVE_POOLING = {
    "average_1d": case(layers.AdaptiveAveragePooling1D, LINE, output_size=5),
    "average_2d": case(layers.AdaptiveAveragePooling2D, SQUARE, output_size=(2, 4)),
    "average_3d": case(layers.AdaptiveAveragePooling3D, CUBE, output_size=2),
    "max_1d": case(layers.AdaptiveMaxPooling1D, LINE, output_size=5),
    "max_2d": case(layers.AdaptiveMaxPooling2D, SQUARE, output_size=3),
    "max_3d": case(layers.AdaptiveMaxPooling3D, CUBE, output_size=2),
}
NORMALISATION = {
    # Under `run` statistics are a replica's own unless it is asked for those of all.
    "batch": case(layers.BatchNormalization, SQUARE, synchronized=True),
    "batch_of_vectors": case(layers.BatchNormalization, (6,), synchronized=True, center=False),
    "batch_first": case(layers.BatchNormalization, channels_first(*SQUARE), synchronized=True, axis=1),
    "batch_masked": calling(
        lambda: lambda x: layers.BatchNormalization(synchronized=True)(layers.Masking()(x)), WORDS, has_mask=True
    ),
    "layer": case(layers.LayerNormalization, WORDS),
    "layer_over_two": case(layers.LayerNormalization, SQUARE, axis=[1, 3]),
    "group": case(layers.GroupNormalization, SQUARE, groups=4),
    "group_each": case(layers.GroupNormalization, SQUARE, groups=-1),
    "root_mean_square": case(layers.RMSNormalization, WORDS),
    "unit": case(layers.UnitNormalization, WORDS),
    "given": case(layers.Normalization, (6,), mean=0.5, variance=2.0),
    "spectral": calling(lambda: layers.SpectralNormalization(layers.Dense(4)), (6,)),
}
RECURRENT = {
    "lstm": case(layers.LSTM, WORDS, units=4),
    "lstm_states": case(layers.LSTM, WORDS, units=4, return_sequences=True, return_state=True),
    "lstm_backwards": case(layers.LSTM, WORDS, units=4, go_backwards=True, unroll=True),
    "lstm_masked": calling(lambda: lambda x: layers.LSTM(4)(layers.Masking()(x)), WORDS, has_mask=True),
    "gru": case(layers.GRU, WORDS, units=4, return_sequences=True),
    "gru_before": case(layers.GRU, WORDS, units=4, reset_after=False),
    "simple": case(layers.SimpleRNN, WORDS, units=4),
}
RECURRENT_CELLS = {
    "both_ways": calling(lambda: layers.Bidirectional(layers.GRU(4, return_sequences=True)), WORDS),
    "both_ways_masked": calling(
        lambda: lambda x: layers.Bidirectional(layers.LSTM(4), merge_mode="sum")(layers.Masking()(x)),
        WORDS,
        has_mask=True,
    ),
    "cells": calling(lambda: layers.RNN([layers.LSTMCell(4), layers.GRUCell(4), layers.SimpleRNNCell(3)]), WORDS),
    "stacked": calling(lambda: layers.RNN(layers.StackedRNNCells([layers.GRUCell(4), layers.GRUCell(3)])), WORDS),
    "each_step": calling(lambda: layers.TimeDistributed(layers.Dense(4)), WORDS),
    "each_step_convolved": calling(lambda: layers.TimeDistributed(layers.Conv2D(4, 3, groups=2)), (3, *SQUARE[:-1], 4)),
    "each_step_depthwise": calling(lambda: layers.TimeDistributed(layers.DepthwiseConv2D(3)), (3, *SQUARE[:-1], 4)),
}
CONVOLUTIONAL_RECURRENT = {
    "line": case(layers.ConvLSTM1D, (3, 8, 2), filters=2, kernel_size=3),
    "square": case(layers.ConvLSTM2D, (3, 5, 5, 2), filters=2, kernel_size=3, return_sequences=True),
    "cube": case(layers.ConvLSTM3D, (2, 3, 3, 3, 2), filters=2, kernel_size=2),
}
ATTENTION = {
    "dot": case(layers.Attention, WORDS, WORDS),
    "dot_scaled_causal": calling(
        lambda: lambda x, y: layers.Attention(use_scale=True)([x, y], use_causal_mask=True), WORDS, WORDS
    ),
    "additive": case(layers.AdditiveAttention, WORDS, WORDS),
    "masked": calling(lambda: lambda x, y: layers.Attention()([y, layers.Masking()(x)]), WORDS, WORDS, has_mask=True),
    "several_heads": calling(lambda: lambda x, y: layers.MultiHeadAttention(2, 4)(x, y), WORDS, WORDS),
    "several_heads_masked": calling(
        lambda: lambda x: layers.MultiHeadAttention(2, 4)(*[layers.Masking()(x)] * 2, use_causal_mask=True),
        WORDS,
        has_mask=True,
    ),
    "several_heads_over_a_square": calling(
        lambda: lambda x: layers.MultiHeadAttention(2, 4, attention_axes=(1, 2))(x, x), (3, 3, 8)
    ),
    "grouped_queries": calling(lambda: lambda x, y: layers.GroupQueryAttention(4, 4, 2)(x, y), WORDS, WORDS),
}
EMBEDDING = {
    "words": case(layers.Embedding, (6,), input_dim=10, output_dim=4, num_ids=10),
    "words_masked": calling(
        lambda: lambda ids: layers.GRU(4)(layers.Embedding(10, 4, mask_zero=True)(ids)), (6,), num_ids=10
    ),
    "there_and_back": calling(lambda: _there_and_back, (6,), num_ids=10),
    "one_hot": case(layers.CategoryEncoding, (1,), num_tokens=10, output_mode="one_hot", num_ids=10),
    "many_hot": case(layers.CategoryEncoding, (4,), num_tokens=10, output_mode="multi_hot", num_ids=10),
    "counted": case(layers.CategoryEncoding, (4,), num_tokens=10, output_mode="count", num_ids=10),
    "buckets": calling(
        lambda: lambda x: layers.Rescaling(0.5)(layers.Discretization(bin_boundaries=[-1.0, 0.0, 1.0])(x)), (6,)
    ),
}
DENSE = {
    "dense": case(layers.Dense, (6,), units=4),
    "dense_over_words": case(layers.Dense, WORDS, units=4),
    "einsum": case(layers.EinsumDense, WORDS, equation="abc,cd->abd", output_shape=(6, 4), bias_axes="d"),
    "einsum_across": case(layers.EinsumDense, WORDS, equation="abc,bcd->ad", output_shape=(4,)),
    "lambda": calling(lambda: layers.Lambda(lambda x: x * x, output_shape=(6,)), (6,)),
    "identity": case(layers.Identity, (6,)),
    "one_after_another": calling(lambda: layers.Pipeline([layers.Rescaling(2.0)]), (6,)),
}
ACTIVATIONS = {
    "activation": case(layers.Activation, (6,), activation="gelu"),
    "elu": case(layers.ELU, (6,)),
    "leaky": case(layers.LeakyReLU, (6,)),
    "parametric": case(layers.PReLU, SQUARE, shared_axes=[1, 2]),
    "relu": case(layers.ReLU, (6,), max_value=1.0),
    "softmax": case(layers.Softmax, WORDS, axis=1),
    "activity": case(layers.ActivityRegularization, (6,), l1=0.1, l2=0.1, needs_whole_batch=True),
}
MERGING = {
    **{
        name: case(layer, WORDS, WORDS)
        for name, layer in (
            ("add", layers.Add),
            ("average", layers.Average),
            ("concatenate", layers.Concatenate),
            ("maximum", layers.Maximum),
            ("minimum", layers.Minimum),
            ("multiply", layers.Multiply),
            ("subtract", layers.Subtract),
        )
    },
    "dot": case(layers.Dot, WORDS, WORDS, axes=2, normalize=True),
}
SHAPES = {
    "flatten": case(layers.Flatten, channels_first(*SQUARE), **FIRST),
    "permute": case(layers.Permute, WORDS, dims=(2, 1)),
    "repeat": case(layers.RepeatVector, (6,), n=3),
    "reshape": case(layers.Reshape, WORDS, target_shape=(-1, 4)),
    "crop_1d": case(layers.Cropping1D, LINE, cropping=2),
    "crop_2d": case(layers.Cropping2D, SQUARE, cropping=((1, 2), (0, 3))),
    "crop_3d": case(layers.Cropping3D, CUBE, cropping=1),
    "crop_centre": case(layers.CenterCrop, SQUARE, height=5, width=4),
    "pad_1d": case(layers.ZeroPadding1D, LINE, padding=2),
    "pad_2d": case(layers.ZeroPadding2D, SQUARE, padding=((1, 2), (0, 3))),
    "pad_3d": case(layers.ZeroPadding3D, CUBE, padding=1),
}
RESIZING = {
    "up_1d": case(layers.UpSampling1D, LINE, size=2),
    "up_2d": case(layers.UpSampling2D, SQUARE, size=2),
    "up_2d_bilinear": case(layers.UpSampling2D, SQUARE, size=(2, 3), interpolation="bilinear"),
    "up_2d_first": case(layers.UpSampling2D, channels_first(*SQUARE), size=2, **FIRST),
    "up_3d": case(layers.UpSampling3D, CUBE, size=2),
    **{
        f"resize_{how}": case(layers.Resizing, SQUARE, height=6, width=11, interpolation=how)
        for how in ("nearest", "bilinear", "bicubic", "lanczos3")
    },
    "resize_padded": case(layers.Resizing, SQUARE, height=6, width=11, pad_to_aspect_ratio=True),
    "resize_first": case(layers.Resizing, channels_first(*SQUARE), height=6, width=11, **FIRST),
    "rescale": case(layers.Rescaling, SQUARE, scale=0.5, offset=1.0),
}
SOUND = {
    "mel": case(layers.MelSpectrogram, (64,), num_mel_bins=4, fft_length=16, sequence_stride=8, sampling_rate=64),
    "fourier": case(layers.STFTSpectrogram, (64, 1), mode="log", frame_length=16, frame_step=8, fft_length=16),
}
DROPPING = {
    "dropout": case(layers.Dropout, WORDS, rate=0.4, needs_whole_batch=True),
    "dropout_of_steps": case(layers.Dropout, WORDS, rate=0.4, noise_shape=(None, 1, None), needs_whole_batch=True),
    "alpha": case(layers.AlphaDropout, WORDS, rate=0.4, needs_whole_batch=True),
    "gaussian": case(layers.GaussianDropout, WORDS, rate=0.4, needs_whole_batch=True),
    "noise": case(layers.GaussianNoise, WORDS, stddev=0.4, needs_whole_batch=True),
    "spatial_1d": case(layers.SpatialDropout1D, LINE, rate=0.4, needs_whole_batch=True),
    "spatial_2d": case(layers.SpatialDropout2D, SQUARE, rate=0.4, needs_whole_batch=True),
    "spatial_3d": case(layers.SpatialDropout3D, CUBE, rate=0.4, needs_whole_batch=True),
    "recurrent": case(layers.LSTM, WORDS, units=4, dropout=0.4, recurrent_dropout=0.4, needs_whole_batch=True),
    "attention": calling(
        lambda: lambda x, y: layers.MultiHeadAttention(2, 4, dropout=0.4)(x, y), WORDS, WORDS, needs_whole_batch=True
    ),
}
IMAGE = (8, 8, 3)
COLOURS = {
    "brightness": case(layers.RandomBrightness, IMAGE, factor=0.4, value_range=(-4, 4), needs_whole_batch=True),
    "contrast": case(layers.RandomContrast, IMAGE, factor=0.4, value_range=(-4, 4), needs_whole_batch=True),
    "grey": case(layers.RandomGrayscale, IMAGE, factor=0.5, needs_whole_batch=True),
    "hue": case(layers.RandomHue, IMAGE, factor=0.4, value_range=(0, 1), needs_whole_batch=True),
    "invert": case(layers.RandomInvert, IMAGE, factor=0.5, value_range=(0, 1), needs_whole_batch=True),
    "posterize": case(layers.RandomPosterization, IMAGE, factor=4, value_range=(0, 1), needs_whole_batch=True),
    "saturation": case(layers.RandomSaturation, IMAGE, factor=0.4, value_range=(0, 1), needs_whole_batch=True),
    "degeneration": case(layers.RandomColorDegeneration, IMAGE, factor=0.4, value_range=(0, 1), needs_whole_batch=True),
    "solarize": case(layers.Solarization, IMAGE, value_range=(0, 1), needs_whole_batch=True),
    "auto_contrast": case(layers.AutoContrast, IMAGE, value_range=(0, 1)),
}
if hasattr(layers, "ContrastLimitedAdaptiveHistogramEqualization"):  # Keras 3.13 lacks it
    COLOURS["equalize_locally"] = case(layers.ContrastLimitedAdaptiveHistogramEqualization, IMAGE, value_range=(0, 1))
MOVES = {
    "flip": case(layers.RandomFlip, IMAGE, needs_whole_batch=True),
    "rotate": case(layers.RandomRotation, IMAGE, factor=0.2, needs_whole_batch=True),
    "shear": case(layers.RandomShear, IMAGE, x_factor=0.3, y_factor=0.3, needs_whole_batch=True),
    "translate": case(layers.RandomTranslation, IMAGE, height_factor=0.2, width_factor=0.2, needs_whole_batch=True),
    "zoom": case(layers.RandomZoom, IMAGE, height_factor=0.3, needs_whole_batch=True),
    "perspective": case(layers.RandomPerspective, IMAGE, factor=0.5, needs_whole_batch=True),
    "erase": case(layers.RandomErasing, IMAGE, factor=1.0, value_range=(0, 1), needs_whole_batch=True),
    "blur": case(
        layers.RandomGaussianBlur, IMAGE, factor=1.0, kernel_size=3, value_range=(0, 1), needs_whole_batch=True
    ),
    "sharpen": case(layers.RandomSharpness, IMAGE, factor=0.5, value_range=(0, 1), needs_whole_batch=True),
}
MIXTURES = {
    "jitter": case(
        layers.RandomColorJitter,
        IMAGE,
        brightness_factor=0.2,
        contrast_factor=0.2,
        saturation_factor=0.2,
        hue_factor=0.2,
        value_range=(0, 1),
        needs_whole_batch=True,
    ),
    "mix": case(layers.MixUp, IMAGE, needs_whole_batch=True),
    "cut_and_mix": case(layers.CutMix, IMAGE, needs_whole_batch=True),
    "augment": case(layers.RandAugment, IMAGE, value_range=(0, 1), needs_whole_batch=True),
    "augment_and_mix": case(layers.AugMix, IMAGE, value_range=(0, 1), needs_whole_batch=True),
}

FAMILIES = {
    "convolutions_1d": CONVOLUTIONS_1D,
    "convolutions_2d": CONVOLUTIONS_2D,
    "grouped_2d": GROUPED_2D,
    "depthwise_2d": DEPTHWISE_2D,
    "convolutions_3d": CONVOLUTIONS_3D,
    "pooling": POOLING,
    "adaptive_pooling": ADAPTIVE_POOLING,
    "normalisation": NORMALISATION,
    "recurrent": RECURRENT,
    "recurrent_cells": RECURRENT_CELLS,
    "convolutional_recurrent": CONVOLUTIONAL_RECURRENT,
    "attention": ATTENTION,
    "embedding": EMBEDDING,
    "dense": DENSE,
    "activations": ACTIVATIONS,
    "merging": MERGING,
    "shapes": SHAPES,
    "resizing": RESIZING,
    "sound": SOUND,
    "dropping": DROPPING,
    "colours": COLOURS,
    "moves": MOVES,
    "mixtures": MIXTURES,
}

LEFT_OUT = {
    "Equalization": "cannot be part of a functional model (Keras 3.15)",
    "FlaxLayer": "needs Flax",
    "HashedCrossing": "needs TensorFlow",
    "Hashing": "needs TensorFlow",
    "InputLayer": "computes nothing",
    "IntegerLookup": "needs TensorFlow",
    "JaxLayer": "needs TensorFlow",
    "Layer": "computes nothing",
    "MaxNumBoundingBoxes": "takes bounding boxes in the place of arrays, and has no gradient",
    "RandomCrop": "leaves images whole in a model's first call (Keras 3.15)",
    "RandomElasticTransform": "cannot be compiled (Keras 3.15)",
    "StringLookup": "takes strings, which JAX has none of",
    "TFSMLayer": "needs TensorFlow",
    "TextVectorization": "takes strings, which JAX has none of",
    "TorchModuleWrapper": "needs PyTorch",
    "Wrapper": "computes nothing",
}


def _there_and_back(ids):
    table = layers.ReversibleEmbedding(10, 4)
    return table(table(ids), reverse=True)


@keras.saving.register_keras_serializable("lockstep_tests")
class Shift(layers.Layer):
    """Gives each element of a row a weight, whose gradient is that of the rows, summed.

    The curve is there for what follows: batch normalisation would take a mere sum out again, and leave noise.
    """

    def build(self, shape):
        self.shift = self.add_weight(shape=shape[1:], initializer="zeros", name="shift")

    def call(self, inputs):
        # What is masked stays zero, so that it stays masked.
        return keras.ops.where(inputs == 0.0, inputs, keras.ops.tanh(inputs + self.shift))


def branch(name, case):
    """Returns a case's inputs and its output, of shape (rows, 3), as tensors of a functional model."""
    dtype = "float32" if case.num_ids is None else "int32"
    inputs = [keras.Input(shape, dtype=dtype, name=f"{name}_{at}") for at, shape in enumerate(case.shapes)]
    values = (
        inputs if case.num_ids is not None else [Shift(name=f"{name}_shift_{at}")(x) for at, x in enumerate(inputs)]
    )
    layer = case.make()
    if len(values) == 1:
        outputs = layer(values[0])
    elif isinstance(layer, layers.Layer):
        outputs = layer(values)
    else:
        outputs = layer(*values)
    flat = [layers.Flatten()(keras.ops.cast(output, "float32")) for output in keras.tree.flatten(outputs)]
    joined = layers.Concatenate(name=f"{name}_joined")(flat) if len(flat) > 1 else flat[0]
    if joined.shape[-1] % 2:  # a layout map may cut what follows in two
        joined = layers.Concatenate(name=f"{name}_twice")([joined, joined])
    return inputs, layers.Dense(3, name=f"{name}_scores")(joined)
