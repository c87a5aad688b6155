"""The system's libraries under the labels that their own projects use, in static form: a program of ours brings
what it needs.

Headers are in /usr/include, which the compiler searches by itself.
"""

load("//tools/bazel:debian_source.bzl", "debian_source")

def _archive(name):
    return ["/usr/lib/x86_64-linux-gnu/lib%s.a" % name]

def _library(name, target, linkopts = [], extra = "", deps = []):
    native.new_local_repository(
        name = name,
        build_file_content = """
package(default_visibility = ["//visibility:public"])
cc_library(name = "%s", linkopts = %s, deps = %s)
%s""" % (target, repr(linkopts), repr(deps), extra),
        path = "tools/bazel/empty",
    )

def system_libraries():
    _library(
        "googletest",
        "gtest",
        ["-lgmock", "-lgtest", "-lpthread"],
        'alias(name = "gtest_main", actual = "@//tests/testing:main")\n',
        deps = ["@//tools/bazel:gtest_precompiled"],
    )
    _library("yaml_cpp", "yaml-cpp", _archive("yaml-cpp"))
    _library("cli11", "cli11")
    _library("nlohmann_json", "json")
    _library("zlib", "z", _archive("z"))
    _library("zstd", "zstd", _archive("zstd"))
    _library("xxhash", "xxhash", _archive("xxhash"))
    _library("jpeg", "jpeg", _archive("jpeg"))
    _library("png", "png", _archive("png"))
    _library("pcre2", "pcre2", _archive("pcre2-8"))
    _library("utf8proc", "utf8proc", _archive("utf8proc"))
    _library("sodium", "sodium", _archive("sodium"))
    debian_source(
        name = "sentencepiece",
        package = "sentencepiece",
        version = "0.1.97",
        revision = "3",
        orig_sha256 = "56430381f45dc6debfd2e0cbde4f039f9499c49ca825af184b0cbf318c17a18f",
        debian_sha256 = "6aaa1a376752f204107e4fcb816115c4eb401dfc9ce50aa6b245e9b2ee5a63ee",
        build_file = "//tools/bazel:sentencepiece.BUILD",
    )
