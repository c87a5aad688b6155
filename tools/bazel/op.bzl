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

def kernel_library(name, deps = [], copts = [], **kwargs):
    """<name>.cc compiled for each instruction set, behind <name>.h: see trainer/ops/isa.h.

    Args:
      name: of the source and the header.
      deps: what both use.
      copts: for both.
      **kwargs: passed on to cc_library.
    """
    for isa, flags in {
        "avx2": [],
        "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    }.items():
        native.cc_library(
            name = name + "_" + isa,
            srcs = [name + ".cc", name + ".h"],
            copts = ["-O3"] + copts + flags,  # In every build: what must be inlined is.
            deps = deps + ["//trainer/ops:isa"],
        )
    native.cc_library(
        name = name,
        hdrs = [name + ".h"],
        deps = deps + [":%s_avx2" % name, ":%s_avx512" % name],
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
