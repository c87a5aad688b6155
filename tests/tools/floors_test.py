#!/usr/bin/env python3
"""The floors of docs/design.md, section 1, and who may include whom, against what sources, headers and tests
include.

A room's BUILD file says who may: `users`, `private`, `for_tests` and `only_for` of room()
(tools/bazel/room.bzl). Files are read where docs/design.md really lies: never cached.
"""

import ast
import functools
import os
import pathlib
import re
import unittest

ROOT = pathlib.Path(os.path.realpath("docs/design.md")).parent.parent
DESIGN = pathlib.Path("docs/design.md").read_text()
PROGRAM = ("cmd", "models", "trainer")


def floors():
    """Rooms with code, top floor first."""
    plan = re.search(r"^## 1\..*?```\n(.*?)```", DESIGN, flags=re.S | re.M).group(1)
    rooms = re.findall(r"^(cmd|models|trainer/\w+)/ ", plan, flags=re.M)
    return rooms


def room_of(path, rooms):
    """The room that a file or folder stands in, or in a folder of."""
    for room in rooms:
        if path == room or path.startswith(room + "/"):
            return room
    return None


class Guests:
    """The folders that may include a room's headers, by its BUILD file."""

    def __init__(self, folder):
        self.folder = folder
        self.users, self.private, self.for_tests, self.only_for = [], [], [], {}
        build = (ROOT / folder / "BUILD.bazel").read_text()
        for call in ast.walk(ast.parse(build)):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "room":
                for keyword in call.keywords:
                    if keyword.arg in ("users", "private", "for_tests", "only_for"):
                        setattr(self, keyword.arg, ast.literal_eval(keyword.value))

    def entries(self, header):
        """Folders that may include the header, beside tests and the room itself."""
        name = header.removeprefix(self.folder + "/").removesuffix(".h")
        if name in self.private or name in self.for_tests:
            return []
        return self.only_for.get(name, self.users)

    def refuses(self, user, header):
        """Whether a file in the folder `user` may not include the header."""
        if within(user, self.folder):
            return False
        if within(user, "tests"):
            return header.removeprefix(self.folder + "/").removesuffix(".h") in self.private
        return not any(within(user, entry) for entry in self.entries(header))


def within(folder, entry):
    return (folder + "/").startswith(entry + "/")


@functools.cache
def guests():
    """By folder; the program's packages are rooms, or sub-rooms."""
    return {str(build.parent.relative_to(ROOT)): Guests(str(build.parent.relative_to(ROOT)))
            for top in PROGRAM for build in (ROOT / top).rglob("BUILD.bazel")}


def owner_of(path):
    """The package of a file: the nearest folder with a BUILD file."""
    folder = path
    while folder:
        folder = folder.rpartition("/")[0]
        if folder in guests():
            return guests()[folder]
    return None


@functools.cache
def includes():
    """Pairs of paths: a file of the program, a test or a tool, and a file of the program that it includes."""
    found = []
    for top in (*PROGRAM, "tests", "tools"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in (".cc", ".cu", ".h"):
                for included in re.findall(r'^#include "([^"]+)"', path.read_text(), flags=re.M):
                    if included.split("/")[0] in PROGRAM:
                        found.append((str(path.relative_to(ROOT)), included))
    return found


def refused(user, header):
    """Why the one file may not include the other, or None."""
    rooms = floors()
    above, below = room_of(user.removeprefix("tests/"), rooms), room_of(header, rooms)
    if above and below and rooms.index(above) > rooms.index(below):
        return f"{user}: {below} is above {above}"
    owner = owner_of(header)
    if owner is None:
        return f"{user}: {header} stands in no room"
    if owner.refuses(user.rpartition("/")[0], header):
        return f"{user}: {owner.folder}/BUILD.bazel does not show {header} to it"
    return None


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


def families():
    """The list of models/BUILD.bazel."""
    build = (ROOT / "models/BUILD.bazel").read_text()
    listed = re.search(r"model_families\(.*?families = \[(.*?)\]", build, re.S)[1]
    return re.findall(r'"(.+?)"', listed)


# Formats that are called so by those who made them: token files of llm.c, tokenizer.json.
NAMED_BY_A_FORMAT = {"trainer/data/tokens/token_file.cc", "trainer/data/tokenizers/hf_tokenizer_file.cc",
                     "trainer/data/tokenizers/hf_tokenizer.h"}

# A template's variables are the JSON library's values.
CHAT_TEMPLATES_AND_COMMANDS = {
    "cmd/generate_command.cc", "cmd/show_commands.cc", "trainer/data/chat/chat_template.cc",
    "trainer/data/chat/chat_template.h", "trainer/data/chat/jinja/python_text.cc", "trainer/data/chat/jinja/python_text.h",
    "trainer/data/chat/jinja/template.cc", "trainer/data/chat/jinja/template.h", "trainer/data/samples/line_samples.cc",
    "trainer/data/samples/line_samples.h", "trainer/generate/chat_format.cc", "trainer/generate/chat_format.h"}


# Files that know sources of data as rows of a table.
SOURCES_UNNAMED = (
    "cmd/config_command.cc", "trainer/loop/complete_recipe.cc", "trainer/loop/recorder.cc",
    "trainer/loop/run_data.cc", "trainer/loop/run_data.h",
    "trainer/recipe/load.cc", "trainer/recipe/recipe.cc", "trainer/recipe/rules.cc",
    "trainer/weights/run_tokenizer.cc")


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

    def test_rules_and_loop_name_no_source(self):
        sources = re.findall(r"X\((\w+)\)", (ROOT / "trainer/recipe/sources/list.h").read_text())
        self.assertGreater(len(sources), 5)
        name = re.compile(rf"[\"`]({'|'.join(sources)})[\"`]")
        for path in SOURCES_UNNAMED:
            with self.subTest(path=path):
                self.assertIsNone(name.search((ROOT / path).read_text()))
        for source in sources:
            self.assertTrue((ROOT / f"trainer/recipe/sources/{source}.cc").exists(), source)

    def test_core_alone_sees_the_json_library(self):
        """It costs each source that includes it 2.4 s of compile time."""
        seen = set()
        for top in PROGRAM:
            for path in (ROOT / top).rglob("*"):
                if path.suffix in (".h", ".cc") and "#include <nlohmann/" in path.read_text():
                    seen.add(path.relative_to(ROOT).as_posix())
        core = {path for path in seen if path.startswith("trainer/core/json_")}
        self.assertTrue(core)
        self.assertEqual(seen - core - CHAT_TEMPLATES_AND_COMMANDS, set())

    def test_the_runtime_knows_no_text(self):
        """The model says what a batch is made of; the words left are those of formats."""
        formats = re.compile(r'"tokens(_per_(s|day))?"|\btokens = 0;  // Target tokens seen|meta\.tokens\b')
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

    def test_every_package_stands_in_a_room(self):
        rooms = floors()
        self.assertGreater(len(rooms), 15)
        self.assertEqual(len(rooms), len(set(rooms)), "a room is listed twice")
        self.assertGreater(len(guests()), 30)
        self.assertEqual([folder for folder in guests() if room_of(folder, rooms) is None], [])

    def test_files_include_rooms_below_that_are_shown_to_them(self):
        # A test that needs more belongs to a higher room, or to tests/e2e; or is a harness, of
        # tests/testing.
        self.assertGreater(len(includes()), 4000)
        self.assertEqual([wrong for pair in includes() if (wrong := refused(*pair))], [])

    def test_a_planted_include_is_refused(self):
        for user, header in (("trainer/core/check.cc", "trainer/runtime/stream.h"),  # Upward.
                             ("trainer/fsdp/layout.h", "trainer/engine/session.h"),
                             ("tests/trainer/ops/cast_test.cc", "trainer/fsdp/schedule.h"),
                             ("trainer/recipe/load.cc", "trainer/runtime/stream.h"),  # No user of it.
                             ("trainer/engine/plan.cc", "trainer/fsdp/bump_allocator.h"),  # Private.
                             ("tests/trainer/fsdp/layout_test.cc", "trainer/fsdp/bump_allocator.h"),
                             ("trainer/loop/train.cc", "trainer/comm/gate.h"),  # For tests.
                             ("trainer/bench/calibrate.cc", "trainer/fsdp/step_times.h")):  # Another's.
            with self.subTest(user=user, header=header):
                self.assertTrue((ROOT / header).exists())
                self.assertIsNotNone(refused(user, header))
        self.assertIsNone(refused("tests/trainer/comm/gate_test.cc", "trainer/comm/gate.h"))

    def test_every_room_is_used(self):
        rooms = floors()
        used = {room_of(path, rooms) for pair in includes() for path in pair}
        self.assertEqual(set(rooms) - used, set())

    def test_a_room_is_shown_to_its_users_only(self):
        for owner in guests().values():
            readers = [(user.rpartition("/")[0], header) for user, header in includes()
                       if owner_of(header) is owner]
            for header, entries in [(None, owner.users), *owner.only_for.items()]:
                for entry in entries:
                    if owner.folder.startswith("models/") and entry == "models":
                        continue  # Its list links them.
                    with self.subTest(room=owner.folder, header=header, entry=entry):
                        there = {user for user, included in readers if within(user, entry)
                                 and entry in owner.entries(included)
                                 and (header is None or included == f"{owner.folder}/{header}.h")}
                        self.assertTrue(there, "shown to a folder that does not use it")
                        if entry == "trainer":
                            rooms = {"/".join(user.split("/")[:2]) for user in there}
                            self.assertGreater(len(rooms), 8, "name the rooms")

    def test_long_files_are_named(self):
        named = re.search(r"\*\*Eight files are long.*?(?=\n- |\Z)", DESIGN, re.S)[0]
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
