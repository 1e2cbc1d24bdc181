"""Draws faces of cats and dogs into an archive with the form of Microsoft's: for a first try without the download.

    python draw.py drawn.zip --pictures 400

The archive has what the real one has: a folder of each class, `Thumbs.db`, files that are empty, cut off or of another
format, and JPEGs in grayscale.
"""

import argparse
import io
import zipfile

import numpy as np
from PIL import Image, ImageDraw

CLASSES = ("Cat", "Dog")
SIZES = (80, 161)
"""The least height and width of a picture, and one more than the largest, in pixels."""

FURS = {"Cat": ((235, 150, 60), (150, 150, 160)), "Dog": ((130, 80, 45), (225, 200, 160))}
DARK = (40, 25, 20)


def draw_face(animal, generator):
    """Draws a face of one animal, in its own size and place: a cat has stripes and ears that stand, a dog's ears hang.

    Args:
        animal: one of `CLASSES`.
        generator: of NumPy; decides all the rest.

    Returns:
        The picture, in RGB.
    """
    height, width = (int(side) for side in generator.integers(*SIZES, 2))
    background = tuple(int(value) for value in generator.integers(0, 256, 3))
    fur = FURS[animal][generator.integers(2)]
    picture = Image.new("RGB", (width, height), background)
    canvas = ImageDraw.Draw(picture)
    radius = min(height, width) * generator.uniform(0.22, 0.3)
    x, y = width / 2 + radius * generator.uniform(-0.3, 0.3), height / 2 + radius * generator.uniform(0, 0.3)

    def ellipse(center, half, colour):
        (left, top), (half_width, half_height) = center, half
        canvas.ellipse((left - half_width, top - half_height, left + half_width, top + half_height), fill=colour)

    for side in (-1, 1):
        if animal == "Cat":
            tip = (x + side * radius * 0.95, y - radius * 1.65)
            canvas.polygon([(x + side * radius * 0.1, y - radius * 0.8), tip, (x + side * radius, y)], fill=fur)
        else:
            ellipse((x + side * radius * 1.1, y + radius * 0.3), (radius * 0.4, radius * 0.95), DARK)
    ellipse((x, y), (radius, radius), fur)
    if animal == "Cat":
        for stripe in np.linspace(-0.6, 0.6, 6) * radius:
            half = (radius**2 - stripe**2) ** 0.5
            canvas.line((x + stripe, y - half, x + stripe, y - half * 0.5), fill=DARK, width=3)
            canvas.line((x + stripe, y + half * 0.5, x + stripe, y + half), fill=DARK, width=3)
    for side in (-1, 1):
        ellipse((x + side * radius * 0.4, y - radius * 0.25), (radius * 0.14, radius * 0.2), (250, 250, 240))
        ellipse((x + side * radius * 0.4, y - radius * 0.25), (radius * 0.07, radius * 0.14), (20, 20, 20))
    ellipse((x, y + radius * 0.3), (radius * 0.2, radius * 0.13), (60, 20, 30))
    pixels = np.asarray(picture, np.float32) + generator.normal(0, 8, (height, width, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def encode(picture, kind="JPEG"):
    file = io.BytesIO()
    picture.save(file, kind, **({"quality": 92} if kind == "JPEG" else {}))
    return file.getvalue()


def damaged_files(picture):
    """Returns files that are not packed, by name: those of which the real archive has some."""
    whole = encode(picture)
    return {
        "empty.jpg": b"",
        "cut_off.jpg": whole[: len(whole) // 2],
        "a_gif.jpg": encode(picture.convert("P"), "GIF"),
        "a_bitmap.jpg": encode(picture, "BMP"),
        "a_text.jpg": b"<html>404 Not Found</html>",
    }


def write_archive(path, *, num_pictures, seed=1):
    """Writes the archive.

    Args:
        path: of the .zip file.
        num_pictures: how many whole pictures; the classes take turns.
        seed: the same seed gives the same pictures.
    """
    generator = np.random.default_rng(seed)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme[1].txt", "Drawn pictures.\n")
        for number in range(num_pictures):
            animal = CLASSES[number % len(CLASSES)]
            picture = draw_face(animal, generator)
            data = encode(picture.convert("L") if number % 25 == 7 else picture)
            archive.writestr(f"PetImages/{animal}/{number // len(CLASSES)}.jpg", data)
        for animal in CLASSES:
            archive.writestr(f"PetImages/{animal}/Thumbs.db", b"\xd0\xcf\x11\xe0")
            for name, data in damaged_files(draw_face(animal, generator)).items():
                archive.writestr(f"PetImages/{animal}/{name}", data)


def main():
    parser = argparse.ArgumentParser(description="Draws faces of cats and dogs into an archive.")
    parser.add_argument("archive", help="the .zip file to write")
    parser.add_argument("--pictures", type=int, default=400, help="how many whole pictures to draw")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    write_archive(arguments.archive, num_pictures=arguments.pictures, seed=arguments.seed)
    print(f"{arguments.pictures} pictures drawn, and {len(CLASSES) * 5} damaged files, in {arguments.archive}")


if __name__ == "__main__":
    main()
