"""One op is one library: x.h (contract), x.cc (checks, enqueues), cpu/x_cpu.cc (kernels)."""

def op_library(name, deps = [], **kwargs):
    """A target named after the op's header.

    Args:
      name: the op; its kernels may be declared in a private header, cpu/<name>_cpu.h.
      deps: what it needs beyond the runtime and the argument checks.
      **kwargs: passed on to cc_library.
    """
    native.cc_library(
        name = name,
        srcs = [name + ".cc", "cpu/%s_cpu.cc" % name] + native.glob(["cpu/%s_cpu.h" % name]),
        hdrs = [name + ".h"],
        deps = depset(deps + [
            "//trainer/core:view",
            "//trainer/ops:arguments",
            "//trainer/runtime",
        ]).to_list(),
        **kwargs
    )

def kernel_library(name, deps = [], copts = [], **kwargs):
    """cpu/<name>.cc compiled for each instruction set, behind cpu/<name>.h: see trainer/ops/cpu/isa.h.

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
            srcs = ["cpu/%s.cc" % name, "cpu/%s.h" % name],
            copts = ["-O3"] + copts + flags,  # In every build: what must be inlined is.
            visibility = ["//tests:__subpackages__"],
            deps = deps + ["//trainer/ops:isa"],
        )
    native.cc_library(
        name = name,
        hdrs = ["cpu/%s.h" % name],
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
