#!/usr/bin/env python3
"""Writes tests/fixtures/images: files that Pillow has written, and what it reads and resizes of them.

    python images.py

images.bin holds pixels, [height, width, channels], one image behind the other; images.json says where:
`resized` is an image, a box of it (top, left, height, width), and what Image.resize makes of that by
BILINEAR; `decoded` is a file, and what Pillow decodes; `converted` is a file, and what Pillow's
convert("RGB") makes of it. A place is height, width, channels, first byte.
"""

import json
import pathlib
import struct
import zlib

import numpy as np
from PIL import Image

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "images"

# Height, width and channels of an image; the sizes and boxes that it is resized to and from.
CASES = {
    "small": ((5, 7, 1), [(3, 3), (5, 7), (12, 20), (1, 1), (5, 3), (9, 7)]),
    "colours": ((37, 23, 3), [(16, 16), (28, 28), (64, 23), (37, 8), (40, 50)]),
    "wide": ((9, 130, 3), [(32, 32), (4, 4), (9, 129)]),
    "line": ((1, 50, 1), [(1, 7), (6, 6)]),
}
BOXES = [(0, 0, 1, 1), (0.1, 0.2, 0.5, 0.7), (0.4, 0.0, 0.3, 0.25)]


def draw(rng, height, width, channels):
    """Waves with noise: neither smooth nor without structure."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(channels), indexing="ij")
    waves = 128 + 90 * np.sin(0.5 * y + 0.3 * x + c) + 60 * rng.standard_normal(y.shape)
    return waves.clip(0, 255).astype(np.uint8)


def to_pillow(pixels):
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def from_pillow(image):
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def png(height, width, depth, kind, rows, more=b""):
    """A PNG of any bit depth and colour type: Pillow writes few of them."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + more +
            chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))) + chunk(b"IEND", b""))


def main():
    rng = np.random.default_rng(7)
    FOLDER.mkdir(parents=True, exist_ok=True)
    bytes_, resized, decoded = bytearray(), [], []

    def keep(pixels):
        place = [*pixels.shape, len(bytes_)]
        bytes_.extend(pixels.tobytes())
        return place

    for name, ((height, width, channels), sizes) in CASES.items():
        pixels = draw(rng, height, width, channels)
        of = keep(pixels)
        for size in sizes:
            for part in BOXES:
                top, left = int(part[0] * height), int(part[1] * width)
                h, w = max(1, int(part[2] * height)), max(1, int(part[3] * width))
                cut = to_pillow(pixels).crop((left, top, left + w, top + h))
                image = cut.resize((size[1], size[0]), Image.BILINEAR)
                resized.append({"name": name, "image": of, "box": [top, left, h, w],
                                "want": keep(from_pillow(image))})

    colours, grey = draw(rng, 29, 41, 3), draw(rng, 13, 17, 1)
    files = {
        "colours.jpg": (to_pillow(colours), dict(quality=85)),
        "progressive.jpeg": (to_pillow(colours), dict(quality=60, progressive=True)),
        "fine.JPG": (to_pillow(colours), dict(quality=95, subsampling=0, format="JPEG")),
        "grey.jpg": (to_pillow(grey), dict(quality=80)),
        "colours.png": (to_pillow(colours), {}),
        "grey.png": (to_pillow(grey), {}),
        "transparent.png": (Image.fromarray(draw(rng, 8, 9, 4), "RGBA"), {}),
        "palette.png": (to_pillow(colours).quantize(31), {}),
        "bits.png": (to_pillow(grey).convert("1"), {}),
        "cmyk.jpg": (to_pillow(colours).convert("CMYK"), {}),
    }
    for name, (image, how) in files.items():
        image.save(FOLDER / name, **how)
        read = Image.open(FOLDER / name)
        if name == "palette.png":
            read = read.convert("RGB")
        if name == "bits.png":
            read = read.convert("L")
        if name != "cmyk.jpg":  # Its inks are never seen.
            pixels = from_pillow(read)
            if pixels.dtype == bool:
                pixels = pixels.astype(np.uint8) * 255
            decoded.append({"file": name, "want": keep(pixels)})
    deep = rng.integers(0, 700, (6, 11), dtype=np.uint16)
    wide = rng.integers(0, 65536, (6, 11, 3), dtype=np.uint16)
    made = {
        "inks.jpg": (Image.fromarray(draw(rng, 18, 25, 4), "CMYK"), dict(quality=93, subsampling=0)),
        "grey_alpha.png": (Image.fromarray(draw(rng, 9, 7, 2), "LA"), {}),
        "clear_palette.png": (to_pillow(colours).quantize(9), dict(transparency=b"\0\x80")),
        "deep_grey.png": png(6, 11, 16, 0, [row.astype(">u2").tobytes() for row in deep]),
        "deep_colours.png": png(6, 11, 16, 2, [row.astype(">u2").tobytes() for row in wide]),
        "deep_alpha.png": png(6, 11, 16, 4, [row[:, :2].astype(">u2").tobytes() for row in wide]),
        "two_bits.png": png(3, 4, 2, 0, [b"\x1b", b"\xe4", b"\x93"]),
    }
    for name, file in made.items():
        if isinstance(file, bytes):
            (FOLDER / name).write_bytes(file)
        else:
            file[0].save(FOLDER / name, **file[1])
    converted = [{"file": name, "want": keep(from_pillow(Image.open(FOLDER / name).convert("RGB")))}
                 for name in [*files, *made]]
    (FOLDER / "images.bin").write_bytes(bytes_)
    lines = [f'"{key}": [\n' + ",\n".join(json.dumps(e) for e in entries) + "\n]"
             for key, entries in (("resized", resized), ("decoded", decoded),
                                     ("converted", converted))]
    (FOLDER / "images.json").write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
