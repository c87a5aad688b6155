"""The tests of a room: one program of all its *_test.cc, and those that need a program of their own.

    room_tests(deps = [...])
    alone_test("thread_failure_test", why = "interposes")
    suite_tests("emulated_tests", deps = [suites, device])

A source's cases run by themselves with --test_filter. A program's tests share a process, so each leaves
signals, limits and the environment as they were (tests/testing/kept_environment.h). Death tests are in
suites called *DeathTest, which googletest runs first, before there are threads. Every kind of fault has one home: a test is
compiled optimised or under AddressSanitizer and UBSan, by its folder, and beside that under ThreadSanitizer
if it says so. tools/test chooses by the tags; --everything runs the product of all.
"""

# Folders whose tests run optimised: they compute, wait, or start whole programs. All others run under
# AddressSanitizer and UBSan.
_OPTIMISED = [
    "tests/e2e",
    "tests/emulated",
    "tests/tools",
    "tests/trainer/comm",
    "tests/trainer/engine",
    "tests/trainer/ops",
    "tests/trainer/runtime",
]

def _home():
    for folder in _OPTIMISED:
        if (native.package_name() + "/").startswith(folder + "/"):
            return "optimised"
    return "sanitized"

def _under_tsan(names, when, otherwise):
    if not names or when == otherwise:
        return otherwise
    return select({"//tools/bazel:tsan": when, "//conditions:default": otherwise})

def _test(name, srcs, home, tsan, tsan_filter, tags, args, deps, kwargs):
    home = home or _home()
    if "no_sanitizer" in tags and home != "optimised":
        fail("%s would run nowhere" % name)
    native.cc_test(
        name = name,
        srcs = srcs,
        args = _under_tsan(tsan_filter, ["--gtest_filter=" + tsan_filter], args) if tsan_filter else args,
        tags = tags + (["optimised", "sanitized_too"] if home == "both" else [home]) + (["tsan"] if tsan else []),
        deps = deps + ["@googletest//:gtest_main"],
        **kwargs
    )

def alone_test(name, why, deps = [], home = None, tsan = False, tsan_filter = "", tags = [], args = [], **kwargs):
    """<name>.cc as a program of its own.

    Args:
      name: of the source, without its ending.
      why: in a word, for the reader.
      deps: what it includes.
      home: "optimised", "sanitized" or "both", if not the folder's.
      tsan: whether it runs under ThreadSanitizer, too.
      tsan_filter: the cases that do.
      tags: others.
      args: of the program.
      **kwargs: passed on to cc_test.
    """
    if not why:
        fail("%s stands alone: say why" % name)
    _test(name, [name + ".cc"], home, tsan, tsan_filter, tags, args, deps, kwargs)

def suite_tests(name, deps, home = None, tsan_filter = "", tags = [], args = [], **kwargs):
    """A program of suites that are libraries, because several programs run them.

    Args:
      name: of the program.
      deps: the suites, and what this program runs them on.
      home: "optimised", "sanitized" or "both", if not the folder's.
      tsan_filter: the cases that run under ThreadSanitizer, too.
      tags: others.
      args: of the program.
      **kwargs: passed on to cc_test.
    """
    _test(name, [], home, tsan_filter != "", tsan_filter, tags, args, deps, kwargs)

def room_tests(
        name = "tests",
        deps = [],
        srcs = None,
        folders = [],
        home = None,
        tsan = [],
        tsan_filter = "",
        tags = [],
        args = [],
        optimised_alone = "",
        **kwargs):
    """One program of the folder's *_test.cc, without those that a rule above it has.

    Args:
      name: of the program.
      deps: what they include.
      srcs: if not all of them.
      folders: sub-folders whose tests are the room's.
      home: "optimised", "sanitized" or "both", if not the folder's.
      tsan: the sources, without "_test.cc", that run under ThreadSanitizer, too.
      tsan_filter: their cases that do.
      tags: others.
      args: of the program.
      optimised_alone: a pattern of cases. The others run under AddressSanitizer, too.
      **kwargs: passed on to cc_test.
    """
    if optimised_alone:
        home = "both"
        kwargs["env"] = {"FSDP_TRAIN_TEST_OPTIMISED": optimised_alone}
    if srcs == None:
        taken = []
        for rule in native.existing_rules().values():
            taken += [label.rsplit(":", 1)[-1] for label in rule.get("srcs", []) or []]
        srcs = [
            source
            for source in native.glob([place + "*_test.cc" for place in [""] + [f + "/" for f in folders]])
            if source not in taken
        ]
    _test(
        name,
        _under_tsan(tsan, [source + "_test.cc" for source in tsan], srcs),
        home,
        bool(tsan),
        tsan_filter,
        tags,
        args,
        deps,
        kwargs,
    )

def test_library(name, srcs = [], hdrs = [], **kwargs):
    """A library that tests share, as by cc_library."""
    native.cc_library(name = name, testonly = True, srcs = srcs, hdrs = hdrs, linkstatic = True, **kwargs)
