#!/usr/bin/env python3
"""tools/archive: what is in the archive is all that it needs, and nothing that is the machine's."""

import hashlib
import os
import pathlib
import re
import subprocess
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(os.getcwd())  # The root of the repository, where Bazel starts a test.
GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1",
         "ld-linux-x86-64.so.2"}
NEWEST_GLIBC = (2, 36)  # Debian 12.


def make(directory, *options):
    return subprocess.run(["tools/archive", "--out", directory, *options],
                          cwd=ROOT, capture_output=True, text=True)


def needed(file):
    text = subprocess.run(["readelf", "-dW", file], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", text))


def newest_glibc(file):
    text = subprocess.run(["readelf", "-VW", file], capture_output=True, text=True, check=True).stdout
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", text)
    return max(((int(a), int(b)) for a, b in versions), default=(0, 0))


class Archive(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        directory = pathlib.Path(cls.scratch.name)
        cls.options = ("--binary", "cmd/fsdp-train", "--time", "1700000000")
        result = make(directory / "one", *cls.options)
        assert result.returncode == 0, result.stderr
        cls.archive = pathlib.Path(result.stdout.strip())
        with tarfile.open(cls.archive) as tar:
            cls.entries = tar.getmembers()
            tar.extractall(directory)
        cls.top = directory / cls.entries[0].name.split("/")[0]
        cls.binary = cls.top / "bin/fsdp-train"
        cls.libraries = {path.name: path for path in (cls.top / "lib").iterdir()}

    def test_every_library_is_there_or_glibcs(self):
        self.assertIn("libstdc++.so.6", self.libraries)
        for file in [self.binary, *self.libraries.values()]:
            missing = needed(file) - GLIBC - set(self.libraries)
            self.assertEqual(missing, set(), file.name)

    def test_glibc_itself_is_not(self):
        self.assertEqual(set(self.libraries) & GLIBC, set())

    def test_no_symbol_is_newer_than_debian_12s(self):
        for file in [self.binary, *self.libraries.values()]:
            self.assertLessEqual(newest_glibc(file), NEWEST_GLIBC, file.name)

    def test_libraries_are_found_beside_the_binary(self):
        result = subprocess.run([self.binary], env={"LD_TRACE_LOADED_OBJECTS": "1"},
                                capture_output=True, text=True, check=True)
        found = dict(re.findall(r"(\S+) => (\S+)", result.stdout))
        for name in self.libraries:
            self.assertEqual(pathlib.Path(found[name]).resolve(),
                             self.libraries[name].resolve(), name)

    def test_it_runs_with_an_empty_environment(self):
        result = subprocess.run([self.binary, "--version"], env={}, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(result.stdout.startswith("fsdp-train "), result.stdout)
        config = subprocess.run([self.binary, "config", "check", "--config",
                                 "configs/quickstart.yaml"], cwd=self.top, env={},
                                capture_output=True, text=True)
        self.assertEqual(config.returncode, 0, config.stderr)

    def test_licences_recipes_and_data(self):
        names = {str(path.relative_to(self.top)) for path in self.top.rglob("*")}
        for name in ("LICENSE", "README.txt", "configs/quickstart.yaml", "configs/data/jargon.txt",
                     "licences/nlohmann-json3-dev/copyright", "licences/libstdc++6/copyright"):
            self.assertIn(name, names)
        # One for each library at least: packages here hold one each.
        licences = [name for name in names if name.endswith("/copyright")]
        self.assertGreaterEqual(len(licences), len(self.libraries) - 1)

    def test_the_same_files_give_the_same_bytes(self):
        directory = pathlib.Path(self.scratch.name) / "two"
        result = make(directory, *self.options)
        digests = [hashlib.sha256(pathlib.Path(p).read_bytes()).hexdigest()
                   for p in (self.archive, result.stdout.strip())]
        self.assertEqual(digests[0], digests[1])
        self.assertEqual({entry.mtime for entry in self.entries}, {1700000000})
        self.assertEqual({entry.uid for entry in self.entries}, {0})
        names = [entry.name for entry in self.entries]
        self.assertEqual(names, sorted(names))

    def test_mistakes_are_named(self):
        missing = make(self.scratch.name, "--binary", "nothing", "--time", "1")
        self.assertNotEqual(missing.returncode, 0)
        self.assertIn("there is no", missing.stderr)
        alone = make(self.scratch.name, "--binary", "x", "--bazel-option", "y")
        self.assertEqual(alone.returncode, 2)


if __name__ == "__main__":
    unittest.main()
