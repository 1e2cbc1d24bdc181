"""The base class of Keras's distributions. Keras itself exports only its subclasses."""

# Keras is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from keras.src.distribution.distribution_lib import Distribution

__all__ = ["Distribution"]
