"""Changes of pictures by Pillow: the fixture `crates/regard/fixtures/augment`.

    pip install pillow numpy safetensors
    python reference/augment.py
"""

import json
from pathlib import Path

import numpy as np
import PIL
from PIL import Image, ImageEnhance, ImageOps
from safetensors.numpy import save_file

OUT = Path(__file__).parent.parent / "crates/regard/fixtures/augment"
FILL = (124, 116, 104)


def pictures():
    """A smooth one with noise, a dull one with few levels, one colour, a tiny one, and one of so many levels that
    equalising goes over 255."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[0:18, 0:26]
    smooth = np.stack([rows * 12, columns * 9, 255 - rows * 5 - columns * 4], -1)
    smooth = smooth + random.normal(0, 20, smooth.shape)
    yield "smooth", np.clip(smooth, 0, 255).astype(np.uint8)
    yield "dull", random.integers(90, 101, (9, 7, 3)).astype(np.uint8)
    yield "even", np.full((5, 4, 3), [10, 200, 128], np.uint8)
    yield "small", random.integers(0, 256, (2, 3, 3)).astype(np.uint8)
    yield "many", np.arange(20 * 20 * 3).reshape(20, 20, 3).astype(np.uint8)


def affine(image, matrix):
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=FILL)


def changes(image):
    yield "autocontrast", ImageOps.autocontrast(image)
    yield "equalize", ImageOps.equalize(image)
    yield "invert", ImageOps.invert(image)
    yield "grayscale", image.convert("L").convert("RGB")
    for bits in (1, 3, 4):
        yield f"posterize {bits}", ImageOps.posterize(image, bits)
    for threshold in (0, 26, 128, 256):
        yield f"solarize {threshold}", ImageOps.solarize(image, threshold)
    for factor in (0.1, 0.37, 1.0, 1.63, 1.9):
        yield f"color {factor}", ImageEnhance.Color(image).enhance(factor)
        yield f"contrast {factor}", ImageEnhance.Contrast(image).enhance(factor)
        yield f"brightness {factor}", ImageEnhance.Brightness(image).enhance(factor)
        yield f"sharpness {factor}", ImageEnhance.Sharpness(image).enhance(factor)
    for angle in (-27.3, 5.0, 30.0):
        yield f"rotate {angle}", image.rotate(angle, Image.Resampling.BILINEAR, fillcolor=FILL)
    for shear in (-0.27, 0.3):
        yield f"shear-x {shear}", affine(image, (1, shear, 0, 0, 1, 0))
        yield f"shear-y {shear}", affine(image, (1, 0, 0, shear, 1, 0))
    for share in (-0.405, 0.2):
        yield f"translate-x {share}", affine(image, (1, 0, share * image.size[0], 0, 1, 0))
        yield f"translate-y {share}", affine(image, (1, 0, 0, 0, 1, share * image.size[1]))


tensors = {}
for name, pixels in pictures():
    tensors[name] = pixels
    for change, changed in changes(Image.fromarray(pixels)):
        if name == "many" and change != "equalize":
            continue
        tensors[f"{name} {change}"] = np.asarray(changed)
OUT.mkdir(exist_ok=True)
save_file(tensors, OUT / "io.safetensors")
config = {"made_with": f"Pillow {PIL.__version__}", "fill": FILL}
(OUT / "config.json").write_text(json.dumps(config) + "\n")
