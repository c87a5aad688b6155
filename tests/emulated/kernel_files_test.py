#!/usr/bin/env python3
"""Every .cu file with kernels belongs to a test that fails where one of them is never launched."""

import ast
import pathlib
import unittest

BUILD = ast.parse(pathlib.Path("tests/trainer/ops/BUILD.bazel").read_text())


def tested():
    """Kernel files that op_test() targets name, and those that other tests name in their env."""
    for call in ast.walk(BUILD):
        if not isinstance(call, ast.Call) or getattr(call.func, "id", "") not in ("op_test", "cc_test"):
            continue
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        if call.func.id == "cc_test":
            env = given.get("env")
            for key, value in zip(env.keys, env.values) if isinstance(env, ast.Dict) else ():
                if ast.literal_eval(key) == "FSDP_TRAIN_EMULATED_KERNELS":
                    yield from ast.literal_eval(value).split()
        else:
            name = ast.literal_eval(given["name"])
            yield from ast.literal_eval(given["kernels"]) if "kernels" in given else [name + "_cuda"]


class KernelFiles(unittest.TestCase):
    def test_every_file_is_some_tests(self):
        sources = sorted(pathlib.Path("trainer/ops/cuda").glob("*.cu"))
        with_kernels = {path.stem for path in sources if "__global__" in path.read_text()}
        self.assertGreater(len(with_kernels), 5)
        self.assertEqual(with_kernels - set(tested()), set())


unittest.main()
