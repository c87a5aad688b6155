"""Which kernels docs/benchmarks/cuda_kernels.md was made of: a hash of all that nvcc reads and does."""

import hashlib
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACES = ("tools/cuda/compile", "tools/cuda/defs.bzl", "tools/cuda/BUILD.bazel", "trainer/ops/*.h",
          "trainer/ops/cuda/*")


def hash_of_kernels(nvcc):
    """SHA-256 of the compiler's version and of the sources, names and texts; `nvcc` is its path."""
    whole = hashlib.sha256(subprocess.run([nvcc, "--version"], capture_output=True, check=True).stdout)
    for place in PLACES:
        for file in sorted(file for file in ROOT.glob(place) if file.is_file()):
            whole.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return whole.hexdigest()
