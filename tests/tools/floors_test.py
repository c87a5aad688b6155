#!/usr/bin/env python3
"""The floors of docs/design.md, section 1, against what the program's targets depend on."""

import pathlib
import re
import unittest

DESIGN = pathlib.Path("docs/design.md").read_text()
GRAPH = pathlib.Path("tests/tools/graph").read_text()


def floors():
    """Rooms with code, top floor first."""
    plan = re.search(r"^## 1\..*?```\n(.*?)```", DESIGN, flags=re.S | re.M).group(1)
    rooms = re.findall(r"^(cmd|models|trainer/\w+)/ ", plan, flags=re.M)
    return rooms


def room_of(label, rooms):
    """The room that a package or one of its sub-packages stands in."""
    package = label.removeprefix("//").split(":")[0]
    for room in rooms:
        if package == room or package.startswith(room + "/"):
            return room
    return None


def edges():
    for user, used in re.findall(r'^  "([^"\n]+)" -> "([^"\n]+)"$', GRAPH, flags=re.M):
        if user.startswith("//"):
            yield user, used


class Floors(unittest.TestCase):
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

    def test_every_room_is_used(self):
        rooms = floors()
        used = {room_of(label, rooms) for edge in edges() for label in edge}
        self.assertEqual(set(rooms) - used, set())


if __name__ == "__main__":
    unittest.main()
