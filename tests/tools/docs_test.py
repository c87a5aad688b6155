#!/usr/bin/env python3
"""README.md and docs/ against the tree and the binary: links, keys, commands and what can be counted.

A link may lead to any file, so the tree is read where README.md really lies; BUILD.bazel says that this
test is never cached.
"""

import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

BINARY = pathlib.Path("cmd/fsdp-train").resolve()
ROOT = pathlib.Path(os.path.realpath("README.md")).parent
SKIPPED = re.compile(r"bazel-.*|\..*|runs")  # Names at the tree's top that are no part of it.
PLANNED = "docs/design.md"  # Describes what is to come, too.
# Numbers of README.md, and where they were measured: each with the number in a group.
CLAIMS = (
    (r"trained with it for (\d+) minutes", "docs/benchmarks/h100.md", r"(\d+) minutes"),
    (r"([\d.]+) times as fast as `torch.compile`", "docs/benchmarks/pytorch.md",
     r"\| GPT-2 124M \| ours .*? \| \| compile \| [\d.]+ \| \d+ \| ([\d.]+) "),
    (r"([\d.]+) times as fast as FSDP2's", "docs/benchmarks/pytorch.md",
     r"\| GPT-2 124M \| ours \| 12.66 .*? \| \| fsdp2 \| [\d.]+ \| \d+ \| ([\d.]+) "),
    (r"([\d.]+) times as fast as compiled FSDP2", "docs/benchmarks/h100.md",
     r"FSDP2, compiled \| [\d,]+ \| \*\*([\d.]+)\*\*"),
    (r"Power cuts in all (\d+) states", "docs/reliability.md", r"8 kinds of save \((\d+) states\)"),
    (r"within ([\d.]+) % of 25 others", "docs/simulator.md", r"\| 25 \| [\d.]+ % \| ([\d.]+) % \|"),
)
WORDS = {"three": 3, "six": 6, "seven": 7, "eight": 8}


def pages():
    found = [ROOT / name for name in os.listdir(ROOT) if name.endswith(".md")]
    for top in sorted(os.listdir(ROOT)):
        if SKIPPED.fullmatch(top) or not (ROOT / top).is_dir():
            continue
        found += (ROOT / top).rglob("*.md")
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(found)}


def run(*arguments):
    result = subprocess.run([BINARY, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + ("" if "--json" in arguments else result.stderr)


def anchors(page):
    """The anchors of its headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page, flags=re.S)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def without_code(page):
    return re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", page, flags=re.S))


def commands(page):
    """The commands that a page tells to type: lines of fenced and indented code, and code within lines."""
    page = page.replace("\\\n", " ")
    fenced = re.findall(r"^```[^\n]*\n(.*?)^```", page, flags=re.S | re.M)
    lines = "\n".join(fenced).splitlines()
    lines += [line[4:] for line in page.splitlines() if line.startswith("    ")]
    rest = re.sub(r"```.*?```", "", page, flags=re.S)
    lines += re.findall(r"`(fsdp-train [^`]*)`", " ".join(rest.split("\n")))
    for line in lines:
        if line.startswith("fsdp-train "):
            yield shlex.split(line, comments=True)[1:]


class Docs(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.pages = pages()
        cls.keys = set(re.findall(r"^\| `([^`]+)` \|", cls.pages["docs/recipe.md"], flags=re.M))

    def test_links_lead_somewhere(self):
        count = 0
        for name, page in self.pages.items():
            for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
                if re.match(r"[a-z]+:", target):
                    continue
                count += 1
                path, _, anchor = target.partition("#")
                whole = (ROOT / name).parent / path if path else ROOT / name
                self.assertTrue(whole.exists(), f"{name}: {target}")
                if anchor:
                    there = self.pages[str(whole.resolve().relative_to(ROOT))]
                    self.assertIn(anchor, anchors(there), f"{name}: {target}")
        self.assertGreater(count, 30)

    def test_every_page_is_linked(self):
        linked = set()
        for name, page in self.pages.items():
            for target in re.findall(r"\]\(([^)\s#]+)", page):
                linked.add(os.path.normpath(os.path.join(os.path.dirname(name), target)))
        listed = run("help")[1]
        for name in self.pages:
            if name.startswith("docs/"):
                self.assertIn(name, linked, f"{name}: no page leads to it")
                topic = name.removeprefix("docs/").removesuffix(".md")
                self.assertRegex(listed, rf"(?m)^  {topic} ", f"{name}: not in the program")

    def test_keys_are_those_of_the_recipe(self):
        sections = {key.split(".")[0] for key in self.keys}
        valid = {key.replace("data.train.", "data.valid.") for key in self.keys}  # They share rows.
        known = self.keys | valid | {key.replace("[]", "") for key in self.keys} | {
            ".".join(key.split(".")[:n]) for key in self.keys for n in (1, 2)}
        count = 0
        for name, page in self.pages.items():
            if name in (PLANNED, "docs/recipe.md"):
                continue
            page = page.split("\n## TensorBoard\n")[0]  # `eval.loss` is of a record there.
            for code in re.findall(r"`([a-z]+\.[a-z_.\[\]]*[a-z_\]])(?:[:=][^`]*)?`", page):
                if code.split(".")[0] in sections and not re.search(r"\.(json|jsonl|safetensors|md|py|h|cc|yaml)\b", code):
                    count += 1
                    self.assertTrue(code in known, f"{name}: `{code}` is no key of a recipe")
        self.assertGreater(count, 40)

    def test_commands_are_understood(self):
        helps = {}

        def help_of(*words):
            if words not in helps:
                helps[words] = run(*words, "--help")
            return helps[words]

        count = 0
        for name, page in self.pages.items():
            if name == PLANNED:
                continue
            for words in commands(page):
                count += 1
                text = " ".join(words)
                at = 0
                command = []
                while at < len(words) and re.fullmatch(r"[a-z]+", words[at]) and len(command) < 2 \
                        and re.search(rf"^  {words[at]}\b", help_of(*command)[1], flags=re.M):
                    command.append(words[at])
                    at += 1
                if not command and words[:1] and not words[0].startswith("-"):
                    self.fail(f"{name}: fsdp-train {text}: no such sub-command")
                ours, _, training = " ".join(words[at:]).partition(" -- ")
                if command[:1] == ["launch"] and words[at:at + 1] == ["--"]:
                    ours, training = "", " ".join(words[at + 1:])
                for flags, of in ((ours, command), (training, [])):
                    for flag in re.findall(r"(?:^|\s)(--[a-z-]+)", flags):
                        self.assertRegex(help_of(*of)[1], rf"{flag}\b",
                                         f"{name}: fsdp-train {text}: no {flag}")
        self.assertGreater(count, 15)

    def check(self, pattern, want, *where):
        """Every match of `pattern` in any page says `want`, and there is one in each of `where`."""
        for name, page in self.pages.items():
            if name == PLANNED:
                continue
            found = re.findall(pattern, " ".join(page.split()))
            for text in found:
                self.assertEqual(text, str(want), f"{name}: {pattern}")
            if name in where:
                self.assertTrue(found, f"{name}: says nothing of {pattern}")

    def test_counts(self):
        models = "docs/models.md"
        presets = run("models")[1].splitlines()[1:]
        self.check(r"(\d+) presets", len(presets), models)
        number = re.search(r"(\w+) of them as recipes", " ".join(self.pages[models].split()))[1]
        recipes = [path.read_text() for path in (ROOT / "configs/models").glob("*.yaml")]
        named = [text for text in recipes if re.search(r"^ +preset: ", text, re.M)]
        self.assertEqual(WORDS[number], len(named))
        for path in (ROOT / "tests/fuzz").glob("*fuzz_test.cc"):
            self.assertRegex(path.read_text(), "100'000|100,000", path.name)

    def test_mutations_that_pages_name(self):
        lists = "".join(path.read_text() for path in (ROOT / "tests/mutations").glob("*.toml"))
        there = set(re.findall(r"^(\w+) = \{promise = ", lists, flags=re.M))
        self.assertGreater(len(there), 300)
        for name, page in self.pages.items():
            for line in re.findall(r"^tools/mutations (.*)$", page.replace("\\\n", " "), flags=re.M):
                for word in line.split():
                    if not word.startswith("-"):
                        self.assertIn(word, there, name)

    def test_exit_codes_are_those_of_the_help(self):
        said = set(re.findall(r"(?:^|[\s,])(\d+) [a-z]", run("--help")[1].split("Exit codes:")[1]))
        table = self.pages["docs/training.md"].split("## Exit codes")[1].split("\n## ")[0]
        self.assertEqual(set(re.findall(r"^\| (\d+) \|", table, flags=re.M)), said)

    def test_figures_of_the_quick_start(self):
        recipe = run("config", "print", "--config", "configs/quickstart.yaml")[1]
        check = run("config", "check", "--config", "configs/quickstart.yaml")[1]

        def setting(section, key):
            part = re.search(rf"^{section}:\n((?: .*\n)+)", recipe, flags=re.M)[1]
            return re.search(rf"^ +{key}: (.*)$", part, flags=re.M)[1]

        parameters = int(re.search(r"([\d,]+) parameters", check)[1].replace(",", ""))
        self.check(r"(\d+) thousand parameters", round(parameters / 1000), "README.md",
                   "docs/benchmarks/cpu.md", "docs/benchmarks/finetune.md")
        self.check(r"in (\d+) steps", int(setting("train", "steps")), "README.md")
        self.check(r"last (\d+) % of the text", round(100 * float(setting("data", "fraction"))),
                   "README.md")
        size = (ROOT / "configs/data/jargon.txt").stat().st_size
        self.check(r"Jargon File \((\d\.\d) MB", f"{size / 1e6:.1f}", "README.md")
        plan = json.loads(run("plan", "--config", "configs/quickstart.yaml", "--world-size", "2",
                              "--json")[1])
        # A checkpoint holds the bytes that a save copies.
        self.check(r"checkpoints of (\d\.\d) MiB",
                   f"{2 * plan['memory']['snapshot'] / 2**20:.1f}", "docs/benchmarks/cpu.md")

    def test_quickstart_builds_for_the_gpu_that_is_here(self):
        with tempfile.TemporaryDirectory() as directory:
            top = pathlib.Path(directory)

            def program(name, text):
                path = top / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                path.chmod(0o755)

            program("tools/quickstart", (ROOT / "tools/quickstart").read_text())
            program("tools/setup", "#!/bin/sh\necho setup $*\n")
            program("bin/bazel", "#!/bin/sh\necho $*\n")
            program("bazel-bin/cmd/fsdp-train", "#!/bin/sh\necho train $*\n")
            environment = {"PATH": f"{top}/bin:/usr/bin:/bin", "HOME": directory}
            for said, flags, setup, build in (
                    ("", [], "", ""), ("", ["--cuda"], " --cuda", " --config=cuda"),
                    ("8.0", [], "", ""), ("NVIDIA-SMI has failed", [], "", ""),
                    ("9.0", ["--cuda"], " --cuda", " --config=cuda --//tools/cuda:archs=sm_90a"),
                    ("8.9", ["--cuda"], " --cuda", " --config=cuda --//tools/cuda:archs=sm_89")):
                program("bin/nvidia-smi", f"#!/bin/sh\necho {said}\n")
                lines = subprocess.run([top / "tools/quickstart", *flags, "--set", "a=b"], env=environment,
                                       capture_output=True, text=True, check=True).stdout.splitlines()
                told = [line for line in lines if line.startswith("tools/quickstart: this host has a GPU")]
                self.assertEqual(len(told), said == "8.0", lines)
                self.assertEqual(lines[0], "setup" + setup)
                self.assertRegex(lines[-2], f"--noshow_loading_progress{build} //cmd:fsdp-train$")
                self.assertEqual(lines[-1], "train launch --nproc-per-node 2 -- --config "
                                            "configs/quickstart.yaml --set a=b")

    def test_words_of_a_plan_are_those_of_the_help(self):
        page = self.pages["docs/fsdp.md"].split("### Words of a plan")[1].split("\n## ")[0]
        rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", page, flags=re.M)[1:]
        said = re.findall(r"^  (\S.{13})  ?(\S.*)$", run("plan", "--help")[1].split("memory of a rank")[1],
                          flags=re.M)
        self.assertGreaterEqual(len(said), 20)
        self.assertEqual(rows, [(word.strip(), meaning) for word, meaning in said])

    def test_what_options_take(self):
        table = self.pages["docs/fsdp.md"].split("## Memory and traffic")[1]
        rows = re.findall(r"^\| `([^`]+)` ((?:\| \d+ )+)\|$", table, flags=re.M)
        self.assertGreaterEqual(len(rows), 10)

        def plan(setting, dtype):
            precision = "fsdp.mixed_precision.param_dtype=" + dtype
            return json.loads(run("plan", "--config", "tools/bench/gpt2_124m.yaml", "--set", setting,
                                  "--set", precision, "--world-size", "4", "--local-world-size", "2",
                                  "--json")[1])

        for setting, numbers in rows:
            one, half = plan(setting, "fp32"), plan(setting, "bf16")
            memory, sent = one["memory"], one["communication"]
            want = [memory["allocated_peak"], half["memory"]["allocated_peak"],
                    memory["parameters"] + memory["gradients"] + memory["optimizer"],
                    memory["unsharded"] + memory["secondary"], memory["activations"],
                    sent["all_gather_bytes"], sent["reduce_scatter_bytes"], sent["all_reduce_bytes"]]
            self.assertEqual([int(n) for n in re.findall(r"\d+", numbers)],
                             [round(bytes_ / 2**20) for bytes_ in want], setting)

    def test_what_offload_takes(self):
        section = self.pages["docs/fsdp.md"].split("## Offload")[1].split("\n## ")[0]
        rows = re.findall(r"^\| `\{(.*)\}` ((?:\| [\d.]+ )+)\|$", section, flags=re.M)
        self.assertGreaterEqual(len(rows), 7)
        command = next(words for words in commands(section))
        at = next(i for i, word in enumerate(command) if word.startswith("fsdp="))
        for setting, numbers in rows:
            more = ", " + setting if setting else ""
            command[at] = "fsdp={mixed_precision: {param_dtype: bf16}" + more + "}"
            plan = json.loads(run(*command, "--json")[1])
            memory, moved = plan["memory"], plan["offload"]
            want = [memory["allocated_peak"], memory["host"], memory["disk"],
                    moved["to_host_bytes"], moved["to_device_bytes"], moved["update_bytes"]]
            self.assertEqual(moved["disk_read_bytes"], moved["disk_write_bytes"])
            self.assertAlmostEqual(moved["disk_read_bytes"] / 2**30, memory["disk"] / 2**30, 1)
            self.assertEqual(re.findall(r"[\d.]+", numbers),
                             [f"{bytes_ / 2**30:.1f}" for bytes_ in want], setting)

    def test_what_was_measured_is_what_is_planned(self):
        page = self.pages["docs/benchmarks/sharding.md"]
        table = page.split("## Time and memory, measured")[1].split("\n## ")[0]
        rows = re.findall(r"^\| `([^`]+)` \|.*\| (\d+) \| \d+ \|$", table, flags=re.M)
        self.assertGreaterEqual(len(rows), 14)
        for setting, planned in rows:
            more = ["--set", "fsdp.shard_size=2"] if "hybrid" in setting else []
            memory = json.loads(run(
                "plan", "--config", "tools/bench/gpt2_124m.yaml", "--set", "data.seq_len=64", "--set",
                "train={micro_batch_size: 1, global_batch_size: 8}", "--set", setting, *more,
                "--world-size", "4", "--json")[1])["memory"]
            self.assertEqual(int(planned), round(memory["allocated_peak"] / 2**20), setting)

    def test_number_formats_are_planned(self):
        table = self.pages["docs/fsdp.md"].split("## Number formats")[1].split("\n## ")[0]
        rows = re.findall(r"^\| `(\{[^`]+\})` ((?:\| [\d.]+ )+)\|$", table, flags=re.M)
        self.assertGreaterEqual(len(rows), 5)

        def plan(ranks, *more):
            return json.loads(run("plan", "--config", "tools/bench/gpt2_124m.yaml", *more,
                                  "--world-size", str(ranks), "--json")[1])

        whole = plan(1)["memory"]["allocated_peak"]
        for formats, numbers in rows:
            precision = ["--set", "fsdp.mixed_precision=" + formats]
            alone, four = plan(1, *precision), plan(4, *precision)
            bytes_, sent = alone["memory"]["allocated_peak"], four["communication"]
            want = [bytes_ / 2**30, bytes_ / whole, four["memory"]["allocated_peak"] / 2**30,
                    sent["all_gather_bytes"] / 2**20, sent["reduce_scatter_bytes"] / 2**20]
            got = [float(n) for n in re.findall(r"[\d.]+", numbers)]
            for number, exact in zip(got, want, strict=True):
                self.assertAlmostEqual(number, exact, delta=0.006 if exact < 10 else 0.6, msg=formats)

    def test_floors_are_added_up(self):
        rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` ((?:\| [\d.]+ )+)\|$",
                          self.pages["docs/benchmarks/gpu_floor.md"], flags=re.M)
        self.assertGreaterEqual(len(rows), 8)
        needless_rows = {
            preset: [float(n) for n in re.findall(r"[\d.]+", numbers)]
            for preset, numbers in re.findall(r"^\| `(qwen[^`]+)` ((?:\| [\d.]+ )+)\|$",
                                              self.pages["docs/benchmarks/gpu_floor.md"], flags=re.M)}
        shown = set()  # The second table is of the first micro-batch of each.
        for machine, preset, numbers in rows:
            numbers = [float(n) for n in re.findall(r"[\d.]+", numbers)]
            floor = json.loads(run(
                "bench", "floor", "--config", "tools/bench/qwen2.5.yaml", "--set",
                "model.preset=" + preset, "--set", f"train.micro_batch_size={numbers[0]:.0f}",
                "--hardware", f"configs/hardware/{machine}.yaml", "--json")[1])

            def seconds(*begins, parts=floor["parts"]):
                return sum(part["seconds"] for part in parts
                           if part["in_the_floor"] and part["op"].startswith(begins))

            products = seconds("linear_", "head_loss_forward_backward, ")
            attention, whole = seconds("attention_"), floor["seconds"]
            want = [products, attention, whole - products - attention, whole]
            needless = floor["needless_seconds"]
            want = [1e3 * part for part in want] + [floor["tokens_per_s"], 1e3 * needless,
                                                    floor["tokens"] / (whole + needless)]
            for number, exact in zip(numbers[1:], want, strict=True):
                self.assertAlmostEqual(number, exact, delta=0.06 if exact < 10 else 0.6, msg=preset)

            if (machine, preset) in shown:
                continue
            shown.add((machine, preset))

            def needless_gib(*names, parts=floor["parts"]):
                return 2**-30 * sum(part["extra_bytes"] + (0 if part["in_the_floor"] else part["bytes"])
                                    for part in parts if part["op"] in names)

            head = "head_loss_forward_backward"
            want = [floor["kernels"], floor["copies"], needless_gib(head),
                    needless_gib(head + ", logits", head + ", dx", head + ", dw"),
                    *map(needless_gib, ("linear_backward, dw", "attention_backward",
                                        "linear_backward", "rms_norm_backward", "fill")),
                    floor["needless_bytes"] / 2**30]
            for number, exact in zip(needless_rows[preset], want, strict=True):
                self.assertAlmostEqual(number, exact, delta=0.06 if exact < 10 else 0.6, msg=preset)

    def test_issue_rates_follow_from_instructions(self):
        rows = re.findall(r"^\| `[^`]+`, [^|]+ \| (\d+) / (\d+) ((?:\| [\d.]+ )+)\|$",
                          self.pages["docs/benchmarks/gpu_floor.md"], flags=re.M)
        self.assertEqual(len(rows), 6)
        for instructions, elements, numbers in rows:
            exact = int(instructions) / int(elements)
            special, bytes_, *rates = [float(n) for n in re.findall(r"[\d.]+", numbers)]
            want = [rate for clock, copy in ((1.755, 3.0), (1.98, 4.3))
                    for rate in (132e-3 * 128 * clock / exact, 132e-3 * 16 * clock / special, copy / bytes_)]
            for number, rate in zip(rates, want, strict=True):
                self.assertAlmostEqual(number, rate, delta=0.0051, msg=numbers)

    def test_what_a_run_leaves(self):
        block = self.pages["docs/training.md"].split("## What a run leaves")[1].split("```")[1]
        listed = {line.split()[0].rstrip("/").replace("rank_0", "rank_R").replace("step_5", "step_N")
                  .replace("step_2", "step_N") for line in block.strip().splitlines()}
        with tempfile.TemporaryDirectory() as directory:
            recipe = pathlib.Path(directory) / "tiny.yaml"
            recipe.write_text(
                "model: {family: gpt2, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 1,\n"
                "        vocab_size: 64, max_position_embeddings: 16}\n"
                "data: {train: {source: synthetic}, valid: {source: synthetic}, seq_len: 16}\n"
                "eval: {every: 5, steps: 1}\n"
                "train: {steps: 5, micro_batch_size: 1, global_batch_size: 1}\n")
            flags = ["--config", recipe, "--set", f"run.dir={directory}/run"]
            # Without a checkpoint the second start begins anew, and sets the records aside.
            for more in (["--set", "train.steps=2", "--set", "checkpoint.every=null"],
                         ["--set", "checkpoint.every=5", "--set", "log.trace_steps=[2]"]):
                code, out = run(*flags, *more)
                self.assertEqual(code, 0, out)
            code, out = run("report", f"{directory}/run")
            self.assertEqual(code, 0, out)
            left = set()
            for path in (pathlib.Path(directory) / "run").rglob("*"):
                name = str(path.relative_to(pathlib.Path(directory) / "run"))
                if path.is_dir() and not name.startswith("metrics."):
                    continue
                if name.startswith("metrics.1.tensorboard/"):
                    continue
                name = re.sub(r"tfevents\..*", "tfevents.*", name)
                left.add(re.sub(r"step_\d+", "step_N", re.sub(r"rank_\d+", "rank_R", name)))
        self.assertEqual(left, listed)

    def test_numbers_of_the_readme_are_those_of_its_pages(self):
        for shown, page, measured in CLAIMS:
            said = re.search(shown, " ".join(self.pages["README.md"].split()))
            self.assertTrue(said, f"README.md: says nothing of {shown}")
            found = re.search(measured, " ".join(self.pages[page].split()))
            self.assertTrue(found, f"{page}: {measured}")
            digits = len(said[1].partition(".")[2])
            self.assertEqual(said[1], f"{float(found[1]):.{digits}f}", f"README.md and {page}: {shown}")

    def test_version_is_everywhere_the_same(self):
        version = run("--version")[1].split()[1]
        self.assertIn(f"## {version}", self.pages["CHANGELOG.md"])
        self.assertIn(f"\nversion: {version}\n", (ROOT / "CITATION.cff").read_text())
        self.assertIn(f"fsdp-train-{version}-linux-x86_64.tar.gz", self.pages["docs/release.md"])
        self.assertTrue(version.startswith(re.search(r"\*\*Status: ([\d.]+)\.", self.pages["README.md"])[1] + "."))

    def test_readme_shows_the_last_measured_run(self):
        shown = re.search(r"eval at step (\d+): loss (\S+), perplexity (\S+)\n", self.pages["README.md"])
        loss = float(shown[2])
        # Both are rounded, the loss to four digits behind the point.
        self.assertAlmostEqual(float(shown[3]), math.exp(loss), delta=5e-5 * math.exp(loss) + 5e-4)
        table = self.pages["docs/benchmarks/cpu.md"].split("## The quick start")[1].split("\n## ")[0]
        rows = re.findall(r"^\|[^|]*\| (\d\.\d+) \|.*\|$", table, flags=re.M)
        self.assertGreater(len(rows), 0)
        self.assertEqual(rows[-1], f"{loss:.3f}", "docs/benchmarks/cpu.md, held-out nats a byte")


if __name__ == "__main__":
    unittest.main()
