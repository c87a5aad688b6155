"""The names of a test's cases, read from its sources.

gtest's names are "Suite.Case", "Prefix/Suite.Case/parameter" and "Suite/0.Case"; a parameter is not
known here and counts as any.
"""

import fnmatch
import functools
import re

DEFINE = re.compile(r"^#define (\w+)\(([^)]*)\)((?:.*\\\n)*.*)", re.MULTILINE)
CASE = re.compile(r"\b(TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*(\w+),\s*(\w+)\s*\)")
INSTANCE = re.compile(r"\bINSTANTIATE_TEST_SUITE_P\(\s*(\w+),\s*(\w+)")


def sources_of(test, root):
    """The sources of a label, none where there is no such test. A test has the file of its name. Other
    labels have all *_test.cc below their folder: those that the BUILD file names, programs called
    `tests` or `x_tests`, and what a rule of tools/bazel/ makes of one x_test.cc."""
    match = re.fullmatch(r"//([^:]+):(\w+)", test)
    if not match:
        return []
    package, name = root / match[1], match[2]
    for suffix in (".cc", ".py"):
        if (package / (name + suffix)).is_file():
            return [package / (name + suffix)]
    build, words = package / "BUILD.bazel", name.removesuffix("_test").split("_")
    made = name.endswith("tests") or any(
        (package / ("_".join(words[:n]) + "_test.cc")).is_file() for n in range(1, len(words)))
    if made or (build.is_file() and f'"{name}"' in build.read_text()):
        return sorted(package.rglob("*_test.cc"))
    return []


def with_harnesses(sources, root):
    """Their text and that of the headers of tests/ they include, without comments."""
    texts, left = {}, list(sources)
    while left:
        file = left.pop()
        if file not in texts and file.is_file():
            texts[file] = re.sub(r"^\s*//.*", "", file.read_text(), flags=re.MULTILINE)
            left += [root / name for name in re.findall(r'^#include "(tests/[^"]+)"', texts[file], re.M)]
    return "\n".join(texts.values())


def expanded(text):
    """`text` with its macros of tests in the place of their calls."""
    macros = {name: (parameters.split(","), body) for name, parameters, body in DEFINE.findall(text)
              if "TEST" in body}
    text = DEFINE.sub("", text)
    if not macros:
        return text

    def body_of(call):
        parameters, body = macros[call[1]]
        for parameter, value in zip(parameters, call[2].split(",")):
            body = re.sub(rf"\b{re.escape(parameter.strip())}\b", value.strip(), body)
        return body.replace("\\\n", "\n")
    call = re.compile(rf"\b({'|'.join(macros)})\(([^()]*)\)")
    for _ in range(3):  # A macro may call another one.
        text = call.sub(body_of, text)
    return text


@functools.lru_cache(maxsize=None)
def cases_of(sources, root):
    """(suite, case) of each case of a tuple of C++ sources, as patterns."""
    text = expanded(with_harnesses(sources, root))
    prefixes = {}
    for prefix, suite in INSTANCE.findall(text):
        prefixes.setdefault(suite, set()).add(prefix)
    names = set()
    for kind, suite, case in CASE.findall(text):
        if kind == "TEST_P":
            names |= {(f"{prefix}/{suite}", case + "/*") for prefix in prefixes.get(suite, ())}
        else:
            names.add((suite + "/*" if kind == "TYPED_TEST" else suite, case))
    return sorted(names)


@functools.lru_cache(maxsize=None)
def meet(a, b):
    """Whether some text is of both patterns."""
    if a[:1] == "*":
        return meet(a[1:], b) or (b != "" and meet(a, b[1:]))
    if b[:1] == "*":
        return meet(b, a)
    if not a or not b:
        return a == b
    return (a[0] == b[0] or "?" in (a[0], b[0])) and meet(a[1:], b[1:])


def halves(pattern):
    """The patterns of suite and case that `pattern` stands for: a name has one point."""
    if "." in pattern:
        suite, _, case = pattern.partition(".")
        return [(suite, case)]
    return [(pattern[:i + 1], pattern[i:]) for i, c in enumerate(pattern) if c == "*"]


def chosen(pattern, cases):
    """The (suite, case) of `cases` that a pattern of --gtest_filter chooses, or may."""
    return [name for name in cases
            if any(meet(suite, name[0]) and meet(case, name[1]) for suite, case in halves(pattern))]


def has_case(pattern, text):
    """Whether unittest's -k would find a case in the text of a test."""
    pattern = pattern if "*" in pattern else f"*{pattern}*"
    suites = re.split(r"^class (\w+)", text, flags=re.MULTILINE)[1:]
    return any(fnmatch.fnmatchcase(f"__main__.{suite}.{case}", pattern)
               for suite, body in zip(suites[::2], suites[1::2])
               for case in re.findall(r"^    def (test_?\w*)", body, flags=re.MULTILINE))
