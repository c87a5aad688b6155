#!/usr/bin/env python3
"""Every .cu file with kernels belongs to a test that fails where one of them is never launched."""

import pathlib
import re
import unittest

SAID = re.compile(r"LaunchedKernels \w+\(__FILE__,\s*\{(.*?)\}", re.S)


def tested():
    """Kernel files that a suite launches: x_test.cc those of x_cuda.cu, and what it says."""
    for path in pathlib.Path("tests/trainer/ops").glob("*_test.cc"):
        yield path.stem.removesuffix("_test") + "_cuda"
        for said in SAID.findall(path.read_text()):
            yield from re.findall(r'"(\w+)"', said)


class KernelFiles(unittest.TestCase):
    def test_every_file_is_some_tests(self):
        sources = sorted(pathlib.Path("trainer/ops/cuda").rglob("*.cu"))
        with_kernels = {path.stem for path in sources if "__global__" in path.read_text()}
        self.assertGreater(len(with_kernels), 5)
        self.assertEqual(with_kernels - set(tested()), set())


unittest.main()
