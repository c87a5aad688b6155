#!/usr/bin/env python3
"""Kernels of one instruction set share no code with the rest of the program.

An inline function that is not inlined has a copy in every object that uses it, and the linker keeps
one of them: were it the one compiled for AVX-512, the program would stop on processors without.
"""

import pathlib
import subprocess
import sys
import unittest

LIBRARIES = [pathlib.Path(p) for p in sys.argv[1:]]


def shared_symbols(library):
    lines = subprocess.check_output(["nm", "--defined-only", str(library)], text=True).splitlines()
    # Weak or unique: what other objects may define, too.
    return [line for line in lines if len(line.split()) == 3 and line.split()[1] in "WVuwv"]


class IsaTest(unittest.TestCase):
    def test_nothing_is_shared(self):
        objects = [p for p in LIBRARIES if p.suffix == ".a"]
        self.assertGreaterEqual(len(objects), 4)
        for library in objects:
            self.assertEqual(shared_symbols(library), [], library)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
