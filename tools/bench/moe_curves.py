#!/usr/bin/env python3
"""A small mixture of experts beside a dense model of as much work: what they learn, by seeds, and a plot.

    bazel build -c opt //cmd:fsdp-train
    $(tools/bench/setup) tools/bench/moe_curves.py [--plot docs/benchmarks/moe.png]

The mixture is configs/models/moe-small.yaml: with its balance loss, with f of the step before, and without
one. The dense model is a Llama with an MLP of k experts' width. All loss is held out, in nats a byte. The run
fails where the dense model is not worse by two standard errors of the differences at equal seeds.
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPE = ROOT / "configs" / "models" / "moe-small.yaml"
DENSE = {"family": "llama", "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
         "num_attention_heads": 4, "vocab_size": 256, "max_position_embeddings": 64}
FORMS = {"mixture": [], "mixture, f of the step before": ["train.router.aux_scope=step"],
         "mixture, no balance": ["train.router.aux_loss=0"], "dense": []}


def train(binary, folder, form, seed):
    """Step -> held-out loss, and step -> entropy of the loads (of mixtures)."""
    run = folder / f"{list(FORMS).index(form)}-{seed}"
    settings = [*FORMS[form], f"run.seed={seed}", f"run.dir={run}", "checkpoint.every=null", "eval.every=400",
                "log.every=50"]
    recipe = RECIPE
    if form == "dense":
        import yaml
        recipe = folder / "dense.yaml"
        recipe.write_text(yaml.safe_dump({**yaml.safe_load(RECIPE.read_text()), "model": DENSE}))
    command = [binary, "--config", recipe]
    for setting in settings:
        command += ["--set", setting]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if result.returncode != 0:
        sys.exit(result.stderr)
    records = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    losses = {r["step"]: r["loss"] for r in records if r["kind"] == "eval"}
    entropies = {r["step"]: r["experts"]["entropy"] for r in records if "experts" in r}
    return losses, entropies


def plot(curves, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.8), constrained_layout=True)
    for form, of_seeds in curves.items():
        for axis, which in zip(axes, (0, 1)):
            steps = list(of_seeds[0][which])
            if not steps:
                continue
            values = [[c[which][s] for c in of_seeds] for s in steps]
            axis.plot(steps, [statistics.mean(v) for v in values], label=form)
            axis.fill_between(steps, [min(v) for v in values], [max(v) for v in values], alpha=0.15)
    axes[0].set_ylabel("held out, nats a byte")
    axes[1].set_ylabel("entropy of loads / ln N")
    for axis in axes:
        axis.set_xlabel("step")
    axes[0].legend()
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plot", type=pathlib.Path)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "bazel-bin" / "cmd" / "fsdp-train")
    options = parser.parse_args()
    curves = {form: [] for form in FORMS}
    with tempfile.TemporaryDirectory() as temporary:
        for seed in range(1, options.seeds + 1):
            for form, of_seeds in curves.items():
                of_seeds.append(train(options.binary, pathlib.Path(temporary), form, seed))
                print(f"seed {seed}, {form}: {list(of_seeds[-1][0].values())[-1]:.4f}", flush=True)
    ends = {form: [list(c[0].values())[-1] for c in of_seeds] for form, of_seeds in curves.items()}
    failed = False
    for form, losses in ends.items():
        better = [d - m for d, m in zip(ends["dense"], losses)]
        error = statistics.stdev(better) / math.sqrt(len(better)) if len(better) > 1 else 0.0
        entropy = [list(c[1].values())[-1] for c in curves[form] if c[1]]
        even = f"  entropy {statistics.mean(entropy):.3f}" if entropy else ""
        print(f"{form:30} {statistics.mean(losses):.4f}  better than dense by {statistics.mean(better):+.4f} "
              f"+- {error:.4f}{even}")
        failed |= form == "mixture" and statistics.mean(better) <= 2 * error
    if options.plot:
        plot(curves, options.plot)
    if failed:
        sys.exit("the mixture is not better than the dense model")


if __name__ == "__main__":
    main()
