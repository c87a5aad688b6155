#!/usr/bin/env python3
"""How fast weights come in and go out: import, init_from and export of bf16 and fp16 files.

    bazel build -c opt //cmd:fsdp-train
    tools/bench/files.py [--binary bazel-bin/cmd/fsdp-train --binary OLDER] [--priority]

Makes a Llama of `--layers` layers of Llama 3.2 1B's width in memory (/dev/shm: no disk counts), each
file's values random and finite, and works on it with each binary by turns. A rate is MiB of the
16-bit file a second, from the start of the process to its end; what the same bytes take to be copied
by cp stands first, and seconds are of the CPU. init_from is a run of one step in which nothing but
the last norm trains. Takes 1 GB of memory for each layer. In a virtual machine whose host takes free
memory back, its first touch is most of what is measured: read the ratios, or the fastest.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HIDDEN, INNER, VOCABULARY, HEADS, KEY_VALUE_HEADS = 2048, 8192, 32000, 32, 8
TYPES = {"bf16": ("BF16", "bfloat16"), "fp16": ("F16", "float16")}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", action="append", type=pathlib.Path,
                        help="may be given several times: the first is the one compared with")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", default="/dev/shm")
    parser.add_argument("--priority", action="store_true",
                        help="real-time scheduling: for a machine that does other work, too")
    args = parser.parse_args()
    args.binary = args.binary or [ROOT / "bazel-bin/cmd/fsdp-train"]
    for binary in args.binary:
        if not binary.exists():
            parser.error(f"there is no {binary}: bazel build -c opt //cmd:fsdp-train")
    return args


def tensors(layers):
    kv = HIDDEN // HEADS * KEY_VALUE_HEADS
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for i in range(layers):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (HIDDEN,)
        yield layer + "self_attn.q_proj.weight", (HIDDEN, HIDDEN)
        yield layer + "self_attn.k_proj.weight", (kv, HIDDEN)
        yield layer + "self_attn.v_proj.weight", (kv, HIDDEN)
        yield layer + "self_attn.o_proj.weight", (HIDDEN, HIDDEN)
        yield layer + "post_attention_layernorm.weight", (HIDDEN,)
        yield layer + "mlp.gate_proj.weight", (INNER, HIDDEN)
        yield layer + "mlp.up_proj.weight", (INNER, HIDDEN)
        yield layer + "mlp.down_proj.weight", (HIDDEN, INNER)
    yield "model.norm.weight", (HIDDEN,)


def make_directory(path, layers, dtype):
    """Returns the bytes of its tensors."""
    path.mkdir()
    header, at = {}, 0
    for name, shape in tensors(layers):
        size = 2
        for dim in shape:
            size *= dim
        header[name] = {"dtype": TYPES[dtype][0], "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # Sign and all but the largest exponents at random: finite, and within the range of both.
    rng = random.Random(1)
    high = [(b & 0x80) | (0x3C if dtype == "bf16" else 0x20) | (b & 3) for b in range(256)]
    block = bytearray(1 << 20)  # Small: what it starts counts this program's memory, too.
    block[0::2] = rng.randbytes(1 << 19)
    block[1::2] = rng.randbytes(1 << 19).translate(bytes(high))
    with open(path / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        left = at
        while left > 0:
            file.write(block[:left])
            left -= len(block)
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": layers, "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "hidden_act": "silu", "torch_dtype": TYPES[dtype][1],
    }
    (path / "config.json").write_text(json.dumps(config))
    return at


def recipe(source, run):
    return f"""
run: {{name: files, dir: {run}, threads: 2}}
model: {{init_from: {source}}}
optimizer: {{groups: [{{match: "model.embed_tokens.*", frozen: true}}, {{match: "model.layers.*", frozen: true}}]}}
data: {{train: {{source: synthetic}}, valid: null, seq_len: 1}}
train: {{steps: 1, micro_batch_size: 1, global_batch_size: 1}}
schedule: {{name: constant}}
checkpoint: {{every: null}}
"""


def timed(command, priority):
    """Seconds, those of the CPU, and bytes resident at most."""
    if priority:
        command = ["chrt", "-r", "5", *command]
    begin = time.monotonic()
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)
    errors = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begin
    if status != 0:
        sys.exit(f"{command[0]} {command[1]} ... ended with status {status}:\n{errors}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main():
    args = arguments()
    measured = {}  # (what, binary's index) -> [(MiB/s, CPU seconds, peak bytes)]
    with tempfile.TemporaryDirectory(prefix="files_bench_", dir=args.directory) as top:
        top = pathlib.Path(top)
        for dtype in TYPES:
            source, checkpoint, out = top / "source", top / "checkpoint", top / "out"
            size = make_directory(source, args.layers, dtype)

            def note(what, index, command, remove=()):
                seconds, cpu, peak = timed(command, args.priority)
                measured.setdefault((what, index), []).append((size / seconds / 2**20, cpu, peak))
                for path in remove:
                    shutil.rmtree(path)

            for r in range(args.rounds):
                order = list(enumerate(args.binary))
                for index, binary in reversed(order) if r % 2 else order:
                    note("cp", index, ["cp", "-r", source, out], [out])
                    note(f"import {dtype}", index,
                         [binary, "checkpoint", "import", source, "--out", checkpoint])
                    note(f"export {dtype}", index,
                         [binary, "checkpoint", "export", checkpoint, "--out", out, "--dtype",
                          dtype], [out, checkpoint])
                    (top / "recipe.yaml").write_text(recipe(source, top / "run"))
                    note(f"init_from {dtype}", index, [binary, "--config", top / "recipe.yaml"],
                         [top / "run"])
            shutil.rmtree(source)
    print(f"{size / 2**20:.0f} MiB of 16-bit weights, {args.rounds} rounds, MiB/s: median "
          "(slowest .. fastest), CPU time, peak resident")
    whats = dict.fromkeys(what for what, _ in measured)
    for what in whats:
        for index, binary in enumerate(args.binary):
            rates, cpu, peaks = zip(*measured[what, index])
            label = what if what == "cp" else f"{what}, {binary}"
            print(f"{label}: {statistics.median(rates):.0f} ({min(rates):.0f} .. {max(rates):.0f}), "
                  f"{statistics.median(cpu):.2f} s, {max(peaks) / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
