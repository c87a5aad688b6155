#!/usr/bin/env python3
"""Every source has a test at its own path, or its header names the one that it has in a line
`// Tests: tests/...`; every test has to do with its room.

Sources and tests are read where docs/design.md really lies: never cached.
"""

import builtins
import collections
import functools
import os
import pathlib
import re
import unittest

ROOT = pathlib.Path(os.path.realpath("docs/design.md")).parent.parent
LINE = re.compile(r"^// Tests: (.+)$", re.M)
# Tests of what documents of others say, which rooms build on.
OF_LIBRARIES = {"tests/trainer/comm/nccl_rules_test.cc", "tests/trainer/ops/cublaslt_rules_test.cc"}


@functools.cache
def files(top):
    return frozenset(path.relative_to(ROOT).as_posix() for path in (ROOT / top).rglob("*")
                     if path.suffix in (".cc", ".cu", ".h"))


@functools.cache
def text(path):
    return (ROOT / path).read_text()


@functools.cache
def includes(path):
    return tuple(re.findall(r'^#include "([^"]+)"$', text(path), re.M))


@functools.cache
def definitions():
    """By header, the sources that define what it declares: of its name, or they include it first, or it declares
    kernels, and they include it."""
    found = collections.defaultdict(set)
    for top in ("models", "trainer", "tests"):
        for path in files(top):
            if path.endswith((".cc", ".cu")) and not path.endswith("_test.cc"):
                found[path.rsplit(".", 1)[0] + ".h"].add(path)
                found[next(iter(includes(path)), None)].add(path)
                for header in includes(path):
                    if header.endswith("_backends.h"):
                        found[header].add(path)
    return found


def reached(*starts):
    """The files that are compiled or linked for these, as far as includes tell."""
    seen, todo = set(starts), list(starts)
    while todo:
        path = todo.pop()
        for more in (*includes(path), *(definitions()[path] if path.endswith(".h") else ())):
            if more not in seen and (ROOT / more).exists():
                seen.add(more)
                todo.append(more)
    return seen


@functools.cache
def reached_by(test):
    """The test, with the programs beside it: it starts them."""
    beside = [path for path in files("tests") if path.rsplit("/", 1)[0] == test.rsplit("/", 1)[0]
              and re.search(r"^int main\(", text(path), re.M)]
    return reached(test, *beside)


def sources():
    """Path without suffix -> suffixes."""
    found = collections.defaultdict(set)
    for path in files("models") | files("trainer"):
        stem, suffix = path.rsplit(".", 1)
        found[stem].add(suffix)
    return found


def test_at_its_path(stem):
    """An op's kernels, cpu/x_cpu and cuda/x_cuda, have the op's."""
    op = re.sub(r"/(cpu|cuda)/(?:\w+/)?(\w+)_\1$", r"/\2", stem)
    return any(f"tests/{name}_test.cc" in files("tests") for name in (stem, op))


def sources_of(build):
    """The sources that a BUILD file's rules compile, as tools/bazel/tests.bzl finds them. Starlark is Python."""
    folder = build.parent
    found = set()

    def glob(patterns, exclude=()):
        names = {path.relative_to(folder).as_posix() for pattern in patterns for path in folder.glob(pattern)}
        return sorted(name for name in names
                      if not any(pathlib.PurePath(name).match(pattern) for pattern in exclude))

    def rule(*names, srcs=None, **_):
        found.update([f"{names[0]}.cc"] if srcs is None and names else srcs or ())

    def room_tests(srcs=None, folders=(), **_):
        rule(srcs=glob(["*_test.cc", *(f"{inner}/*_test.cc" for inner in folders)]) if srcs is None else srcs)

    class Names(dict):
        def __missing__(self, name):
            if hasattr(builtins, name):
                return getattr(builtins, name)
            return rule if name in ("alone_test", "test_library", "cc_library", "cc_test") else lambda *_, **__: []

    exec(build.read_text(), Names(glob=glob, room_tests=room_tests))
    return {f"{folder.relative_to(ROOT).as_posix()}/{name}" for name in found}


class NamedTests(unittest.TestCase):
    def test_every_source_has_a_test(self):
        found = sources()
        self.assertGreater(len(found), 400)
        for stem, suffixes in sorted(found.items()):
            source = f"{stem}.{'h' if 'h' in suffixes else min(suffixes)}"
            lines = LINE.findall(text(source))
            with self.subTest(source=source):
                self.assertTrue(lines or test_at_its_path(stem), "name its test: // Tests: tests/...")
                for test in lines:
                    self.assertTrue(test in files("tests"), f"there is no {test}")
                    if source.endswith(".h") and not test.startswith("tests/e2e/"):
                        self.assertTrue(source in reached_by(test), f"{test} does not use it")

    def test_every_test_is_built(self):
        built = {source for build in (ROOT / "tests").rglob("BUILD.bazel") for source in sources_of(build)}
        tests = {path for path in files("tests") if path.endswith("_test.cc")}
        self.assertGreater(len(tests), 300)
        self.assertEqual(tests - built, set())

    def test_a_line_stands_in_the_header(self):
        for stem, suffixes in sources().items():
            for suffix in suffixes - {"h"} if "h" in suffixes else ():
                self.assertEqual(LINE.findall(text(f"{stem}.{suffix}")), [], f"{stem}.{suffix}")

    def test_a_test_has_to_do_with_its_room(self):
        seen = 0
        for test in sorted(files("tests")):
            room = re.match(r"tests/(models|trainer/\w+)/.*_test\.cc$", test)
            if room is None or test in OF_LIBRARIES:
                continue
            seen += 1
            with self.subTest(test=test):
                self.assertTrue(any(path.startswith(room[1] + "/") for path in reached(test)),
                                f"it uses nothing of {room[1]}/")
        self.assertGreater(seen, 150)


if __name__ == "__main__":
    unittest.main()
