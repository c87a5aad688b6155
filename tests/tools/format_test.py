#!/usr/bin/env python3
"""tools/format over a repository of its own: what differs is named, and mended on request."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

GOOD = "int Good() { return 1; }\n"
BAD = "int Good() { return 1; }\nint  Bad( ) { return 2; }\nint Bad2( ) { return 2; }\n"


class FormatTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        (self.root / "tools").mkdir()
        for name in ("code_text.py", "format", "includes"):
            shutil.copy(f"tools/{name}", self.root / "tools")
        subprocess.run(["git", "init", "-q", self.root], check=True)
        self.write(".clang-format", "BasedOnStyle: Google\n")

    def write(self, name, text):
        (self.root / name).parent.mkdir(exist_ok=True)
        (self.root / name).write_text(text)
        subprocess.run(["git", "add", "-f", name], cwd=self.root, check=True)

    def format(self, *arguments, path=os.environ["PATH"]):
        done = subprocess.run(["python3", self.root / "tools/format", *arguments], check=False,
                              capture_output=True, text=True, env={**os.environ, "PATH": path})
        return done.returncode, done.stdout + done.stderr

    def test_names_what_differs_and_mends_it(self):
        for i in range(40):  # More than one process has.
            self.write(f"good/{i}.cc", GOOD)
        self.assertEqual(self.format(), (0, "0 of 40 files differ\n"))
        for name in ("a b.h", "good/kernel.cu", "text.txt"):
            self.write(name, BAD)
        (self.root / "not_added.cc").write_text(BAD)
        (self.root / "good/0.cc").unlink()
        wrong = ": is not as clang-format 14 has it: tools/format --write\n"
        self.assertEqual(self.format(), (1, f"a b.h:2{wrong}good/kernel.cu:2{wrong}"
                                            "2 of 41 files differ\n"))
        self.assertEqual(self.format("--write"), (0, "2 of 41 files formatted\n"))
        self.assertEqual(self.format(), (0, "0 of 41 files differ\n"))
        self.assertEqual((self.root / "a b.h").read_text(),
                         GOOD + "int Bad() { return 2; }\nint Bad2() { return 2; }\n")
        for name in ("text.txt", "not_added.cc"):
            self.assertEqual((self.root / name).read_text(), BAD)

    def test_includes_are_looked_at_too(self):
        (self.root / "trainer").mkdir()
        self.write("trainer/b/a.h", "#define A 1\n")
        self.write("trainer/b/b.h", '#include "trainer/b/a.h"\n')
        self.assertEqual(self.format(), (1, "0 of 2 files differ\ntrainer/b/b.h:1: includes trainer/b/a.h, "
                                            "of which it uses nothing\n"))

    def test_another_version_is_no_answer(self):
        (self.root / "bin").mkdir()
        for name in ("python3", "git"):
            (self.root / "bin" / name).symlink_to(shutil.which(name))
        there_is_none = (2, "tools/format: there is no clang-format 14: tools/setup --tests installs it\n")
        self.assertEqual(self.format(path=str(self.root / "bin")), there_is_none)
        other = self.root / "bin/clang-format"
        other.write_text("#!/bin/sh\necho clang-format version 15.0.6\n")
        other.chmod(0o755)
        self.assertEqual(self.format(path=str(self.root / "bin")), there_is_none)

    def test_what_it_cannot_do_is_no_success(self):
        self.write(".clang-format", "BasedOnStyle: Nobody's\n")
        self.write("a.cc", GOOD)
        code, said = self.format()
        self.assertEqual(code, 1)
        self.assertIn("clang-format-14 failed: ", said)


if __name__ == "__main__":
    unittest.main()
