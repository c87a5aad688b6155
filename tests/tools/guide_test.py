#!/usr/bin/env python3
"""docs/guide.md as a reader types it: its files, its commands with fewer steps, and the output that it shows.

The words behind the ``` that begins a block say what the block is:
  sh            commands, typed in a directory that looks like the top of a clone
  text          lines that those commands print, in this order; numbers may be others
  text exact    the same with these numbers
  LANGUAGE FILE a file
  others        lines of docs/adding_a_model.md, which tools/new_model_test follows
A shown line may end with ... in place of its rest.
"""

import glob
import os
import pathlib
import py_compile
import re
import socket
import subprocess
import tempfile
import unittest

BINARY = pathlib.Path("cmd/fsdp-train").resolve()
ROOT = pathlib.Path(os.path.realpath("README.md")).parent
MODEL_PAGE = "docs/adding_a_model.md"
# Settings that shorten a run of each recipe: a later --set of the page's own still counts.
SHORTER = {
    "mine.yaml": ("train.steps=40", "eval={every: 20, steps: 4}", "checkpoint.every=20", "log.every=20"),
    "tune.yaml": ("train.steps=20", "eval={every: 10, steps: 4}", "log.every=10"),
    "talk.yaml": (),  # It is to learn its answers.
}
STEPS = {"train.steps=200": "train.steps=20"}  # The page's own.
UNIT = r"(?:m\d+s|[kMG](?![a-zA-Z])| ?(?:ms|us|s|[KMGT]i?B|B)\b)?"
NUMBER = re.compile(rf"(?<![A-Za-z\d])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?{UNIT}")


def form(line):
    """The part of a line that stays when its numbers, and the width of its columns, are others."""
    return " ".join(NUMBER.sub("#", line).split())


def matches(shown, line, of):
    if shown.endswith("..."):
        begin = of(shown[:-3])
        return of(line)[:len(begin)] == begin
    return of(line) == of(shown)


def blocks(section):
    return re.findall(r"^```([^\n]*)\n(.*?)^```$", section, flags=re.M | re.S)


def shortened(commands, port):
    commands = commands.replace("\\\n", " ").replace("29500", str(port))
    for old, new in STEPS.items():
        commands = commands.replace(old, new)

    def with_settings(match):
        return match[0] + "".join(f" --set '{setting}'" for setting in SHORTER[match[1]])

    return re.sub(r"fsdp-train (?:launch [^\n]*?-- )?--config (\S+)", with_settings, commands)


class Guide(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.page = (ROOT / "docs/guide.md").read_text()
        cls.sections = re.split(r"^(?=## )", cls.page, flags=re.M)
        cls.model_page = (ROOT / MODEL_PAGE).read_text()
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.clone = pathlib.Path(scratch.name)
        for name in ("configs", "docs", "tests", "tools"):
            (cls.clone / name).symlink_to(ROOT / name)
        (cls.clone / "bazel-bin/cmd").mkdir(parents=True)
        (cls.clone / "bazel-bin/cmd/fsdp-train").symlink_to(BINARY)
        cls.environment = {**os.environ, "PATH": f"{cls.clone}/bazel-bin/cmd:{os.environ['PATH']}",
                           "XDG_CACHE_HOME": str(cls.clone / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        with socket.create_server(("localhost", 0)) as server:
            cls.port = server.getsockname()[1]

    def typed(self, commands):
        result = subprocess.run(["bash", "-euo", "pipefail", "-c", shortened(commands, self.port)],
                                cwd=self.clone, env=self.environment, text=True, check=False,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(result.returncode, 0, f"{commands}\n{result.stdout}")
        return result.stdout

    def shows(self, text, output, of):
        lines = iter(output.splitlines())
        for shown in text.splitlines():
            if not any(matches(shown, line, of) for line in lines):
                self.fail(f"not printed, or not in this place:\n{shown}\nof\n{output}")

    def names(self, section):
        """Every path within a line of a section leads to a file, of the clone or of the runs."""
        lines = re.sub(r"```.*?^```$", "", section, flags=re.S | re.M)
        for name in re.findall(r"`([\w./{}*-]+)`", lines):
            if "/" in name:
                there = [*glob.glob(str(self.clone / name)), *glob.glob(str(ROOT / name))]
                self.assertTrue(there, f"{name} is not there")

    def follow(self, section):
        output = ""
        for kind, text in blocks(section):
            language, _, more = kind.partition(" ")
            if kind == "sh":
                output = self.typed(text)
            elif language == "text":
                self.shows(text, output, form if more != "exact" else str.rstrip)
            elif more:
                (self.clone / more).write_text(text)
                if language == "python":  # transformers is not here.
                    py_compile.compile(str(self.clone / more), cfile=str(self.clone / "compiled"), doraise=True)
            else:
                for line in text.splitlines():
                    self.assertIn("\n" + line.rstrip() + "\n", self.model_page, f"no line of {MODEL_PAGE}")
        self.names(section)

    def test_every_task_works(self):
        self.assertEqual(len(self.sections), 1 + 8)
        for section in self.sections:
            with self.subTest(section.splitlines()[0]):
                self.follow(section)

    def test_a_task_is_a_screen(self):
        for section in self.sections:
            self.assertLessEqual(len(section.splitlines()), 42, section.splitlines()[0])

    def test_what_counts_as_the_same_line(self):
        for shown, line, same in (
                ("step 500/500  loss 4.60  9.18 ms  5.8k tok/s", "step  20/20  loss 6.1  1.10 s  970 tok/s", True),
                ("done: 5 steps in 1m15s", "done: 500 steps in 20.1 s", True),
                ("all-gather      255 GiB", "all-gather      1.77 TiB", True),
                ("loss 4.60, perplexity 9", "loss 4.60, accuracy 9", False),
                ("does not fit: 9 GiB, ...", "does not fit: 7 GiB, and 5 are free", True)):
            self.assertEqual(matches(shown, line, form), same, shown)


if __name__ == "__main__":
    unittest.main()
