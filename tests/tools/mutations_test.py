#!/usr/bin/env python3
"""tools/mutations on a tree of its own, with a stand-in for Bazel that knows three words."""

import datetime
import os
import pathlib
import re
import shutil
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
grep -rqs BROKEN trainer && exit 3
exit 0
"""
SOURCE = "int One() { return 1; }\nint Two() { return 2; }\nint Again() { return 2; }\n"
TODAY = datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def entry(name, old="return 1;", new="return BROKEN;", **changes):
    keys = {"name": name, "promise": "5.1", "file": "trainer/fsdp/x.cc", "old": old, "new": new,
            "test": "//tests/trainer/fsdp:x_test", "filter": "X.*", **changes}
    lines = "".join(f"{key} = '''\n{value}'''\n" for key, value in keys.items() if value is not None)
    return f"[[mutation]]\n{lines}\n"


class Mutations(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name) / "tree"
        self.page = self.root / "tests/mutations.md"
        self.environment = {**os.environ, "PATH": f"{directory.name}:/usr/bin:/bin",
                            "XDG_CACHE_HOME": f"{directory.name}/cache", "HOME": directory.name,
                            "GIT_CONFIG_GLOBAL": "/dev/null", "PYTHONDONTWRITEBYTECODE": "1"}
        bazel = pathlib.Path(directory.name) / "bazel"
        bazel.write_text(BAZEL)
        bazel.chmod(0o755)
        self.write("trainer/fsdp/x.cc", SOURCE)
        self.write("trainer/fsdp/y.cc", SOURCE)
        self.write("tests/trainer/fsdp/BUILD.bazel", "")
        self.write("tests/trainer/fsdp/x_test.cc", "")
        self.write("docs/design.md", "")
        (self.root / "tools").mkdir()
        for file in (PROGRAM, PROGRAM.parent / "tree_copy.py"):
            shutil.copy(file, self.root / "tools")
        self.git("init", "-q")
        self.commit()

    def write(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def entries(self, *entries, room="fsdp"):
        self.write(f"tests/mutations/{room}.toml", "".join(entries))

    def git(self, *arguments):
        return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
                              cwd=self.root, env=self.environment, check=True, text=True,
                              capture_output=True).stdout.strip()

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "a")
        return self.git("rev-parse", "--short=10", "HEAD")

    def run_with(self, *arguments):
        result = subprocess.run([sys.executable, self.root / "tools/mutations", *arguments],
                                env=self.environment, capture_output=True, text=True, check=False)
        return result.returncode, result.stdout + result.stderr

    def check(self, *problems):
        """--check finds these, each in a line of its own, and nothing else."""
        code, output = self.run_with("--check")
        self.assertEqual(code, 1, output)
        lines = output.splitlines()
        for problem in problems:
            self.assertTrue(any(re.search(problem, line) for line in lines), f"{problem}:\n{output}")
        self.assertEqual(len(lines), len(problems), output)

    def rows(self):
        """Name: (verdict, commit, date)."""
        lines = [line for line in self.page.read_text().splitlines() if line.startswith("| ")][1:]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        return {row[0]: tuple(row[3:6]) for row in cells}

    def test_a_list_without_mistakes(self):
        self.entries(entry("a"), entry("b", old="int Again() { return 2; }\n", new=""))
        self.assertEqual(self.run_with("--check"), (0, "2 mutations can be applied\n"))

    def test_every_text_that_is_not_found_once_is_named(self):
        self.entries(entry("twice", old="return 2;"), entry("good"),
                     entry("never", old="return 3;"), entry("empty", old=""),
                     entry("gone", file="trainer/fsdp/z.cc"))
        self.check(r"fsdp.toml: twice: trainer/fsdp/x.cc: text found 2 times, want once: return 2;",
                   r"fsdp.toml: never: trainer/fsdp/x.cc: text found 0 times, want once: return 3;",
                   r"fsdp.toml: empty: trainer/fsdp/x.cc: text found 0 times",
                   r"fsdp.toml: gone: trainer/fsdp/z.cc: No such file")

    def test_mistakes_of_the_list(self):
        self.entries(entry("same"), entry("same"), entry("key", filters="X.*"),
                     entry("less", promise=None), entry("idle", new="return 1;"),
                     entry("section", promise="bits"),
                     entry("test", test="//tests/trainer/fsdp:y_test"),
                     entry("label", test="tests/trainer/fsdp/x_test"))
        self.entries(entry("elsewhere"), room="loop")
        self.write("tests/mutations/notes.txt", "")
        self.write("tests/mutations/comm.toml", "[[mutation]\n")
        self.check(r"fsdp.toml, .*fsdp.toml: same: name used 2 times",
                   r"fsdp.toml: key: unknown key `filters`", r"fsdp.toml: less: no `promise`",
                   r"idle: .*new text is the old one", r"section: promise bits",
                   r"test: no such test: //tests/trainer/fsdp:y_test", r"label: no such test",
                   r"loop.toml: elsewhere: belongs into fsdp.toml", r"notes.txt: no .toml file",
                   r"comm.toml: .*line 1")

    def test_tests_that_a_macro_makes(self):
        self.write("tests/trainer/fsdp/BUILD.bazel", 'cc_test(name = "named_test")\n')
        for name in ("x_emulated_test", "named_test"):
            self.entries(entry("a", test=f"//tests/trainer/fsdp:{name}"))
            self.assertEqual(self.run_with("--check")[0], 0, name)

    def test_several_places(self):
        edit = "[[mutation.edit]]\nfile = 'trainer/fsdp/{}.cc'\nold = '{}'\nnew = '{}'\n"
        whole = entry("a", file=None, old=None, new=None)
        self.entries(whole, edit.format("x", "1;", "4;"), edit.format("y", "int Two", "int BROKEN"))
        self.assertEqual(self.run_with("a")[0], 0)
        self.entries(whole, edit.format("x", "One() {", "O() {"), edit.format("x", "{ return 1", "{ 1"))
        self.check("a: trainer/fsdp/x.cc: two edits overlap")
        self.entries(entry("a"), edit.format("x", "1;", "4;"))
        self.check("a: unknown key `file`, unknown key `old`, unknown key `new`")

    def test_shares_are_disjoint_and_complete(self):
        self.entries(*(entry(f"m{i}") for i in range(7)))
        everything = self.run_with("--list")[1].splitlines()
        self.assertEqual(len(everything), 7)
        for n in (1, 2, 3, 7, 9):
            shares = [self.run_with("--list", "--part", f"{i}/{n}")[1].splitlines()
                      for i in range(1, n + 1)]
            self.assertEqual(sum(shares, []), everything)
            self.assertLessEqual(max(map(len, shares)) - min(map(len, shares)), 1)
        for part in ("0/2", "3/2", "1", "1/0"):
            self.assertEqual(self.run_with("--list", "--part", part)[0], 2, part)

    def test_verdicts(self):
        self.entries(entry("seen"), entry("unseen", new="return 9;"), entry("unbuilt", new="SYNTAX"))
        code, output = self.run_with()
        self.assertEqual(code, 1)
        for verdict in (r"seen +5.1 +noticed", "unseen .*NOT NOTICED", "unbuilt .*does not build",
                        "1 of 3 mutations noticed"):
            self.assertRegex(output, verdict)
        self.assertEqual(self.run_with("seen")[0], 0)
        self.assertEqual(self.run_with("sen")[0], 2)
        self.assertFalse(self.page.exists())

    def test_a_tree_that_fails_by_itself_gives_no_verdict(self):
        self.entries(entry("a"))
        self.write("trainer/fsdp/y.cc", "BROKEN")
        code, output = self.run_with("--record")
        self.assertEqual(code, 1)
        self.assertIn("fails unmutated", output)
        self.assertFalse(self.page.exists())

    def test_what_says_nothing_of_a_mutation_is_no_verdict(self):
        self.entries(entry("torn", new="TORN"))
        code, output = self.run_with("--record")
        self.assertEqual(code, 1)
        self.assertIn("bazel exit status 37", output)
        self.assertFalse(self.page.exists())

    def test_cases_are_chosen_and_the_first_failure_ends_them(self):
        self.write("tests/trainer/fsdp/y_test.py", "class C(T):\n    def test_c1(self):\n")
        python = {"test": "//tests/trainer/fsdp:y_test"}
        self.entries(entry("a"), entry("b", filter="Y.*"), entry("c", filter="*test_c*", **python))
        self.assertEqual(self.run_with()[0], 0)
        calls = (self.root.parent / "calls").read_text().splitlines()
        for call, chosen in zip(calls, ("--test_filter=X.*:Y.* ", "--test_filter=X.* ",
                                        "--test_filter=Y.* ", "--test_arg=-k=*test_c* ",
                                        "--test_arg=-k=*test_c* "), strict=True):
            self.assertIn(chosen, call)
            self.assertIn("--test_arg=--failfast" if "-k=" in call else "--test_runner_fail_fast", call)

    def test_a_case_that_there_is_not(self):
        self.write("tests/trainer/fsdp/y_test.py", "class C(T):\n    def test_c1(self):\n")
        python = {"test": "//tests/trainer/fsdp:y_test"}
        self.entries(*(entry(f"m{i}", filter=pattern, **python) for i, pattern in
                       enumerate(("*", "*test_c*", "*.C.*", "test_c1", "*test_d*", "C.*"))))
        self.check("m4: //tests/trainer/fsdp:y_test has no case .test_d.", "m5: .* has no case C..")
        self.entries(entry("a"))
        self.assertEqual(self.run_with()[0], 0)
        self.assertIn("--test_env=FSDP_TRAIN_TEST_EVERY_PATTERN=1",
                      (self.root.parent / "calls").read_text())

    def test_workers_share_the_tests(self):
        tests = [f"//tests/trainer/fsdp:x{i}_test" for i in range(6)]
        for test in tests:
            self.write(f"tests/trainer/fsdp/{test.split(':')[1]}.cc", "")
        self.entries(*(entry(f"{name}{i}", test=test) for i, test in enumerate(tests) for name in "ab"))
        code, output = self.run_with("--workers", "3", "--record")
        self.assertEqual(code, 0, output)
        self.assertIn("12 of 12 mutations noticed", output)
        self.assertEqual({row[0] for row in self.rows().values()}, {"noticed"})

    def test_records_of_shares_merge(self):
        self.entries(*(entry(name) for name in "abc"), entry("d", new="return 9;"))
        first = self.commit()
        self.run_with("--record", "--part", "1/2")
        never = ("not run", "", "")
        self.assertEqual(self.rows(), {"a": ("noticed", first, TODAY), "b": ("noticed", first, TODAY),
                                       "c": never, "d": never})
        self.assertIn(f"4 mutations: 2 noticed (2 at {first}), 2 not run.", self.page.read_text())
        second = self.commit()
        self.run_with("--record", "--part", "2/2")
        self.assertEqual(self.rows(), {"a": ("noticed", first, TODAY), "b": ("noticed", first, TODAY),
                                       "c": ("noticed", second, TODAY),
                                       "d": ("NOT NOTICED", second, TODAY)})
        self.assertIn("3 noticed (", self.page.read_text())

    def test_a_page_without_a_run(self):
        self.entries(entry("a"), entry("b"))
        self.assertEqual(self.run_with("--check", "--record")[0], 0)
        self.assertEqual(self.rows(), {name: ("not run", "", "") for name in "ab"})
        self.assertIn("2 mutations: 0 noticed, 2 not run.", self.page.read_text())

    def test_gone_and_changed_mutations_lose_their_verdict(self):
        self.entries(entry("a"), entry("b"), entry("c"))
        self.run_with("--record")
        self.entries(entry("a"), entry("c", new="return BROKEN + 1;"), entry("d"))
        self.run_with("--record", "d")
        rows = self.rows()
        self.assertEqual([(name, row[0]) for name, row in rows.items()],
                         [("a", "noticed"), ("c", "not run"), ("d", "noticed")])
        self.assertTrue(rows["d"][1].endswith("+"))  # The list itself is not committed.


if __name__ == "__main__":
    unittest.main()
