"""Runs `fsdp-train` for reproduce, and varies the hardware file that it is given."""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess

import points

GB = 1e9


class Failed(Exception):
    """The program did not do what it was asked for."""


class Program:
    """The built program on one hardware file; equal runs are simulated once."""

    def __init__(self, binary, root, hardware):
        self.binary, self.root, self.hardware = binary, root, hardware
        self.known = {}

    def call(self, *words):
        done = subprocess.run([self.binary, *words], capture_output=True, text=True)
        if not done.stdout.startswith("{"):
            raise Failed(f"{' '.join(map(str, words))}: exit {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def simulate(self, run, extra=()):
        """The object of interface.md. fits false: nothing of its times is known."""
        key = (run, tuple(extra))
        if key not in self.known:
            settings = (f"train.micro_batch_size={run.batch}",
                        f"train.global_batch_size={run.batch * run.world}", *run.settings, *extra)
            self.known[key] = self.call(
                "simulate", "--config", self.root / f"configs/paper/{run.recipe}.yaml", "--json",
                "--world-size", str(run.world), "--hardware", self.hardware,
                *(word for setting in settings for word in ("--set", setting)))
        return self.known[key]

    def collective(self, call, world, elements):
        """Seconds of one, of fp32; `elements` of the whole tensor."""
        return self.call("collective", "--hardware", self.hardware, "--world-size", str(world),
                         "--call", call, "--elements", str(elements), "--dtype", "fp32",
                         "--json")["seconds"]

    def simulate_all(self, runs, tell):
        runs = list(dict.fromkeys(runs))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            jobs = {pool.submit(self.simulate, run): run for run in runs}
            for n, job in enumerate(concurrent.futures.as_completed(jobs), 1):
                job.result()
                tell(n, len(runs), jobs[job])


def value_of(value, result):
    """The number of the figure; None where the run does not fit, or is not timed."""
    if value.what in points.KINDS:
        return (result["memory"][value.what + "_peak"] + points.KEPT_BESIDE.get(value.run.recipe, 0)) / GB
    if not result["fits"] or not result["step_time_s"]:
        return None
    return {"tflops": result["hardware_tflops_per_device"], "seconds": result["step_time_s"],
            "qps": result["samples_per_s"] / result["world_size"]}[value.what]


def paper_of(value, paper):
    for step in value.where:
        paper = paper[step]
    return paper if isinstance(paper, (int, float)) else None


def _key_line(text, key):
    """Where the line of a key with dots lies: (begin, end, indentation), None where it is not there."""
    above, at = [], 0
    for line in text.splitlines(keepends=True):
        match = re.match(r"^( *)([\w.]+):", line)
        if match:
            above[len(match[1]) // 2:] = [match[2]]
            if ".".join(above) == key:
                return at, at + len(line), match[1]
        at += len(line)
    return None


def with_numbers(text, numbers):
    """The hardware file's text with other numbers, by keys with dots, and their sources."""
    for key, (number, seen) in numbers.items():
        name = key.rsplit(".", 1)[-1]
        found = _key_line(text, key)
        if found:
            text = text[:found[0]] + f"{found[2]}{name}: {number!r}\n" + text[found[1]:]
        else:
            begin = _key_line(text, "copy_bytes_per_s")[0]
            text = text[:begin] + f"{name}: {number!r}\n" + text[begin:]
        source = re.compile(rf'^  {re.escape(key)}: "[^"]*"\n', re.MULTILINE)
        line = f'  {key}: "seen: {seen}"\n'
        text = source.sub(line, text) if source.search(text) else text.rstrip("\n") + "\n" + line
    return text


def number_of(text, key, default=None):
    found = _key_line(text, key)
    return float(text[found[0]:found[1]].split(":")[1].split("#")[0]) if found else default


def sources_of(text):
    """Each number's key, and where it comes from."""
    below = text.split("\nsources:\n", 1)[1]
    return {key: " ".join(words.split()) for key, words in re.findall(r'^  ([\w.]+): "([^"]*)"', below,
                                                                     re.MULTILINE)}


# The number that a seen point sets, by the point's name: its key, between which values it is looked
# for, and +1 if a step gets faster as it grows, -1 if slower.
FITTED = {"7b batch_2 256": ("reached", 0.3, 1.0, +1),
          "6b no_prefetch 256": ("network.between.ring_bytes_per_s", 40e9, 400e9, +1),
          "7c batch_16 64": ("unfused_bytes", 0.25, 12.0, -1)}


def fit(binary, root, text, seen, paper, folder, tell, rounds=None):
    """Sets a number by each seen point in turn until all meet. Returns {key: (number, point)}."""
    numbers = {}
    path = pathlib.Path(folder) / "fitted.yaml"

    def error(name, key, number):
        path.write_text(with_numbers(text, {**numbers, key: (number, name)}))
        value = points.named(name)
        got = value_of(value, Program(binary, root, path).simulate(value.run))
        return (got or 0.0) - paper_of(value, paper)

    for turn in range(rounds or (1 if len(seen) == 1 else 5)):
        for name in seen:
            key, low, high, sign = FITTED[name]
            if turn:  # It has moved little.
                low, high = max(low, numbers[key][0] * 0.85), min(high, numbers[key][0] * 1.15)
            for _ in range(14 if turn == 0 else 11):
                middle = (low + high) / 2
                if error(name, key, middle) * sign < 0:
                    low = middle
                else:
                    high = middle
            numbers[key] = (float(f"{(low + high) / 2:.4g}"), name)
            tell(f"{key} = {numbers[key][0]:g} meets {name}")
    return numbers
