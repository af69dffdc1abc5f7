"""Pictures and captions for a run that was given none."""

import os
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

# more than one shape, so that --enable_bucket has something to do
SIZES = ((128, 128), (128, 128), (160, 96), (128, 128), (96, 160))
SHAPES = ("circle", "square", "bar")
COLOURS = {"red": (205, 60, 50), "green": (70, 160, 80), "blue": (60, 90, 190), "yellow": (230, 190, 60)}


def draw_picture(rng: np.random.Generator, shape: str, colour: str, size: tuple[int, int]) -> Image.Image:
    """Draw one shape at a random place on a noisy ground."""
    ground = rng.integers(150, 230, size=3)
    pixels = np.clip(ground + rng.normal(0, 8, size=(size[1], size[0], 3)), 0, 255).astype(np.uint8)
    picture = Image.fromarray(pixels)
    side = min(size)
    left, top = (int(v) for v in rng.integers(side // 16, side // 2, size=2))
    width, height = side // 3, side // 3 if shape != "bar" else side // 8
    draw = ImageDraw.Draw(picture)
    outline = draw.ellipse if shape == "circle" else draw.rectangle
    outline((left, top, left + width, top + height), fill=COLOURS[colour])
    return picture


def draw_dataset(folder: str, count: int = 12) -> str:
    """Draw the pictures that are missing in the folder, with a generator of their own, and return the folder."""
    os.makedirs(folder, exist_ok=True)
    kinds = [(shape, colour) for shape in SHAPES for colour in COLOURS]
    for i in range(count):
        path = Path(folder) / f"drawn{i:02d}.png"
        if path.exists():
            continue
        shape, colour = kinds[i % len(kinds)]
        # the caption first: a picture without one would keep its place and train on the trigger word
        path.with_suffix(".txt").write_text(f"a {colour} {shape} on grey paper", encoding="utf-8")
        draw_picture(np.random.default_rng(i), shape, colour, SIZES[i % len(SIZES)]).save(path)
    return folder
