"""Which kernels tools/cuda/kernels.md was made of: a hash of all that nvcc reads and does."""

import hashlib
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
sys.dont_write_bytecode = True  # Leaves no files in the tree.

from code_text import code_of

HOW = ("tools/cuda/compile", "tools/cuda/defs.bzl", "tools/cuda/BUILD.bazel")
KERNELS = "trainer/**/*.cu"


def read_by_nvcc():
    """The files with kernels and every file of ours that they include, path -> code."""
    read = {}
    left = sorted(ROOT.glob(KERNELS))
    while left:
        file = left.pop()
        if file in read or not file.is_file():  # A header that Bazel makes is none of ours.
            continue
        text = file.read_text()
        read[file] = code_of(text)
        left += [ROOT / name for name in re.findall(r'^#include "([^"]+)"', text, re.M)]
    return read


def hash_of_kernels(nvcc):
    """SHA-256 of the compiler's version and of the sources, names and code; `nvcc` is its path."""
    whole = hashlib.sha256(subprocess.run([nvcc, "--version"], capture_output=True, check=True).stdout)
    texts = {ROOT / name: (ROOT / name).read_text() for name in HOW} | read_by_nvcc()
    for file in sorted(texts):
        whole.update(f"{file.relative_to(ROOT)}\n{texts[file]}\n".encode())
    return whole.hexdigest()
