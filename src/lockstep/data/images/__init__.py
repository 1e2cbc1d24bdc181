"""Images: decoding, resizing, cropping, rotating, flipping and normalizing on the host, batch by batch."""

from lockstep.data.images.codec import decode_image, encode_image, image_size, resize_image
from lockstep.data.images.decoder import ImageDecoder
from lockstep.data.images.steps import (
    AbstractImageStep,
    CenterCrop,
    Normalization,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    RandomRotation,
    Rescaling,
    Resizing,
)

__all__ = [
    "AbstractImageStep",
    "CenterCrop",
    "ImageDecoder",
    "Normalization",
    "RandomCrop",
    "RandomFlip",
    "RandomResizedCrop",
    "RandomRotation",
    "Rescaling",
    "Resizing",
    "decode_image",
    "encode_image",
    "image_size",
    "resize_image",
]
