#!/usr/bin/env python3
"""tools/includes over a tree of its own: what counts as a use of a header, and what does not."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

# The header `used.h`, and lines by which another one uses it.
USES = {
    "namespace a {\nclass B : public C {\n public:\n  int size() const { return 1; }\n};\n}": ("B* b;", "auto n = x.size();"),
    "template <typename T>\nstruct Box {};": ("Box<int> b;",),
    "enum class Kind { kOne, kTwo = 2 };": ("Kind k;", "auto k = kTwo;"),
    "std::vector<int> Make(const int& a,\n                      int b = {});": ("auto x = Make(1);",),
    "inline constexpr int kMost = 3;": ("int x[kMost];",),
    "using Call = std::function<void(int)>;": ("Call c;",),
    "template <typename T>\nconcept Small = sizeof(T) < 8;": ("template <Small T> void F();",),
    "void (*hook)(int) = nullptr;": ("auto h = hook;",),
    "#define CHECK(x) x": ("#define CHECK_ALL CHECK(1)",),
}
# The same, and lines that use nothing of it.
NO_USES = {
    "class B;\nclass D { B* b; };": ("B* b;",),
    "int F(int size);\nvoid G() { int local = 1; }": ("int size, local;",),
    "class D { int size(); };": ("int size;",),
    "class D {};": ("// D", 'auto d = "D";'),
}


class IncludesTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        for folder in ("tools", "trainer", "tests"):
            (self.root / folder).mkdir()
        for name in ("code_text.py", "includes"):
            shutil.copy(f"tools/{name}", self.root / "tools")

    def includes(self, *arguments):
        done = subprocess.run(["python3", self.root / "tools/includes", *arguments], check=False,
                              capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout

    def write(self, name, text):
        (self.root / name).write_text(text + "\n")

    def test_a_name_or_a_member_is_a_use(self):
        for cases, found in ((USES, False), (NO_USES, True)):
            for header, lines in cases.items():
                for line in lines:
                    self.write("trainer/used.h", header)
                    self.write("trainer/user.h", f'#include <vector>\n#include "trainer/used.h"\n{line}')
                    says = "trainer/user.h:2: includes trainer/used.h, of which it uses nothing\n"
                    with self.subTest(header=header, line=line):
                        self.assertEqual(self.includes(), (1, says) if found else (0, ""))

    def test_an_export_hands_names_on(self):
        self.write("trainer/used.h", "class B {};")
        self.write("trainer/all.h", '#include "trainer/used.h"  // IWYU pragma: export')
        self.write("trainer/user.h", '#include "trainer/all.h"\nB* b;')
        self.assertEqual(self.includes(), (0, ""))

    def test_cost_counts_sources_through_headers(self):
        self.write("trainer/used.h", "class B {};")
        self.write("trainer/user.h", '#include "trainer/used.h"\nB* b;')
        self.write("trainer/user.cc", '#include "trainer/user.h"')
        self.write("trainer/other.cc", "")
        self.write("tests/user_test.cc", '#include "trainer/used.h"')
        for name, says in (("used", "1 lines, with the 0"), ("user", "3 lines, with the 1")):
            tests = 1 if name == "used" else 0
            self.assertEqual(self.includes("--cost", f"trainer/{name}.h"),
                             (0, f"trainer/{name}.h: read by 1 sources of the program and {tests} of tests; {says} "
                                 "headers that it includes\n"))


if __name__ == "__main__":
    unittest.main()
