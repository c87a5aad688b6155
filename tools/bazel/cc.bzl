"""cc_library and cc_binary of the program's sources: headers of others are compiled once for them all.

A source begins as if it included those headers, and still includes what it uses: clang-tidy reads it
without them. A target with flags of its own reads headers itself, because gcc takes a precompiled header
only with the flags that it was compiled with.
"""

def _with_precompiled(rule, srcs, deps, copts, precompiled, kwargs):
    if srcs and not copts:
        copts = ["--include=precompiled/%s.h" % precompiled]
        deps = deps + ["//tools/bazel:%s_precompiled" % precompiled]
    rule(srcs = srcs, deps = deps, copts = copts, **kwargs)

def cc_library(srcs = [], deps = [], copts = [], precompiled = "std", **kwargs):
    """As the built-in rule. `precompiled`: one of those of //tools/bazel, std or json."""
    _with_precompiled(native.cc_library, srcs, deps, copts, precompiled, kwargs)

def cc_binary(srcs = [], deps = [], copts = [], precompiled = "std", **kwargs):
    _with_precompiled(native.cc_binary, srcs, deps, copts, precompiled, kwargs)
