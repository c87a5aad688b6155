"""Reads the records of runs of fsdp-train. The program itself does everything else."""

import json
import os


def metrics(run_dir):
    """The records of a run, metrics.jsonl, in order: a list of dicts, as docs/metrics.md describes them.

    A last line that a killed run left unfinished is no record. Raises OSError where there is no file, and
    ValueError, with file and line, where a line is no record.
    """
    path = os.path.join(os.path.expanduser(str(run_dir)), "metrics.jsonl")
    records = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith("\n"):
                break
            try:
                records.append(json.loads(line))
            except ValueError as fault:
                raise ValueError("%s:%d: %s" % (path, number, fault))
    return records
