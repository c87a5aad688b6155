#!/usr/bin/env python3
"""tools/mutations on a tree of its own, with a stand-in for Bazel that knows three words."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path("tools/mutations").resolve()

# BROKEN makes a test fail, SYNTAX keeps it from being built, TORN breaks Bazel itself.
BAZEL = """#!/bin/sh
echo "$@" >>"$HOME/calls"
grep -rqs TORN trainer && exit 37
grep -rqs SYNTAX trainer && exit 1
grep -rqs BROKEN trainer && exit 3 || exit 0
"""
SOURCE = "int One();\nint Two();\nint Again();\nint Two();\n"
FILES = {"trainer/fsdp/x.cc": SOURCE, "trainer/fsdp/y.cc": SOURCE,
         "tests/suite.h": "#define SUITE(suite, name) \\\n  INSTANTIATE_TEST_SUITE_P(name, suite, 1)\n",
         "tests/trainer/fsdp/x_test.cc":
             '#include "tests/suite.h"\nTEST(X, Adds) {}\nTEST_P(Y, Adds) {}\nSUITE(Y, Small);\n',
         "tests/trainer/fsdp/y_test.py": "class C(T):\n    def test_c1(self):\n"}
TOOLS, TEST = ("mutations", "test_names.py", "tree_copy.py"), "//tests/trainer/fsdp:x_test"


def entry(name, old="int One();", new="int BROKEN();", **changes):
    keys = {"promise": "5.1", "test": TEST, "filter": "X.*", "old": old, "new": new, **changes}
    return name + " = {" + ", ".join(f"{key} = '''\n{value}'''" if key in ("old", "new") else f"{key} = {value!r}"
                                     for key, value in keys.items() if value is not None) + "}\n"


class Mutations(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root, self.calls = (pathlib.Path(directory.name) / name for name in ("tree", "calls"))
        self.environment = {**os.environ, "PATH": f"{directory.name}:/usr/bin:/bin",
                            "XDG_CACHE_HOME": f"{directory.name}/cache", "HOME": directory.name,
                            "GIT_CONFIG_GLOBAL": "/dev/null", "PYTHONDONTWRITEBYTECODE": "1"}
        self.write("../bazel", BAZEL).chmod(0o755)
        tools = {f"tools/{name}": PROGRAM.with_name(name).read_text() for name in TOOLS}
        for path, text in {**FILES, **tools}.items():
            self.write(path, text)
        subprocess.run(["git", "init", "-q"], cwd=self.root, env=self.environment, check=True)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)
        return self.root / path

    def entries(self, *entries, room="fsdp", file="trainer/fsdp/x.cc"):
        self.write(f"tests/mutations/{room}.toml", f'["{file}"]\n' + "".join(entries))

    def run_with(self, *arguments):
        result = subprocess.run([sys.executable, self.root / "tools/mutations", *arguments],
                                env=self.environment, capture_output=True, text=True, check=False)
        return result.returncode, result.stdout + result.stderr

    def check(self, *problems):
        """--check finds these, each in a line of its own, and nothing else."""
        code, output = self.run_with("--check")
        for problem in problems:
            self.assertTrue(any(re.search(problem, line) for line in output.splitlines()), f"{problem}:\n{output}")
        self.assertEqual((code, len(output.splitlines())), (1, len(problems)), output)

    def test_texts_that_are_not_found_once(self):
        self.entries(entry("good", old="int Again();\nint Two();\n", new=""), entry("twice", old="int Two();"),
                     entry("never", old="int Three();"), entry("part", old="One();"), entry("empty", old=""),
                     entry("idle", new="int One();"))
        self.entries(entry("gone"), room="loop", file="trainer/loop/z.cc")
        self.check(r"fsdp.toml: twice: trainer/fsdp/x.cc: text found 2 times, want once: int Two\(\);",
                   "never: .* found 0 times", "part: .* found 0 times", "empty: .* found 0 times",
                   "idle: .*new text is the old one", "loop.toml: gone: trainer/loop/z.cc: No such file")

    def test_mistakes_of_form_name_file_and_entry(self):
        self.entries(entry("key", filters="X.*"), entry("less", filter=None), entry("section", promise="bits"),
                     "flat = 'x'\n", entry("same"), entry("none", old=None, new=None, edits=[]))
        self.entries(entry("same"), room="loop", file="trainer/fsdp/y.cc")
        self.write("tests/mutations/comm.toml", "a = {\n")
        self.check(r"fsdp.toml: key: unknown key `filters`", r"fsdp.toml: less: no `filter`",
                   r"fsdp.toml: section: promise bits", r"fsdp.toml: flat: no table", r"none: `edits` is no list",
                   r"fsdp.toml, .*loop.toml: same: name used 2 times", r"loop.toml: same: belongs into fsdp.toml",
                   r"comm.toml: .*line 1")

    def test_filters_that_choose_nothing(self):
        some = ("X.*", "*/Y.Adds*", "Small/Y.Adds/0", "X*", "X.Adds:Small/Y.*", "*Adds*", "*", "Z.*",
                "X.Adds:X.Subtracts", "Large/Y.*")
        python = {"test": "//tests/trainer/fsdp:y_test"}
        self.entries(*(entry(f"m{i}", filter=chosen) for i, chosen in enumerate(some)),
                     *(entry(f"p{i}", filter=chosen, **python) for i, chosen in
                       enumerate(("*", "test_c1", "*.C.*", "*test_d*", "C.*"))),
                     entry("all", test="//tests/trainer/fsdp:tests"), entry("z", test="//tests/trainer/fsdp:z_test"))
        self.check(r"m5: filter \*Adds\* names no suite", "m6: filter . names no suite", "m7: .* no case Z", "m8: .* X.S",
                   "m9: .* no case Large", "p3: .* no case", "p4: .* no case C..", "z: no such test")

    def test_several_edits(self):
        whole = f'a = {{promise = "5.1", test = "{TEST}", filter = "X.*", edits = [{{old = "int Again();", new = ""}}, '
        self.entries(whole + '{file = "trainer/fsdp/y.cc", old = "int One();", new = "BROKEN"}]}')
        self.assertEqual(self.run_with("a")[0], 0)
        self.entries(whole + '{old = "int Again();\\nint Two();", new = ""}]}')
        self.check("a: trainer/fsdp/x.cc: two edits overlap")

    def test_shares_are_disjoint_and_complete(self):
        self.entries(*(entry(f"m{i}") for i in range(7)))
        everything = self.run_with("--list")[1].splitlines()
        for n in (1, 3, 9):
            shares = [self.run_with("--list", "--part", f"{i}/{n}")[1].splitlines() for i in range(1, n + 1)]
            self.assertEqual((sum(shares, []), len(everything)), (everything, 7))
        self.assertEqual(self.run_with("--list", "--part", "3/2")[0], 2)

    def test_verdicts(self):
        self.entries(entry("seen"), entry("unseen", new="int Nine();"), entry("unbuilt", new="SYNTAX"),
                     entry("torn", new="TORN"))
        code, output = self.run_with("--xml", str(self.root / "xml"))
        self.assertEqual(code, 1)
        for verdict in (r"seen +5.1 +noticed", "unseen .*NOT NOTICED", "unbuilt .*does not build",
                        "torn .*bazel exit status 37", r"\n1 noticed, 1 not noticed, 2 not run\n\Z"):
            self.assertRegex(output, verdict)
        self.assertEqual((self.root / "xml").read_text().count("<failure"), 3)
        self.assertEqual((self.run_with("seen")[0], self.run_with("sen")[0]), (0, 2))
        self.write("trainer/fsdp/y.cc", "BROKEN")  # A tree that fails by itself notices nothing.
        code, output = self.run_with("seen")
        self.assertEqual(code, 1)
        self.assertRegex(output, r"fails unmutated(.|\n)*\n0 noticed, 0 not noticed, 1 not run\n")

    def test_cases_are_chosen_and_the_first_failure_ends_them(self):
        self.entries(entry("a"), entry("b", filter="*/Y.*"),
                     entry("c", filter="*test_c*", test="//tests/trainer/fsdp:y_test"))
        self.assertEqual(self.run_with()[0], 0)
        chosen = ("--test_filter=*/Y.*:X.* ", "--test_filter=X.* ", "--test_filter=*/Y.* ", *["-k=*test_c* "] * 2)
        for call, chosen in zip(self.calls.read_text().splitlines(), chosen, strict=True):
            self.assertIn(chosen, call)
            self.assertIn("--test_arg=--failfast" if "-k=" in call else
                          "--test_runner_fail_fast --test_output=errors --test_filter", call)
            self.assertTrue("-k=" in call or "--test_env=FSDP_TRAIN_TEST_EVERY_PATTERN=1" in call)

    def test_workers_share_them(self):
        self.entries(*(entry(f"m{i}") for i in range(40)))
        code, output = self.run_with("--workers", "3")
        self.assertEqual((code, output.count(" noticed  "), self.calls.read_text().count("\n")), (0, 40, 43), output)


if __name__ == "__main__":
    unittest.main()
