#!/usr/bin/env python3
"""The floors of docs/design.md, section 1, and visibility, against what targets depend on and
tests include.

BUILD files and tests are read where docs/design.md really lies: never cached.
"""

import os
import pathlib
import re
import unittest

ROOT = pathlib.Path(os.path.realpath("docs/design.md")).parent.parent
DESIGN = pathlib.Path("docs/design.md").read_text()
GRAPH = pathlib.Path("tests/tools/graph").read_text()


def floors():
    """Rooms with code, top floor first."""
    plan = re.search(r"^## 1\..*?```\n(.*?)```", DESIGN, flags=re.S | re.M).group(1)
    rooms = re.findall(r"^(cmd|models|trainer/\w+)/ ", plan, flags=re.M)
    return rooms


def room_of(label, rooms):
    """The room that a package or one of its sub-packages stands in."""
    package = package_of(label)
    for room in rooms:
        if package == room or package.startswith(room + "/"):
            return room
    return None


def edges():
    for user, used in re.findall(r'^  "([^"\n]+)" -> "([^"\n]+)"$', GRAPH, flags=re.M):
        if user.startswith("//"):
            yield user, used


def functions_of(lines):
    """The functions of formatted C++: first line, and number of lines."""
    for indent in ("", "  "):
        start = None
        for at, line in enumerate(lines):
            if start is None and re.match(indent + r"[A-Za-z~].*\(", line) and not line.endswith(";"):
                start = at
            elif start is not None and line.startswith(indent + "}"):
                yield lines[start], at - start + 1
                start = None
            elif start is not None and line.endswith(";") and not line.startswith(indent + "  "):
                start = None


def package_of(label):
    return label.removeprefix("//").split(":")[0]


def shown_to(package):
    """The package's default_visibility."""
    build = (ROOT / package / "BUILD.bazel").read_text()
    entries = re.search(r"^package\(default_visibility = \[(.*?)\]\)$", build, re.S | re.M)[1]
    return re.findall(r'"(.+?)"', entries)


def includes_of_tests():
    """Pairs of paths: a test or its harness that lies with a room, and what it includes."""
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.suffix in (".cc", ".h"):
            for included in re.findall(r'^#include "([^"]+)"$', path.read_text(), flags=re.M):
                yield path.relative_to(ROOT / "tests"), pathlib.PurePath(included)


def families():
    """The list of models/BUILD.bazel."""
    build = (ROOT / "models/BUILD.bazel").read_text()
    listed = re.search(r"model_families\(.*?families = \[(.*?)\]", build, re.S)[1]
    return re.findall(r'"(.+?)"', listed)


# Formats that are called so by those who made them: token files of llm.c, tokenizer.json.
NAMED_BY_A_FORMAT = {"trainer/data/token_file.cc", "trainer/data/hf_tokenizer_file.cc",
                     "trainer/data/hf_tokenizer.h"}


class Floors(unittest.TestCase):
    def test_families_are_named_in_their_folders_alone(self):
        self.assertGreater(len(families()), 1)
        name = re.compile(rf"(?<![a-z])({'|'.join(families())})(?![a-z])", re.I)
        for top in ("cmd", "models", "trainer"):
            for path in sorted((ROOT / top).rglob("*")):
                here = path.relative_to(ROOT)
                if path.suffix not in (".h", ".cc", ".cu") or here.as_posix() in NAMED_BY_A_FORMAT:
                    continue
                if here.parts[0] == "models" and here.parts[1] in families():
                    continue
                with self.subTest(path=str(here)):
                    self.assertIsNone(name.search(path.read_text()))

    def test_the_runtime_knows_no_text(self):
        """The model says what a batch is made of; the words left are those of formats."""
        formats = re.compile(r'"tokens(_per_s)?"|\btokens = 0;  // Target tokens seen|meta\.tokens\b')
        found = []
        for room in ("fsdp", "engine", "autograd", "checkpoint"):
            paths = [p for p in (ROOT / "trainer" / room).rglob("*") if p.suffix in (".cc", ".h")]
            self.assertGreater(len(paths), 5)
            for path in paths:
                found += [f"{path.name}: {line}" for line in path.read_text().splitlines()
                          if re.search("vocab|token|seq_len", formats.sub("", line), re.I)]
        self.assertEqual(found, [])

    def test_every_room_plants_mistakes_for_the_sanitizers(self):
        listed = (ROOT / "tests/sanitizers/BUILD.bazel").read_text()
        for room in floors():
            with self.subTest(room=room):
                self.assertIn(f'"{room.removeprefix("trainer/")}"', listed)

    def test_every_package_takes_precompiled_headers(self):
        for room in ("cmd", "models", "trainer"):
            for package in sorted((ROOT / room).rglob("BUILD.bazel")):
                text = package.read_text()
                if "\ncc_library(" in text:
                    with self.subTest(package=str(package.relative_to(ROOT))):
                        self.assertRegex(text, r'load\("//tools/bazel:cc.bzl",.* "cc_library"')

    def test_every_package_stands_in_a_room(self):
        rooms = floors()
        self.assertGreater(len(rooms), 15)
        self.assertEqual(len(rooms), len(set(rooms)), "a room is listed twice")
        labels = {label for edge in edges() for label in edge if label.startswith("//")}
        self.assertGreater(len(labels), 150)
        strays = {label for label in labels if room_of(label, rooms) is None}
        self.assertEqual({label for label in strays if not label.startswith("//tools/")}, set())

    def test_a_room_uses_only_rooms_below_it(self):
        rooms = floors()
        for user, used in edges():
            above, below = room_of(user, rooms), room_of(used, rooms)
            if above is None or below is None:
                continue
            with self.subTest(user=user, used=used):
                self.assertLessEqual(
                    rooms.index(above), rooms.index(below), f"{below} is above {above}"
                )

    def test_a_test_uses_its_room_and_those_below_it(self):
        # A test that needs more belongs to a higher room, or to tests/e2e; or is a harness, of
        # tests/testing.
        rooms = floors()
        seen = 0
        for test, used in includes_of_tests():
            above = room_of(str(test), rooms)
            below = room_of(str(used).removeprefix("tests/"), rooms)
            if above is None or below is None:
                continue
            seen += 1
            with self.subTest(test=str(test), used=str(used)):
                self.assertLessEqual(
                    rooms.index(above), rooms.index(below), f"{below} is above {above}"
                )
        self.assertGreater(seen, 300)

    def test_every_room_is_used(self):
        rooms = floors()
        used = {room_of(label, rooms) for edge in edges() for label in edge}
        self.assertEqual(set(rooms) - used, set())

    def test_a_room_is_shown_to_its_users_only(self):
        users = {}
        for user, used in edges():
            if used.startswith("//") and package_of(used) != package_of(user):
                users.setdefault(package_of(used), set()).add(package_of(user))
        self.assertGreater(len(users), 25)
        for package, packages in users.items():
            if package.startswith("tools/"):
                continue
            for entry in shown_to(package):
                guest = package_of(entry)
                with self.subTest(package=package, entry=entry):
                    self.assertNotEqual(guest, "", "shown to everybody")
                    if guest.split("/")[0] in ("tests", "tools"):
                        continue  # Not part of the program's graph.
                    there = {user for user in packages if (user + "/").startswith(guest + "/")}
                    self.assertTrue(there, "shown to a room that does not use it")
                    if guest == "trainer":
                        rooms = {"/".join(user.split("/")[:2]) for user in there}
                        self.assertGreater(len(rooms), 10, "name the rooms")

    def test_long_files_are_named(self):
        named = re.search(r"\*\*Seven files are long.*?(?=\n- |\Z)", DESIGN, re.S)[0]
        long = set()
        for top in ("cmd", "models", "trainer"):
            for path in (ROOT / top).rglob("*"):
                limit = {".h": 200, ".cc": 500}.get(path.suffix)
                if limit and path.read_text().count("\n") > limit:
                    long.add(path.relative_to(ROOT / top).as_posix())
        self.assertEqual(long, set(re.findall(r"`([\w/]+\.(?:h|cc))`", named)))

    def test_functions_of_the_runtime_are_short(self):
        found = 0
        for room in ("fsdp", "engine", "loop"):
            for path in sorted((ROOT / "trainer" / room).glob("*.cc")):
                for first, lines in functions_of(path.read_text().split("\n")):
                    found += 1
                    with self.subTest(path=path.name, function=first):
                        self.assertLessEqual(lines, 60)
        self.assertGreater(found, 500)


if __name__ == "__main__":
    unittest.main()
