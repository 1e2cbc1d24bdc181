"""The base class of Keras's distributions, of which Keras exports the subclasses alone."""

# Keras is partly without types: what comes from it is unknown to the checker, in this file alone.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from keras.src.distribution.distribution_lib import Distribution

__all__ = ["Distribution"]
