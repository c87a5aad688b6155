#!/usr/bin/env python3
"""T5, ViT, RegNet and DHEN learnt by us and by PyTorch from one recipe: held-out losses, and a plot.

    bazel build -c opt //cmd:fsdp-train
    $(tools/bench/setup) tools/bench/model_curves.py --plot docs/benchmarks/models.png

Recipes are configs/models/FAMILY-small.yaml with fewer steps. Both sides begin with the same weights for
a seed and read the same batches in the same order; the first loss must agree to 1e-4, or the run fails.
The seeds differ in initial weights alone. Runs have one thread each.

  vit, regnet   Fashion-MNIST (Debian's dataset-fashion-mnist), shuffled once, never flipped
  t5            span corruption of configs/data/jargon.txt, its spans drawn as ours draws them (spans.py)
  dhen          clicks of a planted function of third order, drawn here
"""

import argparse
import concurrent.futures
import dataclasses
import gzip
import json
import math
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import curves as single
import step as bench

ROOT = bench.HERE.parents[1]
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
SAME_FIRST = 1e-4
SIDES = ("ours", "PyTorch")
NAMES = {"vit": "ViT", "t5": "T5", "regnet": "RegNet", "dhen": "DHEN"}
STEPS = {"vit": 936, "t5": 600, "regnet": 468, "dhen": 1200}
HELD_OUT = {"t5": 1600, "dhen": 25600}  # Samples at most; of images all.


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help=f"default: {STEPS}")
    parser.add_argument("--evaluations", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)),
                        help="runs at a time (default: one a core)")
    parser.add_argument("--binary", default=bench.BINARY, type=pathlib.Path)
    parser.add_argument("--json", metavar="FILE", help="every loss; curves that it has are kept")
    parser.add_argument("--plot", metavar="FILE", help="the curves (.png or .svg)")
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error("--seeds is at least 2")
    return args


def fashion(part):
    import numpy as np
    arrays = [np.frombuffer(gzip.open(FASHION / f"{part}-{name}-ubyte.gz").read(), np.uint8)[skip:]
              for name, skip in (("images-idx3", 16), ("labels-idx1", 8))]
    return arrays[0].reshape(-1, 28, 28, 1), arrays[1]


def write_idx(path, values):
    import numpy as np
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
    path.write_bytes(header + values.tobytes())


def image_data(directory, recipe, steps):
    """Writes both parts for us; returns settings, and arrays for PyTorch."""
    import numpy as np
    settings, arrays = ["data.train.flip=false"], {}
    batch = recipe["train"]["global_batch_size"]
    for part, name in (("train", "train"), ("valid", "t10k")):
        images, labels = fashion(name)
        if part == "train":  # Whole batches, so that an epoch ends with one.
            order = np.random.default_rng(1).permutation(len(images) // batch * batch)
            images, labels = images[order], labels[order]
        write_idx(directory / f"{part}-images", images[..., 0])
        write_idx(directory / f"{part}-labels", labels)
        settings += [f"data.{part}.paths={directory / part}-images",
                     f"data.{part}.labels={directory / part}-labels"]
        source = recipe["data"]["train"]
        pixels = (images.astype(np.float32) / 255 - source["mean"][0]) / source["std"][0]
        arrays[part] = (pixels.transpose(0, 3, 1, 2), labels.astype(np.int64))
    return settings, arrays


def t5_data(directory, recipe, steps):
    import numpy as np
    import spans
    data, vocabulary = recipe["data"], recipe["model"]["vocab_size"]
    density, mean = data["noise_density"], data["mean_span"]
    length = spans.longest_text(data["seq_len"], density, mean)
    text = (ROOT / "configs/data/jargon.txt").read_bytes()
    cut = len(text) - int(0.05 * len(text))
    settings, arrays = [], {}
    for part, piece, count, seed in (
            ("train", text[:cut], steps * recipe["train"]["global_batch_size"], 1),
            ("valid", text[cut:], HELD_OUT["t5"], 0)):
        (directory / f"{part}.txt").write_bytes(piece)
        windows = len(piece) // length  # The end-of-text token comes behind the file.
        if part == "valid":
            count = min(count, windows)
        pairs = [spans.corrupt(piece[w * length : (w + 1) * length], sample, seed, density, mean,
                               vocabulary, data["train"]["eot"])
                 for sample in range(count) for w in [sample % windows]]
        arrays[part] = tuple(np.array(column, np.int64) for column in zip(*pairs))
        settings.append(f"data.{part}={{source: text, paths: [{directory / part}.txt], "
                        f"tokenizer: bytes, eot: {data['train']['eot']}}}")
    return settings, arrays


def click_data(directory, recipe, steps):
    """Clicks whose log-odds are a function of first, second and third order in the columns."""
    import numpy as np
    model, random = recipe["model"], np.random.default_rng(1)
    numbers, rows = model["dense_columns"], model["table_rows"]
    weights = [random.standard_normal(n) for n in rows]
    settings, arrays = [], {}
    for part, count in (("train", steps * recipe["train"]["global_batch_size"]),
                        ("valid", HELD_OUT["dhen"])):
        x = random.standard_normal((count, numbers)).round(3).astype(np.float32)
        ids = np.stack([random.integers(0, n, count) for n in rows], axis=1)
        of = [weight[column] for weight, column in zip(weights, ids.T)]
        odds = (0.5 * (x[:, 0] + of[0]) + of[1] * of[2] + x[:, 1] * of[3]
                + of[3] * of[4] * of[5] + x[:, 2] * of[1] * of[4])
        labels = (random.random(count) < 1 / (1 + np.exp(-odds))).astype(np.float32)
        names = {"dense": [f"x{i}" for i in range(numbers)],
                 "categorical": [f"c{i}" for i in range(len(rows))]}
        with open(directory / f"{part}.csv", "w") as file:
            file.write(",".join(["label", *names["dense"], *names["categorical"]]) + "\n")
            for label, row, columns in zip(labels, x, ids):
                file.write(f"{label:.0f},{','.join(f'{v:.3f}' for v in row)},"
                           f"{','.join(map(str, columns))}\n")
        settings.append(f"data.{part}={{source: clicks, paths: [{directory / part}.csv], planted: null, "
                        f"dense: [{', '.join(names['dense'])}], "
                        f"categorical: [{', '.join(names['categorical'])}]}}")
        arrays[part] = (x, ids, labels)
    return settings, arrays


DATA = {"vit": image_data, "regnet": image_data, "t5": t5_data, "dhen": click_data}


@dataclasses.dataclass
class Task:
    """A family's recipe and data in a directory, with initial weights of a seed."""

    family: str
    seed: int
    directory: pathlib.Path
    binary: pathlib.Path
    config: pathlib.Path
    settings: list
    recipe: dict

    @property
    def initial(self):
        return self.directory / f"initial-{self.seed}"

    def ours(self):
        run = self.directory / f"run-{self.seed}"
        command = [self.binary, "--config", self.config]
        for setting in [*self.settings, f"run.dir={run}"]:
            command += ["--set", setting]
        with open(self.directory / f"ours-{self.seed}.log", "wb") as log:
            if subprocess.run(command, stdout=log, stderr=log).returncode != 0:
                raise RuntimeError(f"ours has ended: {pathlib.Path(log.name).read_text()[-800:]}")
        return single.read_curve((run / "metrics.jsonl").read_text())

    def pytorch(self):
        import numpy as np
        import torch_step
        torch = torch_step.torch
        torch.set_num_threads(1)
        model = torch_step.torch_models.make(self.recipe["model"])
        model.load(self.initial)
        optimizer = torch_step.make_optimizer(model, self.recipe["optimizer"])
        with np.load(self.directory / "samples.npz") as file:
            train, valid = ([torch.from_numpy(file[f"{part}{i}"])
                             for i in range(len(model.INPUTS))] for part in ("train", "valid"))
        batch = self.recipe["train"]["global_batch_size"]
        steps, every = self.recipe["train"]["steps"], self.recipe["eval"]["every"]
        learning_rate = single.Task(self.directory, self.binary, self.seed, [], self.recipe,
                                    {}).learning_rate
        curve = {"steps": [], "held out": {}, "skipped": 0}
        for step in range(1, steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step)
            first = (step - 1) * batch % (len(train[0]) // batch * batch)
            optimizer.zero_grad(set_to_none=True)
            loss = model(*(t[first : first + batch] for t in train))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), self.recipe["train"]["grad_clip"])
            optimizer.step()
            model.update_tables(learning_rate(step))
            curve["steps"].append(loss.item())
            if step % every == 0 or step == steps:
                model.eval()
                total = 0.0
                with torch.no_grad():
                    for first in range(0, len(valid[0]), 256):
                        part = [t[first : first + 256] for t in valid]
                        total += len(part[0]) * model(*part).item()
                curve["held out"][step] = total / len(valid[0])
                model.train()
        return curve


def make_tasks(args, family, directory):
    import numpy as np
    directory.mkdir()
    config = ROOT / "configs" / "models" / f"{family}-small.yaml"
    plain = bench.resolve(args.binary, config, [])
    steps, batch = args.steps or STEPS[family], plain["train"]["global_batch_size"]
    data, arrays = DATA[family](directory, plain, steps)
    np.savez(directory / "samples.npz", **{f"{part}{i}": array for part, of in arrays.items()
                                           for i, array in enumerate(of)})
    shape = directory / "shape.json"
    shape.write_text(json.dumps(plain["model"]))
    held_out = len(arrays["valid"][0])
    for seed in range(1, args.seeds + 1):
        settings = [
            "run.seed=1", "run.threads=1", f"model.init_from={directory / f'initial-{seed}'}",
            "train.epochs=null", f"train.steps={steps}",
            f"schedule.warmup_steps={min(plain['schedule']['warmup_steps'], steps // 10)}",
            f"eval.every={max(1, steps // args.evaluations)}",
            f"eval.steps={math.ceil(held_out / batch)}", *data, "data.shuffle=false",
            "checkpoint.every=null", "log.every=1", "log.tensorboard=false"]
        recipe = bench.resolve(args.binary, config, settings) | {"model": plain["model"]}
        task = Task(family, seed, directory, args.binary, config, settings, recipe)
        subprocess.run([sys.executable, bench.HERE / "torch_inputs.py", shape, task.initial,
                        str(seed), "--weights-only"], check=True)
        yield task


def run_one(task, side):
    return task.ours() if side == "ours" else task.pytorch()


def run_family(args, tasks):
    """side -> its curves, seed by seed."""
    curves = {side: [] for side in SIDES}
    spawn = multiprocessing.get_context("spawn")  # PyTorch has threads.
    with concurrent.futures.ProcessPoolExecutor(args.jobs, mp_context=spawn) as pool:
        runs = [(task, side, pool.submit(run_one, task, side)) for task in tasks for side in SIDES]
        for task, side, run in runs:
            curves[side].append(run.result())
            print(f"{task.family}, seed {task.seed}, {side}: first "
                  f"{curves[side][-1]['steps'][0]:.6f}, held out "
                  f"{single.last(curves[side][-1]):.4f}", file=sys.stderr, flush=True)
    return curves


def read_families(text):
    """The curves that --json has written. JSON turns the steps of held-out losses into text."""
    families = json.loads(text)
    for curve in (curve for sides in families.values() for of in sides.values() for curve in of):
        curve["held out"] = {int(step): loss for step, loss in curve["held out"].items()}
    return families


def first_losses_agree(curves):
    return all(bench.difference(ours["steps"][0], theirs["steps"][0]) <= SAME_FIRST
               for ours, theirs in zip(*(curves[side] for side in SIDES)))


def summary(curves):
    """Means of the last held-out losses, spreads, and whether ours is worse by more than the larger."""
    last = {side: [single.last(curve) for curve in curves[side]] for side in SIDES}
    mean = {side: statistics.fmean(losses) for side, losses in last.items()}
    spread = {side: max(losses) - min(losses) for side, losses in last.items()}
    worse = not mean["ours"] - mean["PyTorch"] <= max(spread.values())
    return {"mean": mean, "spread": spread, "worse": worse}


def print_table(families):
    print(f"{'':8} {'steps':>6} {'ours':>8} {'spread':>8} {'PyTorch':>8} {'spread':>8} {'ours - it':>10}")
    for family, curves in families.items():
        s = summary(curves)
        mean, spread = s["mean"], s["spread"]
        print(f"{family:8} {len(curves['ours'][0]['steps']):6} {mean['ours']:8.4f} "
              f"{spread['ours']:8.4f} {mean['PyTorch']:8.4f} {spread['PyTorch']:8.4f} "
              f"{mean['ours'] - mean['PyTorch']:+10.4f}{'  worse' if s['worse'] else ''}")


def plot(families, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(1, len(families), figsize=(3.3 * len(families), 3.2),
                                   constrained_layout=True, squeeze=False)
    for at, (family, curves) in zip(axes[0], families.items()):
        for i, side in enumerate(SIDES):
            line = ("C0", "-") if side == "ours" else ("black", "--")
            of = [sorted(curve["held out"].items()) for curve in curves[side]]
            steps = [step for step, _ in of[0]]
            losses = [[loss for _, loss in curve] for curve in of]
            columns = list(zip(*losses))
            at.plot(steps, [statistics.fmean(c) for c in columns], line[1], color=line[0],
                    marker="o", markersize=3, linewidth=1.2, label=side)
            at.fill_between(steps, [min(c) for c in columns], [max(c) for c in columns],
                            color=line[0], alpha=0.12, linewidth=0)
        at.set_title(NAMES[family], fontsize=10)
        at.set_xlabel("step")
    axes[0][0].set_ylabel(f"held-out loss, nats\n(mean and range of {len(of)} seeds)")
    axes[0][0].legend(fontsize=8)
    figure.savefig(path, dpi=150)


def run(args, directory):
    file = pathlib.Path(args.json) if args.json else None
    families = read_families(file.read_text()) if file and file.exists() else {}
    for family in args.families:
        if family not in families:
            tasks = list(make_tasks(args, family, directory / family))
            families[family] = run_family(args, tasks)
            if not first_losses_agree(families[family]):
                sys.exit(f"{family}: the first losses differ: it is not the same work")
            if file:
                file.write_text(json.dumps(families))
    print_table(families)
    if args.plot:
        plot(families, args.plot)
    worse = [family for family, curves in families.items() if summary(curves)["worse"]]
    if worse:
        sys.exit(f"ours is worse than PyTorch by more than the spread: {', '.join(worse)}")


def main():
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="fsdp-curves-") as directory:
        run(args, pathlib.Path(directory))


if __name__ == "__main__":
    main()
