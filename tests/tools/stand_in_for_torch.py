#!/usr/bin/env python3
"""In place of a Python that has PyTorch: runs what tools/gpu/kit asks of one.

It trains by the program itself, on the CPU, so its losses are PyTorch's to rounding. In the environment:
PROGRAM, and NO_TORCH (there is none), NO_COMPILE (it ends with --compile) or OTHER (losses of other
weights).
"""

import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

SCRATCH = pathlib.Path(tempfile.gettempdir())
PROGRAM = os.environ["PROGRAM"]


def train(recipe, directory, *pairs):
    command = [PROGRAM, "--config", recipe, "--device", "cpu"]
    for pair in (f"run.dir={directory}", *pairs):
        command += ["--set", pair]
    subprocess.run(command, check=True, capture_output=True)


def to_json():
    """The numbers of `config print`, of one level."""
    section, recipe = {}, {}
    for line in sys.stdin:
        if match := re.match(r"(\w+):", line):
            section = recipe.setdefault(match[1], {})
        elif match := re.match(r"  (\w+): (\d+)$", line):
            section[match[1]] = int(match[2])
    print(json.dumps(recipe))


def inputs(shape, initial):
    """Weights that the program begins with by itself."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
             "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings")
    recipe = initial.parent / "stand_in.yaml"
    shape = json.loads(shape.read_text())
    recipe.write_text(json.dumps({
        "model": {"family": "llama", "attention_bias": True, **{name: shape[name] for name in names}},
        "data": {"train": {"source": "synthetic"}, "valid": None, "seq_len": 16},
        "train": {"steps": 1, "micro_batch_size": 1, "global_batch_size": 1},
        "optimizer": {"lr": 0.0}, "schedule": {"name": "constant"}, "checkpoint": {"every": 1}}))
    run = initial.parent / "stand_in"
    train(recipe, run)
    subprocess.run([PROGRAM, "checkpoint", "export", run, "--out", initial], check=True,
                   capture_output=True)
    tokens = [i * i % shape["vocab_size"] for i in range(4096)]
    header = f"{{'descr': '<u4', 'fortran_order': False, 'shape': ({len(tokens)},), }}"
    header = header.ljust(117) + "\n"
    (initial / "tokens.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) +
                                         header.encode() + struct.pack(f"<{len(tokens)}I", *tokens))


def steps(options):
    initial = pathlib.Path(options["--initial"])
    recipe = json.loads(pathlib.Path(options["--recipe"]).read_text())["train"]
    compared, counted = sys.stdin.read().split()[1:]
    with tempfile.TemporaryDirectory() as scratch:
        begin = [] if "OTHER" in os.environ else [f"model.init_from={initial}"]
        train(initial.parent / "stand_in.yaml", f"{scratch}/run", *begin, "data.train.source=tokens",
              f"data.train.paths=[{initial}/tokens.npy]", "data.shuffle=false", "optimizer.lr=3.0e-4",
              f"train.steps={int(compared) + int(counted)}", "checkpoint.every=null", "log.every=1",
              f"train.micro_batch_size={recipe['micro_batch_size']}", "run.seed=5",
              f"train.global_batch_size={recipe['global_batch_size']}",
              "fsdp.mixed_precision.param_dtype=bf16", "fsdp.mixed_precision.grad_dtype=bf16")
        records = [json.loads(line) for line in open(f"{scratch}/run/metrics.jsonl")]
    records = [record for record in records if record["kind"] == "step"]
    print(json.dumps({"parameters": 1, "torch": "stand-in"}))
    for part in (records[:int(compared)], records[int(compared):]):
        print(json.dumps({"seconds": [0.5 for _ in part], "losses": [r["loss"] for r in part],
                          "grad_norms": [r["grad_norm"] for r in part], "peak_bytes": 1 << 20}))


def main():
    script, arguments = pathlib.Path(sys.argv[1]), sys.argv[2:]
    if script.name == "-c":
        if "yaml" in arguments[0]:
            to_json()
        elif "NO_TORCH" in os.environ:
            sys.exit("ModuleNotFoundError: No module named 'torch'")
        else:
            print("2.15.0 True")
        return
    assert script.exists(), script
    if script.name == "torch_inputs.py":
        assert arguments[2:] == ["--device", "cuda", "--dtype", "bfloat16"], arguments
        inputs(*map(pathlib.Path, arguments[:2]))
    elif script.name == "torch_step.py":
        if "NO_COMPILE" in os.environ and "--compile" in arguments:
            sys.exit("CompilationError: no")
        flags = [word for word in arguments if word != "--compile"]
        steps(dict(zip(flags[::2], flags[1::2])))
    elif script.name == "torch_images.py":
        flags = [word for word in arguments if word != "--compile"]
        asked = dict(zip(flags[::2], flags[1::2]))
        assert json.loads(pathlib.Path(asked["--shape"]).read_text())["hidden_size"] == 24, arguments
        print(json.dumps({"seconds": [0.25] * int(asked["--steps"]), "parameters": 1,
                          "peak_bytes": None}))
    elif script.name == "torch_ceilings.py":
        print(json.dumps([{"forward": 1e-3, "backward": 2e-3} if task["kind"] == "attention" else 1e-3
                          for task in json.load(sys.stdin)]))
    else:
        sys.exit(f"there is no {script}")


if __name__ == "__main__":
    main()
