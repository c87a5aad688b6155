"""Prints what the tree costs: tools/test ends with it.

    budget.py DIR PART...

DIR holds PART.profile.gz (Bazel's profile) and PART.json (its build events) of the parts that Bazel ran. An
action that ran, and was not taken from a cache, replaces its seconds in ~/.cache/fsdp-train/budget/last.json,
so that the sums are those of everything from nothing, whatever ran this time. Beside them stand the sums of the
newest earlier commit that this machine has run, and the lines of the commit before.
"""

import gzip
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or
                     pathlib.Path(os.path.expanduser("~")) / ".cache") / "fsdp-train" / "budget"
COMPILES = ("Compiling ", "Precompiling ")
LARGEST = 5


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, text=True, capture_output=True, check=False).stdout


def compiled(profile, part):
    """Seconds by source of the compilations that ran: a hit of the disk cache runs none."""
    try:
        events = json.loads(gzip.open(profile).read())["traceEvents"]
    except (OSError, EOFError, ValueError):
        return {}  # Cut off.
    ran = {(event["tid"], round(event["ts"])) for event in events if event.get("cat") == "local action execution"}
    starts = {}
    for tid, start in ran:
        starts.setdefault(tid, []).append(start)
    found = {}
    for event in events:
        name = event.get("name", "")
        if event.get("cat") != "action processing" or not name.startswith(COMPILES):
            continue
        end = event["ts"] + event["dur"]
        if any(event["ts"] <= start <= end for start in starts.get(event["tid"], ())):
            found[f"{part} {name.split()[1]}"] = event["dur"] / 1e6
    return found


def tested(events, part):
    """Seconds by target and shard of the tests that ran."""
    found = {}
    try:
        lines = events.read_text(encoding="utf-8").splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            break
        result, key = event.get("testResult"), event["id"].get("testResult")
        if result and not result.get("cachedLocally") and \
                not result.get("executionInfo", {}).get("cachedRemotely"):
            seconds = int(result.get("testAttemptDurationMillis", 0)) / 1e3
            found[f"{part} {key['label']} {key.get('shard', 1)}"] = seconds
    return found


def is_there(name):
    """Whether the tree still has what `last.json` knows: a source, or the package of a test."""
    what = name.split()[1]
    if what.startswith("//"):
        return (ROOT / what[2:].partition(":")[0] / "BUILD.bazel").exists()
    return (ROOT / what).exists() or what.startswith(("precompiled/", "bazel-out/"))


def lines_of(commit):
    """Lines by file of BUILD files, of the program and of tests in C++."""
    found = {"BUILD lines": {}, "lines of cmd, models, trainer": {}, "lines of tests in C++": {}}
    for path in git("ls-tree", "-r", "--name-only", commit).splitlines():
        kind = None
        if path.endswith("BUILD.bazel"):
            kind = "BUILD lines"
        elif path.endswith((".cc", ".cu", ".h")):
            top = path.partition("/")[0]
            kind = {"cmd": "lines of cmd, models, trainer", "models": "lines of cmd, models, trainer",
                    "trainer": "lines of cmd, models, trainer", "tests": "lines of tests in C++"}.get(top)
        if kind:
            found[kind][path] = 0
    counts = git("grep", "-c", "", commit, "--", *[f":(glob)**/{name}" for name in
                                                   ("BUILD.bazel", "*.cc", "*.cu", "*.h")])
    for line in counts.splitlines():
        path, _, number = line.partition(":")[2].rpartition(":")
        for files in found.values():
            if path in files:
                files[path] = int(number)
    return found


def main(directory, parts):
    CACHE.mkdir(parents=True, exist_ok=True)
    last = CACHE / "last.json"
    known = json.loads(last.read_text()) if last.exists() else {"compiled": {}, "tested": {}}
    for part in parts:
        known["compiled"].update(compiled(directory / f"{part}.profile.gz", part))
        known["tested"].update(tested(directory / f"{part}.json", part))
    known = {kind: {name: s for name, s in of.items() if is_there(name)} for kind, of in known.items()}
    last.write_text(json.dumps(known))

    now = {"core-seconds compiled": known["compiled"], "seconds of tests": known["tested"], **lines_of("HEAD")}
    sums = {kind: round(sum(of.values())) for kind, of in now.items()}
    before = {kind: sum(of.values()) for kind, of in lines_of("HEAD~1").items()}
    for commit in git("rev-list", "--max-count=100", "HEAD~1").split():
        if (CACHE / f"{commit}.json").exists():
            before = {**json.loads((CACHE / f"{commit}.json").read_text()), **before}
            break
    (CACHE / f"{git('rev-parse', 'HEAD').strip()}.json").write_text(json.dumps(sums))
    print(f"{'':32}{'now':>9}{'before':>9}  the largest")
    for kind, of in now.items():
        largest = sorted(of.items(), key=lambda item: -item[1])[:LARGEST]
        words = ", ".join(f"{name} {value:.0f}" for name, value in largest)
        print(f"{kind:32}{sums[kind]:>9}{before.get(kind, '-'):>9}  {words}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
