"""Mistakes that a sanitizer must see, compiled as the sources of a room are.

    planted_mistakes()

in a room's BUILD file makes its target `planted_mistakes`, of tests/sanitizers/planted_mistakes.cc.in,
for //tests/sanitizers:planted_mistakes_test. A room whose flags keep a sanitizer out fails there by name.
"""

load("//tools/bazel:cc.bzl", "cc_library")

def planted_mistakes():
    native.genrule(
        name = "planted_mistakes_source",
        testonly = True,
        srcs = ["//tests/sanitizers:planted_mistakes.cc.in"],
        outs = ["planted_mistakes.cc"],
        cmd = "sed s:ROOM:%s: $< >$@" % native.package_name(),
    )
    cc_library(
        name = "planted_mistakes",
        testonly = True,
        srcs = ["planted_mistakes.cc"],
        visibility = ["//tests/sanitizers:__pkg__"],
        deps = ["//tests/sanitizers:planted_mistakes_interface"],
        alwayslink = True,
    )
