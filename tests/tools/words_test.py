#!/usr/bin/env python3
"""No sentence of a comment, of README.md or of docs/ begins with "Of", "Likewise" or "What".

Such a sentence hides its subject. Questions, headings, quotations and names of links may begin with
"What". The files are those that git tracks where README.md really lies: never cached.
"""

import ast
import io
import os
import pathlib
import re
import subprocess
import tokenize
import unittest

ROOT = pathlib.Path(os.path.realpath("README.md")).parent
# (file, how the sentence begins): why it may.
ALLOWED = {}

WORD = re.compile(r"(?<![^\s(*>])(?:Of|Likewise|What)\b(?![\w(:/`-])")
QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|“[^”]*”|\[[^\]]*\]\([^)]*\)")
CPP = re.compile(
    r"R\"(?P<end>[^()\\ ]{0,16})\((?:.|\n)*?\)(?P=end)\""  # A raw string,
    r"|\"(?:\\.|[^\"\\\n])*\""  # a string,
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"  # a character, but no separator of digits,
    r"|(?P<comment>//[^\n]*|/\*(?:.|\n)*?\*/)")


def joined(lines):
    """(number, text) of lines -> blocks of lines that follow one another; an empty line parts them."""
    block = []
    for number, text in lines:
        if block and (not text.strip() or number > block[-1][0] + 1):
            yield block
            block = []
        if text.strip():
            block.append((number, text.strip()))
    if block:
        yield block


def found_in(block):
    """(line, sentence) of each sentence of a block that begins with one of the words."""
    text = " ".join(line for _, line in block)
    bare = QUOTED.sub(lambda quoted: "_" * len(quoted.group()), text)
    for match in WORD.finditer(bare):
        end = re.compile(r"[.!?](?=[\s)*]|$)").search(bare, match.start())
        sentence = text[match.start():end.end() if end else len(text)]
        if sentence.endswith("?"):
            continue
        at = match.start()
        for number, line in block:
            if at <= len(line):
                yield number, sentence
                break
            at -= len(line) + 1


def cpp_comments(text):
    for match in CPP.finditer(text):
        if match["comment"]:
            first = text.count("\n", 0, match.start()) + 1
            for more, line in enumerate(match["comment"].split("\n")):
                yield first + more, re.sub(r"^\s*(?://+|/?\*+/?)|\*/$", "", line)


def python_comments(text):
    """Comments and docstrings of Python and of Bazel's files, which Python can read."""
    lines = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            lines.append((token.start[0], token.string.lstrip("#!")))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and \
                ast.get_docstring(node, clean=False) is not None:
            for more, line in enumerate(node.body[0].value.value.split("\n")):
                lines.append((node.body[0].lineno + more, line))
    return sorted(lines)


def shell_comments(text):
    """Comments of shell and YAML: `#` at a line's begin or behind a space, outside of quotes."""
    for number, line in enumerate(text.split("\n"), 1):
        bare = re.sub(r"\"(?:\\.|[^\"\\])*\"|'[^']*'", lambda quoted: "_" * len(quoted.group()), line)
        match = re.search(r"(?:^|\s)#+", bare)
        if match:
            yield number, line[match.end():]


def prose(text):
    """A page's lines without code and headings; a list's item and a table's cell stand alone."""
    lines = text.split("\n")
    fenced = False
    for number, line in enumerate(lines, 1):
        head = line.startswith("|") and number < len(lines) and re.match(r"\|[\s:|-]+\|$", lines[number])
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if fenced or head or re.match(r"#|\s*```|    \s*[^\s*-]", line):
            yield number, ""
        elif line.startswith("|"):
            for cell in line.split("|"):
                yield from ((number, cell), (number, ""))
        else:
            item = re.match(r"\s*(?:[-*]|\d+\.) ", line)
            if item:
                yield number, ""
            yield number, line[item.end():] if item else line


def reader_of(name, text):
    if re.search(r"\.(cc|h|cu|cuh)$", name):
        return cpp_comments
    if re.search(r"\.(py|bzl|bazel)$", name) or re.match(r"#!.*python", text):
        return python_comments
    if re.search(r"\.(sh|yaml)$", name) or re.match(r"#!.*sh\b", text):
        return shell_comments
    if name == "README.md" or re.match(r"docs/.*\.md$", name):
        return prose
    return None


def found(name, text):
    reader = reader_of(name, text)
    return [hit for block in joined(reader(text)) for hit in found_in(block)] if reader else []


def tracked():
    listed = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-z"], cwd=ROOT,
                            capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if (ROOT / name).is_file()]


class Finder(unittest.TestCase):
    def test_cpp(self):
        self.assertEqual(found("x.h", "// Of all ranks.\nint n;\n"), [(1, "Of all ranks.")])
        self.assertEqual(found("x.cc", "int n;  // A count. Likewise,\n        // in bytes. More.\n"),
                         [(1, "Likewise, in bytes.")])
        self.assertEqual(found("x.cu", "// The sum. It is\n// taken. What\n// is left stays.\n"),
                         [(2, "What is left stays.")])
        self.assertEqual(found("x.h", "/* A sum.\n * Of ranks.\n */\n"), [(2, "Of ranks.")])
        strings = 'auto a = "// Of a"; auto b = R"(\n// What b)"; char c = \'"\';  // Of c\n'
        self.assertEqual(found("x.cc", strings), [(2, "Of c")])
        self.assertEqual(found("x.cc", "int n = 1'000;  // Of n\nint m = 2'000;\n"), [(1, "Of n")])

    def test_what_stays(self):
        for line in ("What is it?", "https://a.b/What?q=Of is where it is.", 'He says "Of course".',
                     "The kind of it. Whatever comes.", "What(n) is called.", "`Of` is a word."):
            self.assertEqual(found("x.h", f"// {line}\n"), [], line)

    def test_python(self):
        text = '"""A. Of\nb."""\nN = "# Of n"  # Likewise.\n\n\ndef f():\n    """What f does."""\n'
        self.assertEqual(found("x.py", text), [(1, "Of b."), (3, "Likewise."), (7, "What f does.")])
        self.assertEqual(found("BUILD.bazel", 'x(\n    # Of x.\n    a = "Of a",\n)\n'), [(2, "Of x.")])

    def test_shell(self):
        text = '#!/bin/sh\n# One.\n# Of two.\necho "a # Of b" # What c\n'
        self.assertEqual(found("x", text), [(3, "Of two."), (4, "What c")])
        self.assertEqual(found("x.txt", "# Of a\n"), [])

    def test_pages(self):
        text = "# What is\n\nOne. Of\ntwo.\n\n```\nOf code.\n```\n\n| What | |\n|---|---|\n| a | Of b |\n" \
            "- Likewise c, [What d](d.md).\n"
        self.assertEqual([line for line, _ in found("docs/x.md", text)], [3, 12, 13])
        self.assertEqual(found("other/x.md", text), [])


class Words(unittest.TestCase):
    def test_no_sentence_hides_its_subject(self):
        hits = []
        used = set()
        files = 0
        for name in tracked():
            if reader_of(name, ""):
                text = (ROOT / name).read_text()
            elif "." not in name.rsplit("/", 1)[-1]:
                text = (ROOT / name).read_text(errors="replace")
            else:
                continue
            files += reader_of(name, text) is not None
            for line, sentence in found(name, text):
                allowed = [key for key in ALLOWED if name == key[0] and sentence.startswith(key[1])]
                used.update(allowed)
                if not allowed:
                    hits.append(f"{name}:{line}: {sentence}")
        self.assertGreater(files, 1000)
        self.assertFalse(hits, "name the subject first:\n" + "\n".join(hits))
        self.assertEqual(set(ALLOWED) - used, set(), "allowed, but not found")


if __name__ == "__main__":
    unittest.main()
