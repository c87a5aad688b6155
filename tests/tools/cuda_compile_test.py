#!/usr/bin/env python3
"""tools/cuda/compile with a compiler that only says what it reads."""

import pathlib
import subprocess
import tempfile
import unittest

PROGRAM = pathlib.Path("tools/cuda/compile").resolve()
COMPILER = """#!/bin/sh
[ "$1 $2" = "-c a.cu" ] || exit 9
while [ "$1" != -MF ]; do shift; done
cat >"$2" <<'END'
out/a.o : a.cu \\
    ./core/view.h ops/launch.h \\
    /usr/include/stdio.h
END
"""


class CompileTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp())
        compiler = self.directory / "nvcc"
        compiler.write_text(COMPILER)
        compiler.chmod(0o755)

    def compile(self, headers, *arguments):
        (self.directory / "headers").write_text("".join(name + "\n" for name in headers))
        return subprocess.run([PROGRAM, "headers", "unused", "./nvcc", *arguments],
                              cwd=self.directory, check=False).returncode

    def test_lists_what_is_not_read(self):
        headers = ["runtime/stream.h", "ops/launch.h", "core/view.h", "core/view.hh", "core/dtype.h"]
        self.assertEqual(self.compile(headers, "-c", "a.cu"), 0)
        self.assertEqual((self.directory / "unused").read_text().split(),
                         ["core/dtype.h", "core/view.hh", "runtime/stream.h"])
        self.assertEqual(sorted(path.name for path in self.directory.iterdir()),
                         ["headers", "nvcc", "unused"])

    def test_a_compiler_that_fails_does(self):
        self.assertEqual(self.compile(["core/view.h"], "-c", "another.cu"), 9)


if __name__ == "__main__":
    unittest.main()
