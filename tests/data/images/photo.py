"""A picture that JPEG encoders find in photographs: smooth surfaces, edges between them, and the noise of a sensor."""

from __future__ import annotations

import numpy as np


def photo(height: int, width: int, *, seed: int = 0) -> np.ndarray:
    """Returns a picture of shape [height, width, 3] and dtype uint8."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width] / max(height, width)
    picture = np.empty((height, width, 3))
    for channel in range(3):
        slopes, waves = rng.uniform(-60, 60, 2), rng.uniform(2, 9, 2)
        surface = np.sin(waves[0] * rows + channel) * np.cos(waves[1] * columns)
        picture[..., channel] = 128 + slopes[0] * rows + slopes[1] * columns + 40 * surface
    for _ in range(12):
        centre, radius, shade = rng.uniform(0, 1, 2), rng.uniform(0.03, 0.2), rng.uniform(-50, 50, 3)
        picture[np.hypot(rows - centre[0], columns - centre[1]) < radius] += shade
    return np.clip(picture + rng.normal(0, 3, picture.shape), 0, 255).astype(np.uint8)
