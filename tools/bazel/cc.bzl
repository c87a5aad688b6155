"""cc_library and cc_binary of the program's sources: headers of others are compiled once for them all.

A source begins as if it included those headers, and still includes what it uses: clang-tidy reads it
without them. A target with flags of its own reads headers itself, because gcc takes a precompiled header
only with the flags that it was compiled with.
"""

# By direct dependency: the headers that //tools/bazel precompiles for it, instead of the standard
# library's. Where several match, the first counts.
_PRECOMPILED = {
    "@nlohmann_json//:json": "json",
}

def _with_precompiled(rule, srcs, deps, copts, kwargs):
    if srcs and not copts:
        direct = deps if type(deps) == "list" else []
        name = ([_PRECOMPILED[dep] for dep in _PRECOMPILED if dep in direct] + ["std"])[0]
        copts = ["--include=precompiled/%s.h" % name]
        deps = deps + ["//tools/bazel:%s_precompiled" % name]
    rule(srcs = srcs, deps = deps, copts = copts, **kwargs)

def cc_library(srcs = [], deps = [], copts = [], **kwargs):
    _with_precompiled(native.cc_library, srcs, deps, copts, kwargs)

def cc_binary(srcs = [], deps = [], copts = [], **kwargs):
    _with_precompiled(native.cc_binary, srcs, deps, copts, kwargs)
