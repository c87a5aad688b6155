"""One op is one library: x.h (contract), x.cc (checks, enqueues), x_cpu.cc (kernels)."""

def op_library(name, deps = [], **kwargs):
    """A target named after the op's header.

    Args:
      name: the op; its kernels may be declared in a private header, <name>_cpu.h.
      deps: what it needs beyond the runtime and the argument checks.
      **kwargs: passed on to cc_library.
    """
    native.cc_library(
        name = name,
        srcs = [name + ".cc", name + "_cpu.cc"] + native.glob([name + "_cpu.h"]),
        hdrs = [name + ".h"],
        deps = depset(deps + [
            "//trainer/core:view",
            "//trainer/ops:arguments",
            "//trainer/runtime",
        ]).to_list(),
        **kwargs
    )

def op_test(name, deps = [], **kwargs):
    """The test <name>_test of the op <name>, on the harness of tests/testing."""
    native.cc_test(
        name = name + "_test",
        size = "small",
        srcs = [name + "_test.cc"],
        deps = deps + [
            "//tests/testing:harness",
            "//trainer/ops:" + name,
            "@googletest//:gtest_main",
        ],
        **kwargs
    )
