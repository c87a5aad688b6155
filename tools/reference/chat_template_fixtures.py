#!/usr/bin/env python3
"""Writes transformers' renderings of the chat templates in tests/fixtures/chat_templates/ and of random
conversations, and jinja2's values of single expressions, with jinja2 set up as transformers does. README.md
says what the files are.
"""

import argparse
import datetime
import json
import pathlib
import random
import re
import subprocess
import sys

from transformers.utils import chat_template_utils as utils

from chat_template_expressions import EXPRESSIONS, TEMPLATES, VARIABLES, random_program, random_template

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests/fixtures/chat_templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
WORDS = ["the", "A", "reef", "ebb", "it's", "\"so\"", "naïve", "日本", "𝔘ni", "a<b>&c", "{{ x }}", "{% if %}",
         "<|im_end|>", "\\n", "\t", "<think>", "</think>", "3.50", "e\u0301", "\u2028", "ﬁn", "İ", "ΟΔΟΣ", "100%"]


def phrase(r, longest=8):
    words = [r.choice(WORDS) for _ in range(r.randrange(longest))]
    text = "".join(word + r.choice([" ", " ", " ", "\n", "", "  ", "\n\n"]) for word in words)
    return r.choice([text, text, text.strip(), " " + text, "\n" + text + "\n"])


def value(r, depth=0):
    kinds = ["int", "float", "text", "bool", "none"] + (["list", "dict"] if depth < 2 else [])
    kind = r.choice(kinds)
    if kind == "int":
        return r.choice([0, 1, -7, 12345678901])
    if kind == "float":
        return r.choice([0.5, -1.0, 1e22, 1.5e-7, 100.0])
    if kind == "text":
        return phrase(r, 4)
    if kind == "bool":
        return r.random() < 0.5
    if kind == "none":
        return None
    if kind == "list":
        return [value(r, depth + 1) for _ in range(r.randrange(3))]
    return {r.choice(["b", "a", "c d", "é", "items"]): value(r, depth + 1) for _ in range(r.randrange(3))}


def schema(r, depth=0):
    kind = r.choice(["string", "integer", "boolean", "array", "object", "enum", "several"])
    if depth > 2 and kind in ("array", "object"):
        kind = "string"
    if kind == "array":
        return {"type": "array", "items": schema(r, depth + 1)}
    if kind == "object":
        names = r.sample(["depth", "port", "when", "tide_height"], r.randrange(4))
        return {"type": "object", "properties": {name: schema(r, depth + 1) for name in names},
                "required": names[: r.randrange(len(names) + 1)]}
    if kind == "enum":
        return {"type": "string", "enum": ["low", "hi\"gh"]}
    if kind == "several":
        return {"type": ["string", "null"], "description": phrase(r, 4)}
    return {"type": kind, **({"default": value(r, 2)} if r.random() < 0.3 else {})}


def tools(r):
    made = []
    for name in r.sample(["tide", "Wind_speed", "log"], r.randrange(1, 3)):
        parameters = {"type": "object", "properties": {
            key: schema(r) for key in r.sample(["place", "hours", "unit", "args"], r.randrange(4))}}
        parameters["required"] = list(parameters["properties"])[:1]
        function = {"name": name, "description": phrase(r), "parameters": parameters}
        if r.random() < 0.2:
            function["return"] = {"type": "string"}
        made.append({"type": "function", "function": function})
    return made


def content(r):
    if r.random() < 0.1:
        return [{"type": "text", "text": phrase(r)} if r.random() < 0.7 else {"type": "image"}
                for _ in range(r.randrange(1, 3))]
    return phrase(r)


def conversation(r):
    messages = []
    if r.random() < 0.4:
        messages.append({"role": r.choice(["system", "system", "developer"]), "content": content(r)})
    for _ in range(r.randrange(0, 4)):
        messages.append({"role": "user", "content": content(r)})
        if r.random() < 0.3:
            calls = [{"id": "call%05d" % r.randrange(100000), "type": "function",
                      "function": {"name": r.choice(["tide", "log"]), "arguments": {
                          key: value(r, 1) for key in r.sample(["place", "hours", "unit"], r.randrange(3))}}}
                     for _ in range(r.choice([1, 1, 2]))]
            call = {"role": "assistant", "content": phrase(r), "tool_calls": calls}
            if r.random() < 0.5:
                call["content"] = None
            messages.append(call)
            for _ in calls:
                messages.append({"role": "tool", "content": value(r) if r.random() < 0.3 else phrase(r)})
        answer = {"role": "assistant", "content": content(r) if r.random() < 0.2 else phrase(r)}
        if r.random() < 0.2:
            answer[r.choice(["reasoning_content", "thinking", "reasoning"])] = phrase(r)
        if r.random() < 0.1:
            answer["citations"] = [r.randrange(9)]
        messages.append(answer)
    if r.random() < 0.3:
        messages.append({"role": r.choice(["user", "user", "assistant", "ipython"]), "content": phrase(r)})
    return messages or [{"role": "user", "content": phrase(r)}]


def case(r):
    """The keyword arguments of apply_chat_template, and the date."""
    given = {"messages": conversation(r), "add_generation_prompt": r.random() < 0.3}
    if r.random() < 0.3:
        given["tools"] = tools(r)
    if r.random() < 0.2:
        given["documents"] = [{"title": phrase(r, 3), "text": phrase(r), **(
            {"year": r.randrange(1900, 2030)} if r.random() < 0.5 else {})} for _ in range(r.randrange(3))]
    extra = {}
    for key, values in (("enable_thinking", [True, False]), ("thinking", [True, False]),
                        ("reasoning_effort", ["low", "high"]), ("date_string", ["4 May 2031"])):
        if r.random() < 0.15:
            extra[key] = r.choice(values)
    if extra:
        given["extra"] = extra
    if r.random() < 0.5:
        given["date"] = [r.randrange(1990, 2040), r.randrange(1, 13), r.randrange(1, 29)]
    return given


def variables(given):
    """The variables that the template sees, as tokenization_utils_base and render_jinja_template make
    them."""
    messages = utils._alias_reasoning_fields(utils._normalize_chat_messages(given["messages"]))
    return {**TOKENS, **given.get("extra", {}), "messages": messages, "tools": given.get("tools"),
            "documents": given.get("documents"),
            "add_generation_prompt": given["add_generation_prompt"]}


def targets(source, given):
    """The text of the assistant, where a template does not mark it: what each of its messages adds to the
    prompt in front of it. None: a part is not how the whole begins."""
    def part(count, prompt):
        messages = given["messages"][:count]
        text, why = render(source, variables({**given, "messages": messages, "add_generation_prompt": prompt}),
                           given.get("date"))
        if text is None:
            raise ValueError(why)
        return text

    whole = part(len(given["messages"]), given["add_generation_prompt"])
    ranges = []
    try:
        for i, message in enumerate(given["messages"]):
            if message["role"] == "assistant":
                before, with_it = part(i, True), part(i + 1, False)
                if not with_it.startswith(before) or not whole.startswith(with_it):
                    return None
                ranges.append([len(before.encode()), len(with_it.encode())])
    except ValueError:
        return None
    return ranges


def set_date(compiled, date):
    names = compiled.environment.globals
    names.pop("strftime_now", None)
    if date:
        names["strftime_now"] = datetime.datetime(*date).strftime


def render(source, given, date):
    """Text and ranges in bytes; None and the reason for a template or values that are refused."""
    try:
        compiled = utils._compile_jinja_template(source)
        set_date(compiled, date)
        blocks, indices = [], []
        with compiled.environment.activate_tracker(blocks, indices):
            for block in compiled.generate(**given):
                blocks.append(block)
        text = "".join(blocks)
        text.encode()
        if re.search(r" at 0x[0-9a-f]+>", text):
            raise ValueError("prints an address")  # Ours refuses that.
    except Exception as error:  # Whatever Python raises.
        return None, f"{type(error).__name__}: {error}"
    return text, [[len(text[:begin].encode()), len(text[:end].encode())] for begin, end in indices]


def fixtures():
    """Texts by file name."""
    files = {}
    for path in sorted(FOLDER.glob("*.jinja")):
        r, cases, errors = random.Random(path.name), [], 0
        source = path.read_text()
        while len(cases) < 14:
            given = case(r)
            text, ranges = render(source, variables(given), given.get("date"))
            if text is None:
                errors += 1
                if errors > 3:
                    continue
                cases.append({**given, "text": None})
            else:
                if "generation %}" not in source and "generation -%}" not in source:
                    ranges = targets(source, given)
                cases.append({**given, "text": text, "targets": ranges})
        files[path.stem + ".json"] = lines(cases)
    table = []
    for expression in EXPRESSIONS:
        table.append(["{{ " + expression + " }}", render("{{ " + expression + " }}", VARIABLES, None)[0]])
    for template in TEMPLATES:
        table.append([template, render(template, VARIABLES, None)[0]])
    files["expressions.json"] = ('{"variables": ' + json.dumps(VARIABLES, ensure_ascii=False) +
                                 ',\n"cases": ' + lines(table).rstrip() + "}\n")
    return files


def lines(cases):
    return "[" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in cases) + "]\n"


class Binary:
    """//tools/reference:jinja_render"""

    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        encoding="utf-8")

    def ask(self, source, given, date):
        request = {"template": source, "variables": given, "date": date}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def compare(binary, folder, count, seed, shown, only):
    """Conversations by each template, random expressions, and random statements, through both."""
    program = Binary(binary)
    sources = [path.read_text() for path in sorted(folder.rglob("*.jinja"))]
    for what in only or ("conversations", "expressions", "programs"):
        r = random.Random(f"{what} {seed}")
        rendered = refused = named = differ = 0
        for i in range(count):
            if what == "conversations":
                source, given = sources[i * len(sources) // count], case(r)
                date, given = given.get("date"), variables(given)
            else:
                source = random_program(r) if what == "programs" else random_template(r)
                given, date = VARIABLES, None
            text, ranges = render(source, given, date)
            answer = program.ask(source, given, date)
            if text is None and "error" in answer:
                refused += 1
            elif text is not None and answer.get("text") == text and answer.get("generation") == ranges:
                rendered += 1
            elif "among what chat templates use" in answer.get("error", ""):
                named += 1
            else:
                differ += 1
                if differ <= shown:
                    print(f"--- {i if what == 'conversations' else source}\n  jinja2: {text!r} {ranges}\n  ours:   {answer}")
        print(f"{what}: {rendered} same texts, {refused} refused by both, {named} by ours alone and by name, {differ} differ")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is there")
    parser.add_argument("--compare", metavar="BINARY", help="//tools/reference:jinja_render, on random cases")
    parser.add_argument("--templates", type=pathlib.Path, default=FOLDER, help="a folder of other templates to compare")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shown", type=int, default=20, help="differences to print")
    parser.add_argument("--only", nargs="*", choices=["conversations", "expressions", "programs"])
    options = parser.parse_args()
    if options.compare:
        compare(options.compare, options.templates, options.count, options.seed, options.shown, options.only)
        return
    changed = []
    for name, text in fixtures().items():
        path = FOLDER / name
        if options.check:
            if not path.exists() or path.read_text() != text:
                changed.append(name)
        else:
            path.write_text(text)
    if changed:
        sys.exit("differ: " + ", ".join(changed))


if __name__ == "__main__":
    main()
