"""The system's libraries under the labels that their own projects use.

Headers are in /usr/include, which the compiler searches by itself.
"""

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
    _library("yaml_cpp", "yaml-cpp", ["-lyaml-cpp"])
    _library("spdlog", "spdlog", ["-lspdlog", "-lfmt"])
    _library("cli11", "cli11")
    _library("nlohmann_json", "json")
    _library("zlib", "z", ["-lz"])
    _library("zstd", "zstd", ["-lzstd"])
    _library("xxhash", "xxhash", ["-lxxhash"])
    _library("jpeg", "jpeg", ["-ljpeg"])
    _library("png", "png", ["-lpng"])
    _library("pcre2", "pcre2", ["-lpcre2-8"])
    _library("utf8proc", "utf8proc", ["-lutf8proc"])
    _library("sodium", "sodium", ["/usr/lib/x86_64-linux-gnu/libsodium.a"])
    _library("sentencepiece", "sentencepiece", ["-lsentencepiece"])
