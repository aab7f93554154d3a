"""Pictures with all eight EXIF orientations, and what Pillow's `ImageOps.exif_transpose` makes of them: the fixture
`crates/regard/fixtures/exif`.

    pip install pillow numpy safetensors
    python reference/exif.py
"""

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import PIL
from PIL import Image, ImageOps
from safetensors.numpy import save_file

OUT = Path(__file__).parent.parent / "crates/regard/fixtures/exif"
ORIENTATION = 0x0112


def picture():
    """Wider than high, and different in every corner, so that no two orientations give the same picture."""
    rows, columns = np.mgrid[0:6, 0:10]
    return np.stack([rows * 40, columns * 25, (rows > 2) * 120 + (columns > 4) * 60], -1).astype(np.uint8)


def exif(orientation):
    tags = Image.Exif()
    tags[ORIENTATION] = orientation
    return tags


def big_endian(orientation):
    """An EXIF block with the big end first, as cameras write it; Pillow writes the little end first."""
    entry = struct.pack(">HHIHH", ORIENTATION, 3, 1, orientation, 0)
    return b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 1) + entry + struct.pack(">I", 0)


def png_with_late_exif(orientation):
    """A PNG whose eXIf chunk follows the pixels, which the format allows."""
    image = Image.fromarray(picture())
    path = OUT / "late.png"
    image.save(path)
    content = path.read_bytes()
    body = b"eXIf" + exif(orientation).tobytes()[6:]
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    path.write_bytes(content[:-12] + chunk + content[-12:])


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(picture())
    for orientation in range(0, 10):
        tags = exif(orientation)
        if orientation in range(1, 9):
            image.save(OUT / f"{orientation}.png", exif=tags)
            image.save(OUT / f"{orientation}.webp", exif=tags, lossless=True)
            image.save(OUT / f"{orientation}.tif", exif=tags, compression="tiff_lzw")
        # 0 and 9 mean nothing, and change nothing
        image.save(OUT / f"{orientation}.jpg", exif=tags, quality=98, subsampling=0)
    image.save(OUT / "big_endian.jpg", exif=big_endian(5), quality=98, subsampling=0)
    png_with_late_exif(8)
    upright = {}
    for path in sorted(OUT.iterdir()):
        if path.suffix in (".png", ".webp", ".tif", ".jpg"):
            with Image.open(path) as opened:
                opened.load()
                upright[path.name] = np.asarray(ImageOps.exif_transpose(opened).convert("RGB")).copy()
    save_file(upright, OUT / "io.safetensors")
    (OUT / "io.safetensors").chmod(0o644)
    config = {"source": f"Pillow {PIL.__version__}, ImageOps.exif_transpose, by reference/exif.py"}
    (OUT / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
