#!/usr/bin/env python3
"""tools/paper/parts.py: the committed hardware files meet what is published, and it says where not."""

import json
import pathlib
import subprocess
import sys
import tempfile
import shutil
import unittest

ROOT = pathlib.Path.cwd()  # The root of the repository, where Bazel starts a test.


def check(root):
    return subprocess.run([sys.executable, root / "tools/paper/parts.py", "--check"],
                          capture_output=True, text=True)


class Parts(unittest.TestCase):
    def test_committed_files_are_within_the_limits(self):
        result = check(ROOT)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count(".yaml: "), 5, result.stdout)
        self.assertRegex(result.stdout, r"one rate for every shape +median +1\d\d\.\d %")

    def test_files_that_are_off_are_named(self):
        for file, old, new, named in (
                ("h100-80gb", "launch_s: 4.8e-6", "launch_s: 9.6e-6", "products of h100-80gb"),
                ("b200", "tile_terms: 288", "tile_terms: 2048", "products of b200"),
                ("b200", "    ring_bytes_per_s: 572.0e+9", "    ring_bytes_per_s: 300.0e+9",
                 "collectives of b200")):
            with tempfile.TemporaryDirectory() as scratch:
                root = pathlib.Path(scratch)
                shutil.copytree(ROOT / "tools/paper", root / "tools/paper")
                shutil.copytree(ROOT / "configs/hardware", root / "configs/hardware")
                path = root / f"configs/hardware/{file}.yaml"
                path.chmod(0o644)
                text = path.read_text()
                self.assertEqual(text.count(old), 1, old)
                path.write_text(text.replace(old, new))
                result = check(root)
                self.assertEqual(result.returncode, 1, named)
                self.assertEqual(result.stderr, f"off the limit: {named}\n")

    def test_rows_name_where_they_are_from(self):
        files = sorted((ROOT / "tools/paper").glob("*_products.json")) + sorted(
            (ROOT / "tools/paper").glob("*_collectives.json"))
        self.assertEqual(len(files), 3)
        for path in files:
            published = json.loads(path.read_text())
            self.assertRegex(published["commit"], r"^[0-9a-f]{40} ")
            self.assertIn("License", published["licence"])


if __name__ == "__main__":
    unittest.main()
