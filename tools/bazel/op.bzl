"""The tests of all ops as one program, for a machine with a GPU."""

load("//tools/cuda:defs.bzl", "if_cuda")
load("//tools/glibc:portable_binary.bzl", "portable_binary")

def gpu_op_tests(name, suites, rules, emulated_rules):
    """<name> is built under --config=cuda alone.

    <name>_emulated is the same over the emulator's runtime, and as a test it runs those of a few ops: what
    differs is the harness.

    Args:
      name: of the program.
      suites: of the ops.
      rules: tests of the libraries that ops call.
      emulated_rules: the same of the emulator's.
    """
    portable_binary(
        name = name,
        testonly = True,
        tags = ["manual"],
        target_compatible_with = if_cuda([], ["//tools/bazel:incompatible"]),
        deps = suites + rules + [
            "//tests/testing:cuda_test_device",
            "//tests/testing:stack_on_term",
            "@googletest//:gtest_main",
        ],
    )
    native.cc_test(
        name = name + "_emulated",
        size = "small",
        args = ["--gtest_filter=*Activation*:*AdamW*:*Cast*:*Rope*:*Sgd*:*StepParameters*"],
        tags = ["optimised"],
        deps = suites + emulated_rules + [
            "//tests/emulated:cuda_test_device",
            "//tests/emulated:kernels",
            "//tests/testing:stack_on_term",
            "@googletest//:gtest_main",
        ],
    )
