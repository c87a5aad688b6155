#!/usr/bin/env python3
"""Prices rows that other programs publish of H100s, none of which any number was set from.

LLM.Q (github.com/IST-DASLab/llmq, benchmarks/H100x1.md) is a native program: reached: 1.
llm-foundry (github.com/mosaicml/llm-foundry, scripts/train/benchmarking) and torchtitan
(github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md) run on PyTorch: they get
the share that the FSDP paper's run reaches, from configs/hardware/paper-cluster.yaml.

    tools/paper/others.py [--binary FILE]
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HARDWARE = ROOT / "configs/hardware"
# PyTorch leaves the number of multiprocessors to NCCL, and products take all.
BF16 = ("fsdp.mixed_precision={param_dtype: bf16, grad_dtype: bf16, reduce_dtype: bf16}", "fsdp.collective_blocks=0")
REDUCED_IN_FP32 = ("fsdp.mixed_precision={param_dtype: bf16, reduce_dtype: fp32}", "fsdp.collective_blocks=0")
# torchtitan's GPUs: "96 GB HBM2e, 500 W". Memory as 2.4 of 3.35 TB/s; clocks fall with the square
# root of the power, an assumption.
SLOWER_H100 = {"copy_bytes_per_s": 2.4 / 3.35, "product_share": (500 / 700) ** 0.5,
               "attention_forward_flops": (500 / 700) ** 0.5,
               "attention_backward_flops": (500 / 700) ** 0.5}


BASE = """model: {family: FAMILY}
data: {train: {source: synthetic}, valid: null, seq_len: 1024}
train: {steps: 5, micro_batch_size: 16, global_batch_size: 512}
optimizer: {name: adamw}
schedule: {name: constant}
checkpoint: {every: null}
"""


def number_of(text, key):
    return float(re.search(rf"^{key}: (\S+)", text, flags=re.M)[1])


def machine(folder, scales=None, reached=None):
    """An H100 with some of its numbers scaled, as a file."""
    text = (HARDWARE / "h100-80gb.yaml").read_text()
    for key, scale in (scales or {}).items():
        text = re.sub(rf"^{key}: \S+", f"{key}: {number_of(text, key) * scale:.6g}", text,
                      flags=re.M)
    if reached is not None:
        text = text.replace("sources:\n", "sources:\n  reached: \"seen: 7b batch_2 256\"\n", 1)
        text = text.replace("product_share:", f"reached: {reached}\nproduct_share:", 1)
    path = pathlib.Path(folder) / f"h100_{len(scales or {})}_{reached}.yaml"
    path.write_text(text)
    return path


def qwen(name, batch):
    in_bf16 = BF16[0].replace("}", ", master_dtype: bf16}")
    return ("llama", [f"model.preset=qwen2.5-{name}", f"train.micro_batch_size={batch}",
                      "optimizer.state_dtype=bf16", "fsdp.sharding_strategy=no_shard", in_bf16], 1)


def mpt(width, layers, heads, length, batch, passes, world, recompute):
    fields = (f"model={{hidden_size: {width}, intermediate_size: {4 * width}, "
              f"num_hidden_layers: {layers}, num_attention_heads: {heads}, vocab_size: 50368, "
              f"max_position_embeddings: {length}}}")
    return ("gpt2", [fields, f"data.seq_len={length}", f"train.micro_batch_size={batch}",
             f"train.global_batch_size={batch * passes * world}",
             f"train.activation_checkpointing={'full' if recompute else 'none'}", *BF16], world)


def llama(world):
    return ("llama", ["model.preset=llama3.1-8b", "data.seq_len=8192", "train.micro_batch_size=2",
             f"train.global_batch_size={2 * world}",
             "train.activation_checkpointing=selective", *REDUCED_IN_FP32], world)


# Program, row, tokens a second of a GPU, and how it is run.
ROWS = [
    ("LLM.Q", "Qwen2.5 0.5B", 149500, qwen("0.5b", 32)),
    ("LLM.Q", "Qwen2.5 1.5B", 58900, qwen("1.5b", 32)),
    ("LLM.Q", "Qwen2.5 3B", 30900, qwen("3b", 16)),
    ("LLM.Q", "Qwen2.5 7B", 13800, qwen("7b", 4)),
    ("llm-foundry", "MPT 760M", 63147, mpt(1536, 24, 12, 2048, 24, 2, 8, False)),
    ("llm-foundry", "MPT 1B", 45455, mpt(2048, 24, 16, 2048, 14, 1, 8, False)),
    ("llm-foundry", "MPT 3B", 27046, mpt(2560, 32, 20, 1024, 20, 6, 8, False)),
    ("llm-foundry", "MPT 7B", 10643, mpt(4096, 32, 32, 2048, 6, 1, 8, False)),
    ("llm-foundry", "MPT 13B", 4792, mpt(5120, 40, 40, 2048, 2, 1, 8, False)),
    ("llm-foundry", "MPT 30B", 2002, mpt(7168, 48, 56, 2048, 3, 1, 8, True)),
    ("llm-foundry", "MPT 70B", 1039, mpt(8192, 80, 64, 2048, 8, 1, 64, True)),
    ("torchtitan", "Llama 8B compiled, 8 GPUs", 6667, llama(8)),
    ("torchtitan", "Llama 8B compiled, 128 GPUs", 6514, llama(128)),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "bazel-bin/cmd/fsdp-train"))
    binary = parser.parse_args().binary
    reached = number_of((HARDWARE / "paper-cluster.yaml").read_text(), "reached")
    errors = {}
    with tempfile.TemporaryDirectory() as folder:
        machines = {"LLM.Q": machine(folder), "llm-foundry": machine(folder, None, reached),
                    "torchtitan": machine(folder, SLOWER_H100, reached)}
        for program, name, published, (family, settings, world) in ROWS:
            recipe = pathlib.Path(folder) / "recipe.yaml"
            recipe.write_text(BASE.replace("FAMILY", family))
            command = [binary, "simulate", "--config", str(recipe),
                       "--world-size", str(world), "--hardware", str(machines[program]), "--json"]
            for setting in settings:
                command += ["--set", setting]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if not done.stdout:
                sys.exit(done.stderr)
            step = json.loads(done.stdout)
            if step["tokens_per_s"] is None:
                print(f"{program:12} {name:28} does not fit")
                continue
            ours = step["tokens_per_s"] / world
            error = ours / published - 1
            errors.setdefault(program, []).append(abs(error))
            print(f"{program:12} {name:28} published {published:8.0f}  simulated {ours:8.0f}  "
                  f"{100 * error:+5.1f} %")
    for program, found in errors.items():
        print(f"{program:12} median {100 * statistics.median(found):.1f} %, "
              f"largest {100 * max(found):.1f} %")


if __name__ == "__main__":
    main()
