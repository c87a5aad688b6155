#!/usr/bin/env python3
"""Checks our safetensors reader and writer against the format's own library.

    bazel build //tools/reference:safetensors_copy
    python safetensors_interop.py bazel-bin/tools/reference/safetensors_copy

Python writes a file of every dtype, the binary copies it, Python reads the copy: names, dtypes,
shapes, bytes and metadata must be the same.
"""

import pathlib
import subprocess
import sys
import tempfile

import safetensors
import safetensors.torch
import torch

SHAPES = [(), (1,), (0, 3), (7, 11), (2, 3, 4, 5), (1, 2, 1, 2, 1, 2, 1), (5003,)]
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.uint16, torch.int16, torch.float16, torch.bfloat16,
    torch.uint32, torch.int32, torch.float32, torch.uint64, torch.int64, torch.float64,
]  # fmt: skip
METADATA = {"format": "pt", "quote\"": "line\nbreak \u00e9"}


def as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def main() -> int:
    binary = pathlib.Path(sys.argv[1]).resolve()
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for dtype in DTYPES:
        for shape in SHAPES:
            limit = 2 if dtype == torch.bool else 256
            size = torch.Size(shape).numel() * dtype.itemsize
            data = torch.randint(limit, (size,), generator=generator, dtype=torch.uint8)
            tensors[f"{dtype} {shape} \"\u00fc\\"] = data.view(dtype).reshape(shape)
    with tempfile.TemporaryDirectory() as folder:
        original, copy = f"{folder}/original.safetensors", f"{folder}/copy.safetensors"
        safetensors.torch.save_file(tensors, original, metadata=METADATA)
        subprocess.run([binary, original, copy], check=True)
        with safetensors.safe_open(copy, framework="pt") as file:
            assert file.metadata() == METADATA, file.metadata()
            assert set(file.keys()) == set(tensors)
            for name, want in tensors.items():
                got = file.get_tensor(name)
                assert (got.dtype, got.shape) == (want.dtype, want.shape), name
                assert as_bytes(got) == as_bytes(want), name
    print(f"{len(tensors)} tensors of {len(DTYPES)} dtypes: the same after the copy")
    return 0


if __name__ == "__main__":
    sys.exit(main())
