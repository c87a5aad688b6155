#!/usr/bin/env python3
"""tools/cuda/kernel_limits over what cuobjdump 13 prints, without a toolkit, a network or a GPU."""

import contextlib
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

PROGRAM = pathlib.Path("tools/cuda/kernel_limits").resolve()

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

# A kernel of LOOPS, as `cuobjdump -sass` prints it: a loop that reads no packs, and one of two packs of
# gate and two of up, so of 16 elements, in {moves} + 9 instructions.
SWIGLU = ("_ZN4fsdp47_GLOBAL__N__5a51ec6e_14_swiglu_cuda_cu_da9b1a0c17GatedForwardPacks"
          "INS0_4SiluE13__nv_bfloat16EEvPKT0_iiPS4_")
NAME = "GatedForwardPacks<Silu, bf16>"
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


class KernelLimits(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        (self.directory / "binary").write_text("")
        self.script("nvdisasm", "exit 1")
        environment = {"PATH": f"{self.directory}:/usr/bin:/bin", "CUDA_HOME": "/nonexistent",
                       "XDG_CACHE_HOME": str(self.directory), "PIP_INDEX_URL": "http://127.0.0.1:9/",
                       "PIP_RETRIES": "0"}
        patch = mock.patch.dict(os.environ, environment)
        patch.start()
        self.addCleanup(patch.stop)
        loader = importlib.machinery.SourceFileLoader("kernel_limits", str(PROGRAM))
        self.limits = importlib.util.module_from_spec(importlib.util.spec_from_loader("kernel_limits", loader))
        loader.exec_module(self.limits)
        self.limits.LOOPS = tuple(loop for loop in self.limits.LOOPS if loop.kernel == NAME)
        self.assertEqual([loop.most for loop in self.limits.LOOPS], [16])

    def script(self, name, text):
        path = self.directory / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def dump(self, stack=0, spilled=0, code=None, kernels=(TEMPLATE, PLAIN, SWIGLU)):
        usage = "".join(CHIP.format(chip=chip) + "".join(
            KERNEL.format(name=name, registers=30, stack=stack if name == PLAIN else 0, shared=128,
                          spilled=spilled if name == PLAIN else 0) for name in kernels)
            for chip in ("sm_80", "sm_90a")) + "\nFatbin ptx code:\narch = sm_90\n"
        (self.directory / "usage").write_text(usage)
        (self.directory / "code").write_text(code or sass(moves=200))
        self.script("cuobjdump", f"""case "$*" in
  "-res-usage {self.directory}/binary") cat {self.directory}/usage ;;
  "-sass -arch sm_90a -fun {SWIGLU} {self.directory}/binary") cat {self.directory}/code ;;
  *) exit 1 ;;
esac""")

    def run_it(self):
        """The exit status, and all it says."""
        said = io.StringIO()
        with mock.patch.object(sys, "argv", ["kernel_limits", "--binary", str(self.directory / "binary")]), \
                contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                status = self.limits.main()
            except SystemExit as end:
                status = end.code
        return (status, said.getvalue()) if isinstance(status, int) else (1, said.getvalue() + str(status))

    def test_stack_and_spills_need_a_reason(self):
        self.dump()
        self.assertEqual(self.run_it()[0], 0)
        for bytes_ in ({"stack": 8}, {"spilled": 4}):
            self.dump(**bytes_)
            self.limits.STACKS = {}
            code, said = self.run_it()
            self.assertEqual((code, said.count("t.cu: P has")), (1, 2), said)  # One for each chip.
            self.limits.STACKS = {self.limits.Kernel("t.cu", "P", chip): "it prints" for chip in ("sm_80", "sm_90a")}
            self.assertEqual(self.run_it()[0], 0)

    def test_instructions_of_a_loop(self):
        self.dump(code=sass(moves=247))
        said = f"swiglu_cuda.cu: {NAME}, all: 256 instructions for 16 elements\n"
        self.assertEqual(self.run_it(), (0, said))
        self.dump(code=sass(moves=248))
        code, said = self.run_it()
        self.assertEqual(code, 1)
        self.assertIn("257 instructions for 16 elements on sm_90a, want at most 16 an element\n", said)

    def test_what_is_not_there_keeps_no_limit(self):
        self.dump(code=sass(moves=8, branch="CALL.REL"))
        self.assertRegex(self.run_it()[1], f"{NAME} has 0 loops over packs on sm_90a")
        self.dump(kernels=(TEMPLATE, PLAIN))
        self.assertRegex(self.run_it()[1], f"there is no {NAME} of swiglu_cuda.cu on sm_90a")
        self.dump(kernels=())
        code, said = self.run_it()
        self.assertEqual(code, 1)
        self.assertIn("has no CUDA kernels: bazel build --config=cuda //cmd:fsdp-train", said)

    def test_without_network_one_line_says_so(self):
        self.dump()
        (self.directory / "nvdisasm").unlink()
        code, said = self.run_it()
        self.assertEqual(code, 3)
        self.assertRegex(said, r"\Atools/cuda/kernel_limits: there is no cuobjdump, or no nvdisasm, in "
                               r"/nonexistent/bin, and nvidia-cuda-cuobjdump==\S+ and "
                               r"nvidia-cuda-nvdisasm==\S+ could not be had from PyPI[^\n]*\n\Z")


if __name__ == "__main__":
    unittest.main()
