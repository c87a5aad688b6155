"""A program that runs on any x86-64 Linux with glibc 2.28 or newer, and needs nothing else of it."""

load("//tools/bazel:cc.bzl", "cc_binary")

_LINKOPTS = [
    "-nostartfiles",
    "-static-libgcc",
    "-L$(BINDIR)/tools/glibc/lib",
    "-lpthread",
    "-ldl",
    "-lrt",
    # A library that is loaded later keeps its own functions of the same names.
    "-Wl,--exclude-libs,ALL",
]

def portable_binary(name, deps, **kwargs):
    """A cc_binary, linked with glibc's symbols of 2.28 and a C++ library of its own.

    Sanitizers' builds are linked as any: their runtimes take the place of glibc's functions.
    """
    sanitizers = {"//tools/bazel:asan": [], "//tools/bazel:tsan": []}
    cc_binary(
        name = name,
        additional_linker_inputs = ["//tools/glibc:libraries"],
        linkopts = select(dict(sanitizers, **{"//conditions:default": _LINKOPTS})),
        deps = deps + select(dict(sanitizers, **{"//conditions:default": ["//tools/glibc:compat"]})),
        **kwargs
    )
