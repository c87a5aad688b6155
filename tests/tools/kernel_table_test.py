#!/usr/bin/env python3
"""tools/cuda/kernel_table over what cuobjdump 13 prints, without a toolkit, a network or a GPU."""

import importlib.util
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

# A kernel whose loop the page has, as `cuobjdump -sass` prints it: a loop that reads no packs, and one
# of two packs of gate and two of up, so of 16 elements, in {moves} + 9 instructions.
SWIGLU = ("_ZN4fsdp47_GLOBAL__N__5a51ec6e_14_swiglu_cuda_cu_da9b1a0c17GatedForwardPacks"
          "INS0_4SiluE13__nv_bfloat16EEvPKT0_iiPS4_")
INSTRUCTION = """        /*{address:04x}*/                   {text} ;      /* 0x00000a00ff017b82 */
                                                                 /* 0x000fe20000000800 */
"""


def sass(moves, branch="@!P0 BRA"):
    texts = ["LDC R1, c[0x0][0x28]", "LDG.E R3, desc[UR4][R2.64]", "@P0 BRA 0x10"]
    loop = [*["LDG.E.128.CONSTANT R8, desc[UR8][R14.64]"] * 4, *["MOV R4, R5"] * moves,
            *["STG.E.128 desc[UR8][R18.64], R8"] * 2, "@P0 BRA 0x200", "ISETP.GE.AND P0, PT, R3, R2, PT",
            f"{branch} 0x30"]
    texts += [*loop, "EXIT", f"BRA 0x{16 * (4 + len(loop)):x}"]
    return f"\n\t\tFunction : {SWIGLU}\n" + "".join(
        INSTRUCTION.format(address=16 * i, text=text) for i, text in enumerate(texts))


class KernelTable(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.page = self.directory / "page.md"
        self.version("CUDA 13.0.88: sm_80 sm_90a compute_90")
        self.dump()

    def script(self, name, text):
        path = self.directory / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def version(self, cuda):
        self.script("binary", f"echo 'fsdp-train 0.1.0 (unknown, gcc 12.2.0, {cuda})'")

    def dump(self, stack=0, spilled=0, registers=30, code=None):
        usage = "".join(
            CHIP.format(chip=chip) +
            KERNEL.format(name=TEMPLATE, registers=registers, stack=0, shared=shared, spilled=0) +
            KERNEL.format(name=PLAIN, registers=8, stack=stack, shared=0, spilled=spilled) +
            (KERNEL.format(name=SWIGLU, registers=40, stack=0, shared=0, spilled=0) if code else "")
            for chip, shared in (("sm_80", 128), ("sm_90a", 1152))) + "\nFatbin ptx code:\narch = sm_90\n"
        (self.directory / "usage").write_text(usage)
        (self.directory / "code").write_text(code or "")
        self.script("nvdisasm", "exit 1")
        self.script("cuobjdump", f"""case "$*" in
  "-res-usage {self.directory}/binary") cat {self.directory}/usage ;;
  "-sass -arch sm_90a -fun {SWIGLU} {self.directory}/binary") cat {self.directory}/code ;;
  *) exit 1 ;;
esac""")

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

    def test_instructions_of_a_loop(self):
        self.dump(code=sass(moves=247))
        self.assertEqual(self.run_with("--write"), (0, "", ""))
        self.assertIn("| swiglu_cuda.cu | `GatedForwardPacks<Silu, bf16>` | all | sm_90a | 256 | 16 | 16.0 | 16 |\n",
                      self.page.read_text())
        self.assertEqual(self.run_with("--check"), (0, "", ""))
        self.dump(code=sass(moves=248))
        self.run_with("--write")
        code, _, err = self.run_with("--check")
        self.assertEqual(code, 1)
        self.assertIn("GatedForwardPacks<Silu, bf16> takes 16.1 instructions an element for its all on sm_90a, "
                      "want at most 16\n", err)

    def test_a_loop_that_is_not_there(self):
        self.dump(code=sass(moves=8, branch="CALL.REL"))
        code, _, err = self.run_with("--check")
        self.assertEqual(code, 1)
        self.assertIn("GatedForwardPacks<Silu, bf16> has 0 loops over packs on sm_90a", err)

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
        self.script("binary", "echo 'fsdp-train 0.1.0 (unknown, gcc 12.2.0)'")
        code, _, err = self.run_with()
        self.assertEqual(code, 1)
        self.assertIn("has no CUDA kernels: bazel build --config=cuda //cmd:fsdp-train", err)

    def test_without_network_one_line_says_so(self):
        (self.directory / "nvdisasm").unlink()
        code, _, err = self.run_with("--check", path=f"{self.directory}:/usr/bin:/bin")
        self.assertEqual(code, 3)
        self.assertRegex(err, r"\Atools/cuda/kernel_table: there is no cuobjdump, or no nvdisasm, in "
                              r"/nonexistent/bin, and nvidia-cuda-cuobjdump==\S+ and "
                              r"nvidia-cuda-nvdisasm==\S+ could not be had from PyPI[^\n]*\n\Z")

    def test_sources_are_what_nvcc_reads(self):
        found = importlib.util.spec_from_file_location(
            "kernel_sources", PROGRAM.with_name("kernel_sources.py"))
        sources = importlib.util.module_from_spec(found)
        found.loader.exec_module(sources)
        sources.ROOT = self.directory
        (self.directory / "tools/cuda").mkdir(parents=True)
        for name in sources.HOW:
            (self.directory / name).write_text("")
        self.script("nvcc", "echo 13")
        (self.directory / "trainer/ops").mkdir(parents=True)
        header, kernel = self.directory / "trainer/ops/x.h", self.directory / "trainer/ops/x.cu"

        def hashed(*, included="int i;", code='#include "trainer/ops/x.h"\nchar c = \'"\';'):
            header.write_text(included)
            kernel.write_text(code)
            return sources.hash_of_kernels(self.directory / "nvcc")

        plain = hashed()
        (self.directory / "trainer/ops/y.h").write_text("int of_no_kernel;")
        self.assertEqual(plain, hashed())
        self.assertEqual(plain, hashed(included="/* how\nmany */\n// so many\nint i;  // i"))
        self.assertNotEqual(plain, hashed(included="long i;"))
        self.assertNotEqual(plain, hashed(code='char c = \'"\';'))
        text = '#include "trainer/ops/x.h"\nconst char* s = "//'
        self.assertNotEqual(hashed(code=text + '1";'), hashed(code=text + '2";'))


if __name__ == "__main__":
    unittest.main()
