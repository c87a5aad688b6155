#!/usr/bin/env python3
"""tools/cuda/kernel_table over what cuobjdump 13 prints, without a toolkit, a network or a GPU."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path("tools/cuda/kernel_table").resolve()

# Two chips, a template and a plain kernel, as `cuobjdump -res-usage` prints a binary.
MODULE = "36_GLOBAL__N__4d1f02f6_4_t_cu_f41c85be1"
KERNEL = """ Function {name}:
  REG:{registers} STACK:{stack} SHARED:{shared} LOCAL:{spilled} CONSTANT[0]:544 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
CHIP = """
Fatbin elf code:
================
arch = {chip}
code version = [1,8]
host = linux
compile_size = 64bit

Resource usage:
 Common:
  GLOBAL:0
"""
TEMPLATE = f"_ZN4fsdp{MODULE}KI13__nv_bfloat16Li40ELb1EEEvPKT_Pf"
PLAIN = f"_ZN4fsdp{MODULE}PEPKij"


class KernelTable(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.page = self.directory / "page.md"
        self.version("CUDA 13.0.88: sm_80 sm_90a compute_90")
        self.dump()

    def program(self, name, text):
        path = self.directory / name
        path.write_text(f"#!/bin/sh\ncat <<'EOF'\n{text}\nEOF\n")
        path.chmod(0o755)

    def version(self, cuda):
        self.program("binary", f"fsdp-train 0.1.0 (unknown, gcc 12.2.0, {cuda})")

    def dump(self, stack=0, spilled=0, registers=30):
        self.program("cuobjdump", "".join(
            CHIP.format(chip=chip) +
            KERNEL.format(name=TEMPLATE, registers=registers, stack=0, shared=shared, spilled=0) +
            KERNEL.format(name=PLAIN, registers=8, stack=stack, shared=0, spilled=spilled)
            for chip, shared in (("sm_80", 128), ("sm_90a", 1152))) + "\nFatbin ptx code:\narch = sm_90\n")

    def run_with(self, *flags, path=None):
        path = path or f"{self.directory}:{os.environ.get('PATH', '/usr/bin:/bin')}"
        result = subprocess.run(
            [sys.executable, PROGRAM, "--binary", self.directory / "binary", "--page", self.page, *flags],
            capture_output=True, text=True, check=False,
            env={"PATH": path, "CUDA_HOME": "/nonexistent", "XDG_CACHE_HOME": str(self.directory),
                 "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0"})
        return result.returncode, result.stdout, result.stderr

    def test_page(self):
        code, out, _ = self.run_with()
        self.assertEqual(code, 0)
        self.assertIn("## t.cu, sm_80, sm_90a\n\n"
                      "| kernel | registers | stack | spilled | shared |\n"
                      "|---|---|---|---|---|\n"
                      "| `K<bf16, 40, true>` | 30, 30 | 0, 0 | 0, 0 | 128, 1152 |\n"
                      "| `P` | 8, 8 | 0, 0 | 0, 0 | 0, 0 |\n", out)
        self.assertIn("## Stack and spills\n\nNone.\n", out)

    def test_what_was_written_is_up_to_date(self):
        self.assertEqual(self.run_with("--write"), (0, "", ""))
        self.assertEqual(self.run_with("--check"), (0, "", ""))
        self.dump(registers=31)
        code, _, err = self.run_with("--check")
        self.assertEqual(code, 1)
        self.assertEqual(err, "tools/cuda/kernel_table: page.md is out of date: "
                              "tools/cuda/kernel_table --write\n")

    def test_stack_and_spills_need_a_reason(self):
        for bytes_ in ({"stack": 8}, {"spilled": 4}):
            self.page.unlink(missing_ok=True)
            self.dump(**bytes_)
            self.run_with("--write")
            code, _, err = self.run_with("--check")
            self.assertEqual(code, 1)
            self.assertIn("t.cu: P has", err)
            self.assertEqual(err.count("gives no reason"), 2)  # One for each chip.
            text = self.page.read_text()
            self.assertEqual(text.count(" | ? |\n"), 2)
            self.page.write_text(text.replace(" | ? |", " | it prints |"))
            self.assertEqual(self.run_with("--check"), (0, "", ""))
            # Written again, the reason stays; where the stack is gone, it goes.
            self.dump(**bytes_, registers=40)
            self.run_with("--write")
            self.assertEqual(self.run_with("--check"), (0, "", ""))
            self.assertIn("it prints", self.page.read_text())
            self.dump()
            self.run_with("--write")
            self.assertNotIn("it prints", self.page.read_text())

    def test_another_toolkit_gives_other_numbers(self):
        self.run_with("--write")
        self.version("CUDA 13.1.80: sm_80 sm_90a compute_90")
        self.dump(registers=31)
        code, out, _ = self.run_with("--check")
        self.assertEqual(code, 0)
        self.assertIn("page.md is of CUDA 13.0.88, the binary of 13.1.80", out)
        self.dump(stack=8)
        self.assertEqual(self.run_with("--check")[0], 1)

    def test_a_binary_without_kernels(self):
        self.program("binary", "fsdp-train 0.1.0 (unknown, gcc 12.2.0)")
        code, _, err = self.run_with()
        self.assertEqual(code, 1)
        self.assertIn("has no CUDA kernels: bazel build --config=cuda //cmd:fsdp-train", err)

    def test_without_network_one_line_says_so(self):
        (self.directory / "cuobjdump").unlink()
        code, _, err = self.run_with("--check", path="/usr/bin:/bin")
        self.assertEqual(code, 3)
        self.assertRegex(err, r"\Atools/cuda/kernel_table: there is no cuobjdump in /nonexistent/bin, "
                              r"and nvidia-cuda-cuobjdump==\S+ could not be had from PyPI[^\n]*\n\Z")


if __name__ == "__main__":
    unittest.main()
