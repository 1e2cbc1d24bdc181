"""Small colour pictures in classes, drawn here: they stand in for photographs where none can be downloaded."""

from pathlib import Path

import numpy as np


def draw_pictures(num_pictures, *, num_classes, num_pixels, seed):
    """Draws flowers: a class has a colour and a number of petals, a picture its own place, size and light.

    Args:
        num_pictures: how many.
        num_classes: how many classes; they take turns.
        num_pixels: height and width of a picture.
        seed: the same seed gives the same pictures.

    Returns:
        uint8 of shape (pictures, pixels, pixels, 3), and int64 labels of shape (pictures,).
    """
    generator = np.random.default_rng(seed)
    labels = np.arange(num_pictures) % num_classes
    rows, columns = np.mgrid[:num_pixels, :num_pixels] / num_pixels - 0.5
    pictures = np.empty((num_pictures, num_pixels, num_pixels, 3), np.uint8)
    for picture, label in zip(pictures, labels, strict=True):
        height, width = generator.uniform(-0.1, 0.1, 2)
        angle = np.arctan2(rows - height, columns - width) + generator.uniform(0, 2 * np.pi)
        radius = generator.uniform(0.25, 0.4) * (0.7 + 0.3 * np.cos((3 + label % 4) * angle))
        is_flower = np.hypot(rows - height, columns - width) < radius
        hue = 2 * np.pi * label / num_classes
        colour = 0.5 + 0.5 * np.cos(hue + np.array([0, 2, 4]) * np.pi / 3)
        light = generator.uniform(0.7, 1.0)
        shades = np.where(is_flower[..., None], colour, [0.2, 0.4, 0.2]) * light + generator.normal(
            0, 0.1, picture.shape
        )
        picture[:] = np.clip(shades * 255, 0, 255)
    return pictures, labels.astype(np.int64)


def write_folder(folder, pictures, labels, *, names):
    """Writes pictures as PNG files, one folder for each class, as collections of photographs come.

    Args:
        folder: where to; it is made.
        pictures: as `draw_pictures` returns them.
        labels: as `draw_pictures` returns them.
        names: of the classes.
    """
    from PIL import Image  # Keras reads image files with it, too

    for number, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        path = Path(folder) / names[label] / f"{number:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
