#!/usr/bin/env python3
"""How tools/new_model_test reads docs/adding_a_model.md: what is a file, and what a diff may change."""

import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.getcwd(), "tools"))  # For tree_copy.
loader = importlib.machinery.SourceFileLoader("new_model", "tools/new_model_test")
new_model = importlib.util.module_from_spec(importlib.util.spec_from_loader("new_model", loader))
loader.exec_module(new_model)

LIST = """families = [
    "a",
    "b",
]
"""
PAGE = """# A page

```diff models/BUILD.bazel
     "b",
+    "c",
 ]
```

```cpp models/c/c.cc
int c = 1;

int d = 2;
```

```
bazel build //...
```

```cpp tests/models/c/c_test.cc
int t = 3;
```

```diff models/c/c.cc
-int d = 2;
+int d = 4;
+int e = 5;
```
"""


class NewModel(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        new_model.TREE = pathlib.Path(directory.name)
        self.write("models/BUILD.bazel", LIST)

    def write(self, path, text):
        path = new_model.TREE / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def read(self, path):
        return (new_model.TREE / path).read_text()

    def fails(self, words, page):
        with self.assertRaisesRegex(new_model.Failed, words):
            new_model.apply(page)

    def test_blocks_are_files_in_the_order_of_the_page(self):
        lines = new_model.apply(PAGE)
        self.assertEqual(self.read("models/BUILD.bazel"), LIST.replace(']', '    "c",\n]'))
        self.assertEqual(self.read("models/c/c.cc"), "int c = 1;\n\nint d = 4;\nint e = 5;\n")
        self.assertEqual(self.read("tests/models/c/c_test.cc"), "int t = 3;\n")
        self.assertEqual(lines, 1 + 3 + 1)  # Tests and commands do not count.

    def test_a_file_that_is_there_is_changed_by_a_diff_alone(self):
        self.write("models/c/c.cc", "")
        self.fails("models/c/c.cc is there already", PAGE)
        self.fails("a diff of models/x.cc, which is not there", "```diff models/x.cc\n+a\n```\n")

    def test_a_diff_has_one_place(self):
        for text, times in ((LIST.replace('"b"', '"x"'), 0), (LIST + LIST, 2)):
            self.write("models/BUILD.bazel", text)
            self.fails(f"text found {times} times, want once", PAGE)
        self.fails("no line of a diff: \\['@@", "```diff models/BUILD.bazel\n@@ -1 +1 @@\n```\n")


if __name__ == "__main__":
    unittest.main()
