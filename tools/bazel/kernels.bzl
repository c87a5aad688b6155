"""Kernels of the CPU, compiled for the instruction sets of trainer/ops/cpu/isa.h."""

def kernels_of_one_isa(name, copts, deps):
    """<name>.cc, below cpu/, with these flags; -O3 in every build, since what must be inlined is."""
    native.cc_library(
        name = name,
        srcs = native.glob(["cpu/**/%s.cc" % name]),
        copts = ["-O3"] + copts,
        linkstatic = True,
        visibility = ["//tests/trainer/ops:__pkg__"],
        deps = deps + [":ops_headers"],
    )

def kernel_library(name, deps, copts = []):
    """<name>.cc, below cpu/, compiled for each instruction set, behind <name>.h.

    Args:
      name: of the source and the header.
      deps: what it uses.
      copts: for each.
    """
    for isa, flags in {
        "avx2": [],
        "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    }.items():
        native.cc_library(
            name = name + "_" + isa,
            srcs = native.glob(["cpu/**/%s.cc" % name]),
            copts = ["-O3"] + copts + flags,
            linkstatic = True,
            visibility = ["//tests/trainer/ops:__pkg__"],
            deps = deps + [":ops_headers"],
        )
    native.cc_library(name = name, deps = [":%s_avx2" % name, ":%s_avx512" % name])
