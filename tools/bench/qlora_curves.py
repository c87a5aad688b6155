#!/usr/bin/env python3
"""The held-out loss that a coded base costs: LoRA over bf16, int8 and nf4, by seeds, and a plot.

    bazel build -c opt //cmd:fsdp-train
    $(tools/bench/setup) tools/bench/qlora_curves.py [--plot docs/benchmarks/qlora.png]

A Llama of 7 million parameters is trained on the Jargon File and exported, and LoRA tunes it on the
conversations of answers.py over each form of the base. Forms are compared with bf16 of the same seed: the
mean of the differences, in nats a token of all held-out answers, and its standard error. The run fails where
int8 costs more than 0.01 nats and two of these.
"""

import argparse
import json
import math
import pathlib
import statistics
import sys
import tempfile

import answers

FORMS = {"bf16": "base: none", "int8": "base: int8", "nf4": "base: nf4",
         "nf4, fp32 scales": "base: nf4, base_scales: fp32"}
MOST = {"int8": 0.01}
MODEL = """{family: llama, hidden_size: 256, intermediate_size: 768, num_hidden_layers: 8,
         num_attention_heads: 8, num_key_value_heads: 4, tie_word_embeddings: true,
         max_position_embeddings: 128, initializer_range: 0.03}"""


def train_base(folder, steps):
    recipe = folder / "base.yaml"
    recipe.write_text(f"""
run: {{name: base, dir: {folder / 'base'}}}
model: {MODEL}
data:
  train: {{source: text, paths: [configs/data/jargon.txt], tokenizer: {folder / 'tokenizer/tokenizer.json'}}}
  valid: null
  seq_len: {answers.SEQ}
  cache: {folder / 'cache'}
train: {{steps: {steps}, micro_batch_size: 16, global_batch_size: 16}}
optimizer: {{lr: 2.0e-3, betas: [0.9, 0.95], weight_decay: 0.1}}
schedule: {{name: cosine, warmup_steps: 50, min_lr_ratio: 0.1}}
log: {{every: 50}}
""", "utf-8")
    print(answers.call("--config", recipe).splitlines()[-4], flush=True)
    answers.call("checkpoint", "export", folder / "base", "--out", folder / "hf")


def tune(folder, form, seed, steps, every):
    """Step -> loss of the held-out answers."""
    name = f"{form}, {seed}".replace(", ", "-").replace(" ", "-")
    recipe = folder / f"{name}.yaml"
    recipe.write_text(f"""
run: {{name: {name}, dir: {folder / name}, seed: {seed}}}
model: {{init_from: {folder / 'hf'}, lora: {{rank: 8, {FORMS[form]}}}}}
fsdp: {{mixed_precision: {{param_dtype: bf16}}}}
data:
  train: {{source: chat, paths: ["{folder / 'talks.jsonl'}"]}}
  valid: {{source: chat, paths: ["{folder / 'held.jsonl'}"]}}
  seq_len: {answers.SEQ}
  packing: samples
  cache: {folder / 'cache'}
train: {{steps: {steps}, micro_batch_size: 16, global_batch_size: 16}}
eval: {{every: {every}, steps: 1000}}
optimizer: {{lr: 5.0e-3, betas: [0.9, 0.95], weight_decay: 0.1}}
schedule: {{name: cosine, warmup_steps: 10, min_lr_ratio: 0.1}}
checkpoint: {{every: null}}
log: {{every: 10}}
""", "utf-8")
    answers.call("--config", recipe)
    records = [json.loads(line) for line in (folder / name / "metrics.jsonl").open()]
    return {r["step"]: r["loss"] for r in records if r.get("kind") == "eval"}


def plot(curves, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axis = pyplot.subplots(figsize=(7, 3.6), constrained_layout=True)
    for form, of_seeds in curves.items():
        steps = list(of_seeds[0])
        axis.plot(steps, [statistics.mean(c[s] for c in of_seeds) for s in steps], label=form)
        axis.fill_between(steps, [min(c[s] for c in of_seeds) for s in steps],
                          [max(c[s] for c in of_seeds) for s in steps], alpha=0.15)
    axis.set_xlabel("step")
    axis.set_ylabel("nats a token of held-out answers")
    axis.legend()
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-steps", type=int, default=600)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=20, help="steps between evaluations")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plot", type=pathlib.Path)
    parser.add_argument("--binary", type=pathlib.Path, default=answers.BINARY)
    parser.add_argument("--out", type=pathlib.Path, help="a directory to keep what is made")
    options = parser.parse_args()
    answers.BINARY = options.binary
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.out or pathlib.Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        answers.conversations(folder)
        answers.make_tokenizer(folder / "tokenizer")
        train_base(folder, options.base_steps)
        curves = {form: [] for form in FORMS}
        for seed in range(1, options.seeds + 1):
            for form, of_seeds in curves.items():
                of_seeds.append(tune(folder, form, seed, options.steps, options.every))
                print(f"seed {seed}, {form}: {of_seeds[-1][options.steps]:.5f}", flush=True)
    failed = False
    for form, of_seeds in curves.items():
        ends = [c[options.steps] for c in of_seeds]
        costs = [a - b[options.steps] for a, b in zip(ends, curves["bf16"])]
        error = statistics.stdev(costs) / math.sqrt(len(costs)) if len(costs) > 1 else 0.0
        print(f"{form:18} {statistics.mean(ends):.4f}  costs {statistics.mean(costs):+.4f} "
              f"+- {error:.4f}")
        failed |= statistics.mean(costs) > MOST.get(form, math.inf) + 2 * error
    if options.plot:
        plot(curves, options.plot)
    if failed:
        sys.exit("int8 costs more than it may")


if __name__ == "__main__":
    main()
