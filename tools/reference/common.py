"""The common part of the references of all families: batches, training, errors, files.

A family gives a Case (name, seed, vocab, sequence, masked, documents), a function that builds the
model, and one that makes of it the module that computes in float64; where its samples are no
sequences of tokens, a Causal of its own.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # Models are built from their configuration.

import numpy as np
import safetensors.numpy
import torch
import transformers

BATCH = 5  # Sequences of the batch whose gradients are kept: no world size from 2 to 4 divides it.
LOGIT_ROWS = 24
STEPS = 20
GLOBAL_BATCH = 6  # Sequences of an optimizer step.
CLIP = 1.0
ORDERS = 8  # The float32 runs: the same sequences in this many orders.

RUNS = {
    "adamw": dict(name="adamw", lr=3e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1),
    "sgd": dict(name="sgd", lr=0.2, momentum=0.0, weight_decay=0.0),
    "sgd_momentum": dict(name="sgd", lr=0.05, momentum=0.9, weight_decay=0.0),
}
SCHEDULE = dict(name="cosine", warmup_steps=5, min_lr_ratio=0.1)


def learning_rate(step: int, lr: float) -> float:
    """The rate of step 1, 2, ..., STEPS: a straight line to lr, then half a cosine to its share."""
    warmup, share = SCHEDULE["warmup_steps"], SCHEDULE["min_lr_ratio"]
    if step <= warmup:
        return lr * step / warmup
    progress = (step - warmup) / (STEPS - warmup)
    return lr * (share + (1 - share) * 0.5 * (1 + math.cos(math.pi * progress)))


def draw_tokens(rng: np.random.Generator, case, *shape: int) -> np.ndarray:
    """Some tokens often, some never; the square also gives training something to learn."""
    uniform = rng.random((*shape, case.sequence + 1))
    return (case.vocab * uniform**2).astype(np.int32)


def draw_weights(rng: np.random.Generator, case, weights: np.ndarray) -> np.ndarray:
    if case.masked and weights.shape[1] == 1:
        weights[1] = 0
    elif case.masked:
        weights[rng.random(weights.shape) < 0.25] = 0
        weights[1] = 0  # A whole sequence, as a global batch that does not divide leaves it.
        weights[2, -3:] = 0
        weights[3, 0] = 0
    return weights


def positions_of(case, rows: int) -> np.ndarray | None:
    """Where each row's tokens stand in their documents; None: one document a row."""
    documents = getattr(case, "documents", None)
    if not documents:
        return None
    return np.stack([
        np.concatenate([np.arange(n) for n in documents[row % len(documents)]]) for row in range(rows)
    ]).astype(np.int32)


def logits_of(model, ids: torch.Tensor, positions: np.ndarray | None) -> torch.Tensor:
    """[B, T, V]. Each document is run by itself: whatever attends across would show."""
    if positions is None:
        return model(ids, use_cache=False).logits
    rows: list = [None] * len(ids)
    patterns = {tuple(p) for p in positions}
    for pattern in sorted(patterns):
        same = [i for i, p in enumerate(positions) if tuple(p) == pattern]
        starts = [t for t, p in enumerate(pattern) if p == 0] + [len(pattern)]
        parts = [model(ids[same, a:b], use_cache=False).logits for a, b in zip(starts, starts[1:])]
        for i, row in zip(same, torch.cat(parts, dim=1)):
            rows[i] = row
    return torch.stack(rows)


class Causal:
    """A sample of a causal model: each token's target is the next one."""

    def draw(self, rng: np.random.Generator, case, *shape: int) -> np.ndarray:
        return draw_tokens(rng, case, *shape)

    def logits_and_targets(self, model, ids: torch.Tensor, positions):
        return logits_of(model, ids[:, :-1], positions), ids[:, 1:]

    def losses(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of each target."""
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="none"
        )

    def weights(self, tokens: np.ndarray) -> np.ndarray:
        """The weights of drawn tokens, before anything is masked."""
        return np.ones((*tokens.shape[:-1], tokens.shape[-1] - 1), np.float32)

    def file_name(self, name: str) -> str:
        """The name of a parameter's tensor in the model's files."""
        return name

    def tensors(self, name: str, tensor: torch.Tensor):
        """The tensors of the model's files that a parameter, or its gradient, is: names and values."""
        yield self.file_name(name), tensor


FEED = Causal()


def run_batch(model, tokens: np.ndarray, weights: np.ndarray, positions: np.ndarray | None):
    """Logits [B, T, V] and the loss: the mean over the targets, each with its weight."""
    ids = torch.from_numpy(tokens.astype(np.int64))
    w = torch.from_numpy(weights).to(model.dtype).flatten()
    logits, targets = FEED.logits_and_targets(model, ids, positions)
    losses = FEED.losses(logits, targets)
    return logits, (losses * w).sum() / w.sum()


def total_norm(model) -> float:
    return torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()


def batch_results(model, tokens, weights, positions, rows) -> dict[str, np.ndarray]:
    """The results of one forward and backward pass in the model's dtype, returned in float64."""
    model.zero_grad()
    logits, loss = run_batch(model, tokens, weights, positions)
    loss.backward()
    results = {
        "batch/logits": logits.detach().flatten(0, 1)[torch.from_numpy(rows).long()],
        "batch/loss": loss.detach().reshape(1),
        "batch/grad_norm": torch.tensor([total_norm(model)], dtype=torch.float64),
    }
    for name, p in model.named_parameters():
        for tensor, values in FEED.tensors(name, p.grad):
            results["grad/" + tensor] = values
    return {k: v.double().numpy().copy() for k, v in results.items()}


def train(model, tokens: np.ndarray, positions, recipe: dict) -> dict[str, np.ndarray]:
    """STEPS optimizer steps on tokens[step - 1], then the loss of the first batch once more."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        dict(params=matrices, weight_decay=recipe["weight_decay"]),
        dict(params=vectors, weight_decay=0.0),
    ]
    if recipe["name"] == "adamw":
        optimizer = torch.optim.AdamW(
            groups, lr=1.0, betas=tuple(recipe["betas"]), eps=recipe["eps"], foreach=False
        )
    else:
        optimizer = torch.optim.SGD(groups, lr=1.0, momentum=recipe["momentum"], foreach=False)
    weights = FEED.weights(tokens)
    rates, losses, norms = [], [], []
    for step in range(1, STEPS + 1):
        rates.append(learning_rate(step, recipe["lr"]))
        for group in optimizer.param_groups:
            group["lr"] = rates[-1]
        optimizer.zero_grad()
        _, loss = run_batch(model, tokens[step - 1], weights[step - 1], positions)
        loss.backward()
        losses.append(loss.item())
        # Scales by min(1, CLIP / (norm + 1e-6)) and returns the norm before that.
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
    with torch.no_grad():
        _, final = run_batch(model, tokens[0], weights[0], positions)
    return {
        "lr": np.array(rates),
        "loss": np.array(losses),
        "grad_norm": np.array(norms),
        "final_loss": np.array([final.item()]),
    }


def compute(case, build_model, in_double, folder: pathlib.Path) -> None:
    """Writes config.json, model.safetensors and reference.safetensors into `folder`.

    build_model(case) gives the model in float32, in_double(model, case) the one that computes in
    float64: a model of the same parameters.
    """
    model = build_model(case)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    weights32 = {k: v.detach().clone() for k, v in model.named_parameters()}
    exact_model = in_double(build_model(case), case)

    def fresh(dtype):
        chosen = exact_model if dtype == torch.float64 else model
        with torch.no_grad():
            for name, p in chosen.named_parameters():
                p.copy_(weights32[name])
        return chosen

    rng = np.random.default_rng(1000 + case.seed)
    tokens = FEED.draw(rng, case, BATCH)
    weights = draw_weights(rng, case, FEED.weights(tokens))
    train_tokens = FEED.draw(rng, case, STEPS, GLOBAL_BATCH)
    places, train_places = positions_of(case, BATCH), positions_of(case, GLOBAL_BATCH)
    # The ends of every sequence, and some between.
    ends = sorted({b * case.sequence + t for b in range(BATCH) for t in (0, case.sequence - 1)})
    inside = np.setdiff1d(np.arange(BATCH * case.sequence), ends)
    others = min(LOGIT_ROWS - len(ends), len(inside))
    rows = np.sort(np.concatenate([ends, rng.choice(inside, others, replace=False)]))

    exact = batch_results(fresh(torch.float64), tokens, weights, places, rows)
    for run, recipe in RUNS.items():
        results = train(fresh(torch.float64), train_tokens, train_places, recipe)
        exact |= {f"{run}/{k}": v for k, v in results.items()}

    # float32's own error: the largest over several orders of the same sequences.
    errors = {k: np.zeros(2 if k.startswith(("batch/", "grad/")) else v.shape)
              for k, v in exact.items() if not k.endswith("/lr")}
    for order in range(ORDERS):
        shuffle = rng.permutation(BATCH) if order else np.arange(BATCH)
        place = np.argsort(shuffle)  # Where each sequence went.
        moved = place[rows // case.sequence] * case.sequence + rows % case.sequence
        got = batch_results(fresh(torch.float32), tokens[shuffle], weights[shuffle],
                            None if places is None else places[shuffle], moved)
        for k, v in got.items():
            difference = v - exact[k]
            errors[k] = np.maximum(errors[k], [np.linalg.norm(difference), abs(difference).max()])
        shuffle = rng.permutation(GLOBAL_BATCH) if order else np.arange(GLOBAL_BATCH)
        for run, recipe in RUNS.items():
            shuffled = None if train_places is None else train_places[shuffle]
            got = train(fresh(torch.float32), train_tokens[:, shuffle], shuffled, recipe)
            for k, v in got.items():
                if k != "lr":
                    key = f"{run}/{k}"
                    errors[key] = np.maximum(errors[key], abs(v - exact[key]))

    tensors = {
        "batch/tokens": tokens,
        "batch/weights": weights,
        "batch/logits_rows": rows.astype(np.int32),
        "train/tokens": train_tokens,
        **exact,
        **{k + ".fp32_error": v for k, v in errors.items()},
    }
    if places is not None:
        tensors |= {"batch/positions": places, "train/positions": train_places}
    settings = dict(case=dataclasses.asdict(case), steps=STEPS, global_batch_size=GLOBAL_BATCH,
                    grad_clip=CLIP, schedule=SCHEDULE, runs=RUNS)
    safetensors.numpy.save_file(tensors, folder / "reference.safetensors",
                                metadata={"settings": json.dumps(settings)})


def differences(where: str, want: dict[str, np.ndarray], got: dict[str, np.ndarray]) -> list[str]:
    """Differences of two files' tensors beyond what another processor explains."""
    problems = [f"{where}: {name} is in one of the two only" for name in sorted(want.keys() ^ got.keys())]
    for name in sorted(want.keys() & got.keys()):
        w, g = want[name], got[name]
        if w.shape != g.shape or w.dtype != g.dtype:
            problems.append(f"{where}: {name} has another shape or dtype")
        elif name.endswith("_error"):
            # A matter of the processor; an order of magnitude is not. Errors near a rounding
            # of the value itself are a matter of luck.
            floor = 1e-7 * np.linalg.norm(want[name.rpartition(".")[0]])
            if not ((w <= 8 * g + floor) & (g <= 8 * w + floor)).all():
                problems.append(f"{where}: {name} is {g.max():.2e}, was {w.max():.2e}")
        elif w.dtype != np.float64:
            if not np.array_equal(w, g):
                problems.append(f"{where}: {name} has other values")
        elif w.size and abs(w - g).max() > 1e-12 * max(1.0, abs(w).max()):
            problems.append(f"{where}: {name} differs by {abs(w - g).max():.2e}")
    return problems


def compare(case, want_folder: pathlib.Path, got_folder: pathlib.Path) -> list[str]:
    problems = []
    for file in ("model.safetensors", "reference.safetensors"):
        want, got = (safetensors.numpy.load_file(f / file) for f in (want_folder, got_folder))
        problems += differences(f"{case.name}/{file}", want, got)
    config = [json.loads((f / "config.json").read_text()) for f in (want_folder, got_folder)]
    for c in config:
        c.pop("transformers_version", None)
    if config[0] != config[1]:
        problems.append(f"{case.name}/config.json differs")
    return problems


def main(description: str, cases, build_model, in_double, fixtures: pathlib.Path,
         compute=compute) -> int:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    parser.add_argument("--out", type=pathlib.Path, default=fixtures, help="default: %(default)s")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # Small matrices: a second thread only waits.
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.disable_progress_bar()
    problems = []
    for case in cases:
        if arguments.check:
            with tempfile.TemporaryDirectory() as folder:
                compute(case, build_model, in_double, pathlib.Path(folder))
                problems += compare(case, arguments.out / case.name, pathlib.Path(folder))
        else:
            compute(case, build_model, in_double, arguments.out / case.name)
        print(f"{case.name}: {'checked' if arguments.check else 'written'}")
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fixtures"
