#!/usr/bin/env python3
"""tools/tidy in a repository of a few files, with a stand-in for Bazel."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

TIDY = pathlib.Path(os.getcwd()) / "tools" / "tidy"
FILES = {
    "trainer/data/a.h": "",
    "trainer/data/a.cc": '#include "trainer/data/a.h"\n',
    "trainer/ops/b.h": '#include "trainer/data/a.h"\n',
    "trainer/ops/cpu/b_cpu.cc": '#include "trainer/ops/b.h"\n',
    "cmd/main.cc": "#include <vector>\n",
    "models/m.cc": "",
    "docs/page.md": "",
    "trainer/data/BUILD.bazel": "",
    "trainer/ops/BUILD.bazel": "",
    "cmd/BUILD.bazel": "",
    "models/BUILD.bazel": "",
    ".clang-tidy": "",
}
# A query answers with what it was asked about; a build ends as the variable says.
BAZEL = """#!/bin/bash
echo "$@" >>"$CALLS"
case $1 in
  query) echo "//found:it" ;;
  build) exit "${STATUS:-0}" ;;
esac
"""


class TidyTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name) / "repository"
        for name, text in FILES.items():
            self.write(name, text)
        (self.root / "tools").mkdir()
        for name in ("tidy", "code_text.py"):
            shutil.copy(TIDY.with_name(name), self.root / "tools" / name)
        tools = pathlib.Path(scratch.name) / "bin"
        tools.mkdir()
        (tools / "bazel").write_text(BAZEL, "utf-8")
        (tools / "bazel").chmod(0o755)
        self.calls = pathlib.Path(scratch.name) / "calls"
        self.environment = {**os.environ, "PATH": f"{tools}:/usr/bin:/bin", "CALLS": str(self.calls),
                            "HOME": scratch.name, "GIT_CONFIG_NOSYSTEM": "1"}
        for name in ("AUTHOR", "COMMITTER"):
            self.environment |= {f"GIT_{name}_NAME": "a", f"GIT_{name}_EMAIL": "a@b"}
        self.git("init", "-q")
        self.commit()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def git(self, *arguments):
        return subprocess.run(["git", *arguments], cwd=self.root, env=self.environment, check=True,
                              capture_output=True, text=True).stdout.strip()

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-qm", "x")
        return self.git("rev-parse", "HEAD")

    def tidy(self, *arguments, status=0):
        """Exit status, and Bazel's calls."""
        self.calls.write_text("", "utf-8")
        done = subprocess.run([self.root / "tools" / "tidy", *arguments], cwd=self.root, check=False,
                              env={**self.environment, "STATUS": str(status)}, capture_output=True,
                              text=True)
        return done.returncode, self.calls.read_text("utf-8").splitlines()

    def record(self):
        self.assertEqual(self.tidy("--record")[0], 0)
        self.commit()

    def asked(self, *arguments):
        """The sources that are read again; None: all."""
        status, calls = self.tidy(*arguments)
        self.assertEqual(status, 0)
        if not calls:
            return set()
        if calls == ["build --config=tidy --keep_going //cmd/... //models/... //trainer/..."]:
            return None
        self.assertEqual(calls[1:], ["build --config=tidy --keep_going //found:it"])
        inner = calls[0].split("set(")[1].split(")")[0]
        return set(inner.split())

    def test_a_comment_is_not_read_again(self):
        self.write("trainer/data/a.h", 'const char* a = "//";  // A name.\nint f(int);\n')
        self.commit()
        self.record()
        self.write("trainer/data/a.h", 'const char* a = "//";  // The name.\n// Says it.\nint f(int);\n')
        self.assertEqual(self.tidy(), (0, []))
        self.write("trainer/data/a.h",
                   '/* All. */\nconst char* a =\n    "//";  // A name of some length.\nint f(int);\n')
        self.assertEqual(self.tidy(), (0, []))
        for text in ('const char* a = "///";  // A name.\nint f(int);\n',
                     'const char* a = "//";  // NOLINT\nint f(int);\n',
                     'const char* a = "//";  // A name.\nint f(int /*n*/);\n'):
            self.write("trainer/data/a.h", text)
            self.assertEqual(len(self.tidy()[1]), 2, text)

    def test_reads_all_where_it_knows_of_no_commit(self):
        self.assertIsNone(self.asked())
        self.write("tools/tidy_base", "0123456789abcdef0123456789abcdef01234567\n")
        self.assertIsNone(self.asked())

    def test_reads_what_has_changed_and_what_includes_it(self):
        self.record()
        self.assertEqual(self.asked(), set())
        self.write("docs/page.md", "more")
        self.assertEqual(self.asked(), set())
        self.write("cmd/main.cc", "int main() {}\n")
        self.write("models/new.cc", "")  # Not known to git.
        self.assertEqual(self.asked(), {"//cmd:main.cc", "//models:new.cc"})
        self.commit()
        self.assertEqual(self.asked(), {"//cmd:main.cc", "//models:new.cc"})
        self.record()
        self.write("trainer/data/a.h", "int a;\n")
        self.assertEqual(self.asked(), {"//trainer/data:a.cc", "//trainer/ops:cpu/b_cpu.cc"})
        (self.root / "trainer/data/a.cc").unlink()
        self.assertEqual(self.asked(), {"//trainer/ops:cpu/b_cpu.cc"})

    def test_reads_all_where_the_checks_are_others(self):
        self.record()
        self.assertIsNone(self.asked("--all"))
        self.write(".clang-tidy", "# Of errors.\n")
        self.assertEqual(self.asked(), set())
        self.write(".clang-tidy", "Checks: -*")
        self.assertIsNone(self.asked())

    def test_records_only_what_it_has_read(self):
        self.write("docs/page.md", "not committed")
        self.assertNotEqual(self.tidy("--record")[0], 0)
        self.assertFalse((self.root / "tools/tidy_base").exists())
        commit = self.commit()
        self.assertEqual(self.tidy("--record", status=1)[0], 1)
        self.assertFalse((self.root / "tools/tidy_base").exists())
        self.assertEqual(self.tidy("--record", "--noshow_progress")[1],
                         ["build --config=tidy --keep_going --noshow_progress //cmd/... //models/... //trainer/..."])
        self.assertEqual((self.root / "tools/tidy_base").read_text("utf-8"), commit + "\n")

    def test_says_what_clang_tidy_says(self):
        self.assertEqual(self.tidy(status=3)[0], 3)


if __name__ == "__main__":
    unittest.main()
