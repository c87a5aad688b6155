#!/usr/bin/env python3
"""Writes tests/fixtures/moe: small mixtures of experts, computed by PyTorch in float64.

    python moe.py            writes the fixtures
    python moe.py --check    computes them again and compares with the committed ones
    python moe.py --seeds [CASE ...]    looks for seeds whose choices are far enough apart

README.md beside this file says what every tensor means and which error the tests accept.
"""

import dataclasses
import json
import math
import pathlib
import shutil
import sys
import tempfile
import types

import common  # Before transformers: it keeps it off the network.
import llama
import numpy as np
import safetensors.numpy
import torch
import torch.nn.functional as F
import transformers

# Scores of the last expert that is chosen and of the next one, in every forward pass: float32 then
# chooses as float64 does.
LEAST_MARGIN = 1e-5
AUX, Z = 0.3, 0.02  # Coefficients of the balance losses.
BIAS_RATE = 0.01


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    model: str  # A key of MODELS.
    seed: int
    vocab: int
    sequence: int
    hidden: int
    heads: int
    groups: int  # Heads of keys and values.
    layers: int
    experts: int
    chosen: int
    inner: int  # An expert's.
    positions: int = 24
    head_dim: int = 0  # 0: hidden / heads.
    epsilon: float = 1e-5
    tied: bool = False
    rope: dict = dataclasses.field(default_factory=lambda: dict(rope_type="default", rope_theta=500.0))
    masked: bool = False
    documents: list | None = None  # Lengths of each row's, by row modulo their number.
    normed: bool = False  # norm_topk_prob.
    more: dict = dataclasses.field(default_factory=dict)  # Further keys of config.json.
    embedding: float = 0.4  # It multiplies the embedding's numbers. Large: a token's choices are its own.
    fused: bool = False  # Its weights are there in the newer form, too.
    balanced: str = ""  # "batch": the balance losses and their gradients are there, too. "runs": 20
    # steps with them as well.

    @property
    def width(self) -> int:
        return self.head_dim or self.hidden // self.heads


MODELS = {
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
    "qwen2_moe": (transformers.Qwen2MoeConfig, transformers.Qwen2MoeForCausalLM),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
    "olmoe": (transformers.OlmoeConfig, transformers.OlmoeForCausalLM),
    "dots1": (transformers.Dots1Config, transformers.Dots1ForCausalLM),
}

CASES = [
    # An odd number of experts, heads wider than hidden / heads.
    Case("mixtral_5_2", "mixtral", 121, 31, 15, 9, 3, 1, 2, 5, 2, 5, head_dim=4, masked=True,
         fused=True, balanced="runs"),
    # All experts, documents.
    Case("mixtral_3_3", "mixtral", 22, 29, 14, 8, 2, 2, 1, 3, 3, 7, tied=True,
         documents=[[9, 1, 4], [14], [3, 11]]),
    # A dense layer in the middle, a shared expert.
    Case("qwen2_6_4", "qwen2_moe", 623, 23, 13, 8, 2, 2, 3, 6, 4, 3, masked=True, balanced="batch",
         more=dict(mlp_only_layers=[1], shared_expert_intermediate_size=7, intermediate_size=9)),
    # One expert a token, each second layer dense.
    Case("qwen2_4_1", "qwen2_moe", 24, 37, 12, 8, 4, 2, 2, 4, 1, 5, epsilon=1e-3, tied=True,
         more=dict(decoder_sparse_step=2, shared_expert_intermediate_size=6, intermediate_size=10)),
    # Rotary positions that are stretched.
    Case("qwen3_7_2", "qwen3_moe", 125, 26, 13, 9, 4, 2, 2, 7, 2, 3, head_dim=4, masked=True, normed=True,
         rope=dict(rope_type="linear", rope_theta=1000.0, factor=2.0)),
    # Documents, one expert a token: its weight is 1, and no gradient reaches the router.
    Case("qwen3_4_1", "qwen3_moe", 26, 33, 15, 7, 2, 1, 2, 4, 1, 5, head_dim=6, tied=True,
         normed=True, documents=[[14, 1], [5, 5, 5]], more=dict(mlp_only_layers=[0], intermediate_size=11)),
    # Fewer heads of k than of q.
    Case("olmoe_6_3", "olmoe", 1627, 27, 14, 8, 4, 2, 2, 6, 3, 4, masked=True),
    Case("olmoe_8_2", "olmoe", 228, 35, 11, 8, 2, 2, 1, 8, 2, 5, epsilon=1e-3, normed=True),
    # Groups and biases that change choices, the first layer dense, two shared experts.
    Case("dots_8_3", "dots1", 529, 25, 13, 8, 2, 1, 2, 8, 3, 3, head_dim=8, masked=True, normed=True,
         balanced="runs", fused=True, more=dict(n_group=4, topk_group=2, routed_scaling_factor=2.5,
                               first_k_dense_replace=1, n_shared_experts=2, intermediate_size=9)),
    # One group, weights that are not normalised.
    Case("dots_5_2", "dots1", 30, 28, 12, 8, 2, 2, 2, 5, 2, 4, head_dim=8, tied=True,
         more=dict(n_group=1, topk_group=1, routed_scaling_factor=1.5, first_k_dense_replace=0,
                   n_shared_experts=1, intermediate_size=8)),
    # The smallest: one token, three ids, one head, one expert a token.
    Case("mixtral_6_1", "mixtral", 41, 3, 1, 7, 1, 1, 1, 6, 1, 1, head_dim=4, tied=True, masked=True),
    # All experts, no position left.
    Case("mixtral_7_7", "mixtral", 42, 13, 6, 6, 3, 3, 1, 7, 7, 2, head_dim=4, positions=6, masked=True,
         rope=dict(rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=0.25,
                   high_freq_factor=1.0, original_max_position_embeddings=4)),
    # For bf16, too. All but one.
    Case("mixtral_4_3", "mixtral", 59443, 5, 7, 10, 5, 1, 1, 4, 3, 5, embedding=3.0),
    # For bf16, too. Normalised weights, the last layer dense.
    Case("qwen2_3_2", "qwen2_moe", 31044, 5, 8, 12, 3, 1, 2, 3, 2, 5, tied=True, normed=True, masked=True,
         embedding=3.0, more=dict(mlp_only_layers=[1], shared_expert_intermediate_size=3,
                                  intermediate_size=7)),
    # All experts, documents.
    Case("qwen2_6_6", "qwen2_moe", 45, 11, 7, 4, 1, 1, 1, 6, 6, 1, documents=[[3, 4], [1, 6], [7]],
         more=dict(shared_expert_intermediate_size=3)),
    # One token, one expert whose weight is 1.
    Case("qwen2_5_1", "qwen2_moe", 46, 9, 1, 6, 1, 1, 1, 5, 1, 3, normed=True,
         more=dict(shared_expert_intermediate_size=5)),
    # All but one.
    Case("qwen3_6_5", "qwen3_moe", 247, 17, 9, 5, 3, 1, 1, 6, 5, 1, positions=48, head_dim=6, masked=True,
         rope=dict(rope_type="yarn", rope_theta=300.0, factor=3.0, original_max_position_embeddings=16,
                   beta_fast=2.0, beta_slow=0.25)),
    # All experts, the last layer dense, one token.
    Case("qwen3_3_3", "qwen3_moe", 48, 7, 1, 6, 2, 2, 2, 3, 3, 5, head_dim=4, normed=True, tied=True,
         more=dict(mlp_only_layers=[1], intermediate_size=7)),
    # One expert a token whose weight is its score; more tokens than positions.
    Case("qwen3_5_1", "qwen3_moe", 49, 11, 9, 9, 3, 3, 1, 5, 1, 3, head_dim=4, positions=6, masked=True,
         rope=dict(rope_type="dynamic", rope_theta=1000.0, factor=2.5)),
    # One expert a token, documents.
    Case("olmoe_6_1", "olmoe", 50, 3, 9, 6, 1, 1, 1, 6, 1, 1, tied=True,
         documents=[[2, 7], [9], [1, 1, 7]]),
    # All experts, weights normalised, no position left.
    Case("olmoe_5_5", "olmoe", 51, 15, 8, 10, 5, 1, 1, 5, 5, 1, positions=8, normed=True, masked=True,
         rope=dict(rope_type="linear", rope_theta=100.0, factor=3.0)),
    # One token.
    Case("olmoe_3_2", "olmoe", 52, 19, 1, 6, 3, 1, 2, 3, 2, 3, epsilon=1e-2, masked=True),
    # Three groups of two.
    Case("dots_6_2", "dots1", 1853, 3, 7, 6, 3, 1, 1, 6, 2, 3, head_dim=4, normed=True, embedding=3.0,
         more=dict(n_group=3, topk_group=2, routed_scaling_factor=1.5, first_k_dense_replace=0,
                   n_shared_experts=1)),
    # All experts of all groups, documents.
    Case("dots_4_4", "dots1", 54, 11, 7, 5, 1, 1, 1, 4, 4, 1, head_dim=6, tied=True,
         documents=[[6, 1], [2, 5]],
         more=dict(n_group=2, topk_group=2, routed_scaling_factor=0.5, first_k_dense_replace=0,
                   n_shared_experts=3)),
    # One token, one expert whose weight is 3, the first layer dense.
    Case("dots_6_1", "dots1", 55, 13, 1, 7, 2, 2, 2, 6, 1, 1, head_dim=2, masked=True, normed=True,
         more=dict(n_group=2, topk_group=1, routed_scaling_factor=3.0, first_k_dense_replace=1,
                   n_shared_experts=1, intermediate_size=5)),
]


class Experts(common.Causal):
    """Files hold a matrix of each expert, and the model all in one tensor."""

    def tensors(self, name: str, tensor: torch.Tensor):
        name = name.replace("mlp.", "block_sparse_moe.") if self.mixtral else name
        prefix, found, kind = name.rpartition(".experts.")
        if not found:
            yield name, tensor
            return
        gate, up, down = ("w1", "w3", "w2") if self.mixtral else ("gate_proj", "up_proj", "down_proj")
        for e, matrix in enumerate(tensor):
            parts = [matrix] if kind == "down_proj" else matrix.chunk(2)
            for part, of in zip(parts, [down] if kind == "down_proj" else [gate, up]):
                yield f"{prefix}.experts.{e}.{of}.weight", part


common.FEED = Experts()
ROUTED: list = []  # A router that was run: its number, logits, choices and margin.


def build_model(case: Case) -> torch.nn.Module:
    """Random float32 weights with no bias at 0 and no norm at 1, where mistakes would hide."""
    common.FEED.mixtral = case.model == "mixtral"
    make_config, make_model = MODELS[case.model]
    experts = {"mixtral": "num_local_experts", "dots1": "n_routed_experts"}.get(case.model, "num_experts")
    inner = "intermediate_size" if case.model in ("mixtral", "olmoe") else "moe_intermediate_size"
    more = {experts: case.experts, inner: case.inner, **case.more}
    if case.model != "mixtral":
        more["norm_topk_prob"] = case.normed
    if case.head_dim:
        more["head_dim"] = case.head_dim
    if case.model == "dots1":
        more["sliding_window"] = None
    config = make_config(
        vocab_size=case.vocab, max_position_embeddings=case.positions, hidden_size=case.hidden,
        num_attention_heads=case.heads, num_key_value_heads=case.groups,
        num_hidden_layers=case.layers, rms_norm_eps=case.epsilon, tie_word_embeddings=case.tied,
        num_experts_per_tok=case.chosen, rope_parameters=dict(case.rope), bos_token_id=None,
        eos_token_id=None, pad_token_id=None, attn_implementation="sdpa",
        experts_implementation="eager", **more)
    model = make_model(config).float()
    rng = np.random.default_rng(case.seed)
    for name, p in list(model.named_parameters()) + list(model.named_buffers()):
        if name.endswith("inv_freq"):
            continue
        values = rng.standard_normal(p.shape)
        if name.endswith("norm.weight"):
            values = 1 + 0.2 * values
        elif name.endswith("e_score_correction_bias"):
            values *= 0.2
        elif p.dim() == 1:
            values *= 0.1
        elif name.endswith("embed_tokens.weight"):
            values *= case.embedding
        else:
            values *= 1.2 / math.sqrt(p.shape[-1])
        p.data.copy_(torch.from_numpy(values.astype(np.float32)))
    return model


def choose(case: Case, scores: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The experts of each token in order, and how far the nearest other choice is."""
    groups = case.more.get("n_group", 1)
    margin = math.inf
    if groups > 1:
        of_group = scores.unflatten(-1, (groups, -1)).topk(2, dim=-1)[0].sum(-1)
        order = of_group.sort(dim=-1, descending=True)
        best = case.more["topk_group"]
        if best < groups:
            margin = (order[0][:, best - 1] - order[0][:, best]).min().item()
        kept = torch.zeros_like(of_group).scatter_(1, order[1][:, :best], 1.0).bool()
        kept = kept.repeat_interleave(case.experts // groups, dim=-1)
        scores = scores.masked_fill(~kept, -math.inf)
    order = scores.sort(dim=-1, descending=True)
    if case.chosen < case.experts:
        margin = min(margin, (order[0][:, case.chosen - 1] - order[0][:, case.chosen]).min().item())
    return order[1][:, :case.chosen], margin


def route(case: Case, weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor):
    """A router from its formula, in the dtype of x: logits, weights, choices, margin."""
    logits = x.reshape(-1, x.shape[-1]) @ weight.T
    scores = logits.softmax(-1) if bias is None else logits.sigmoid()
    chosen, margin = choose(case, (scores if bias is None else scores + bias).detach())
    weights = scores.gather(1, chosen)
    if case.normed or case.model == "mixtral":
        weights = weights / (weights.sum(-1, keepdim=True) + (0 if bias is None else 1e-20))
    return logits, weights * case.more.get("routed_scaling_factor", 1.0), chosen, margin


def routers(model) -> list:
    return [m for m in model.modules() if type(m).__name__.lower().endswith("topkrouter")]


def in_double(model: torch.nn.Module, case: Case) -> torch.nn.Module:
    """As llama.py's; transformers' routers compute in float32, too."""
    model = llama.in_double(model, dataclasses.replace(case, head_dim=case.width))
    for number, router in enumerate(routers(model)):
        def forward(self, x, number=number):
            bias = getattr(self, "e_score_correction_bias", None)
            logits, weights, chosen, margin = route(case, self.weight, bias, x)
            ROUTED.append((number, logits, chosen, margin))
            return logits, weights, chosen
        router.forward = types.MethodType(forward, router)
    return model


def record(model, case: Case) -> None:
    """Lets a model of transformers say what it routed."""
    for number, router in enumerate(routers(model)):
        own = type(router).forward
        def forward(self, x, number=number, own=own):
            logits, weights, chosen = own(self, x)
            ROUTED.append((number, logits, chosen, math.inf))
            return logits, weights, chosen
        router.forward = types.MethodType(forward, router)


def loads(case: Case) -> np.ndarray:
    """Tokens of each layer's experts, from ROUTED."""
    counts: dict = {}
    for number, _, chosen, _ in ROUTED:
        counts[number] = counts.get(number, 0) + np.bincount(chosen.flatten().numpy(), minlength=case.experts)
    return np.stack([counts[n] for n in sorted(counts)]).astype(np.int32)


def balance(case: Case, weights: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """aux and z from ROUTED: means over layers; over a sample's tokens, then over samples with their
    targets as weights."""
    share = torch.from_numpy(weights.sum(1) / weights.sum())
    rows, aux, z = len(weights), [], []
    for _, logits, chosen, _ in ROUTED:
        share = share.to(logits.dtype)
        logits = logits.unflatten(0, (rows, -1))
        f = F.one_hot(chosen, case.experts).sum(1).unflatten(0, (rows, -1)).to(logits.dtype).mean(1)
        scores = logits.sigmoid() if case.model == "dots1" else logits.softmax(-1)
        p = (scores / scores.sum(-1, keepdim=True)).mean(1)
        aux.append((share * case.experts * (f * p).sum(-1)).sum())
        z.append((share * logits.logsumexp(-1).square().mean(1)).sum())
    return torch.stack(aux).mean(), torch.stack(z).mean()


def balance_results(model, case: Case, tokens, weights) -> dict[str, np.ndarray]:
    model.zero_grad()
    ROUTED.clear()
    _, loss = common.run_batch(model, tokens, weights, None)
    aux, z = balance(case, weights)
    (loss + AUX * aux + Z * z).backward()
    results = {"batch/loss": loss.detach().reshape(1), "batch/aux": aux.detach().reshape(1),
               "batch/z": z.detach().reshape(1),
               "batch/grad_norm": torch.tensor([common.total_norm(model)], dtype=torch.float64)}
    for name, p in model.named_parameters():
        for tensor, value in common.FEED.tensors(name, p.grad):
            results["grad/" + tensor] = value
    return {k: v.double().numpy().copy() for k, v in results.items()}


def balanced_train(model, case: Case, tokens, recipe: dict) -> dict[str, np.ndarray]:
    """As common.train(), with balance losses and, behind each step, biases that move."""
    matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) == many] for many in (True, False))
    groups = [dict(params=matrices, weight_decay=recipe["weight_decay"]),
              dict(params=vectors, weight_decay=0.0)]
    if recipe["name"] == "adamw":
        optimizer = torch.optim.AdamW(groups, lr=1.0, betas=tuple(recipe["betas"]), eps=recipe["eps"],
                                      foreach=False)
    else:
        optimizer = torch.optim.SGD(groups, lr=1.0, momentum=recipe["momentum"], foreach=False)
    weights, losses, norms, margins, all_loads = common.FEED.weights(tokens), [], [], [], []
    for step in range(common.STEPS):
        for group in optimizer.param_groups:
            group["lr"] = common.learning_rate(step + 1, recipe["lr"])
        optimizer.zero_grad()
        ROUTED.clear()
        _, loss = common.run_batch(model, tokens[step], weights[step], None)
        aux, z = balance(case, weights[step])
        (loss + AUX * aux + Z * z).backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), common.CLIP).item())
        optimizer.step()
        margins.append(min(m for *_, m in ROUTED))
        all_loads.append(loads(case))
        for router, load in zip(routers(model), torch.from_numpy(all_loads[-1])):
            if hasattr(router, "e_score_correction_bias"):
                router.e_score_correction_bias += BIAS_RATE * (load.double().mean() - load).sign()
    with torch.no_grad():
        _, final = common.run_batch(model, tokens[0], weights[0], None)
    assert min(margins) >= LEAST_MARGIN / 5, f"choices are {min(margins):.1e} apart with balance losses"
    return {"loss": np.array(losses), "grad_norm": np.array(norms), "final_loss": np.array([final.item()]),
            "loads": np.stack(all_loads)}


def balanced_runs(case: Case, train_tokens) -> dict[str, np.ndarray]:
    def train(dtype, recipe, order):
        model = build_model(case)
        if dtype == torch.float64:
            model = in_double(model, case)
        else:
            record(model, case)
        return balanced_train(model, case, train_tokens[:, order], recipe)

    rng, results = np.random.default_rng(case.seed), {}
    rows = np.arange(common.GLOBAL_BATCH)
    for run, recipe in common.RUNS.items():
        exact = train(torch.float64, recipe, rows)
        chosen = exact.pop("loads")
        errors = {k: np.zeros_like(v) for k, v in exact.items()}
        for order in range(common.ORDERS):
            got = train(torch.float32, recipe, rng.permutation(rows) if order else rows)
            assert np.array_equal(got.pop("loads"), chosen), "float32 chooses otherwise with balance losses"
            errors = {k: np.maximum(e, abs(got[k] - exact[k])) for k, e in errors.items()}
        results |= {f"{run}/{k}": v for k, v in exact.items()}
        results |= {f"{run}/{k}.fp32_error": v for k, v in errors.items()}
    return results


def balance_file(case: Case, tokens, weights, train_tokens) -> dict[str, np.ndarray]:
    runs = balanced_runs(case, train_tokens) if case.balanced == "runs" else {}
    exact = balance_results(in_double(build_model(case), case), case, tokens, weights)
    errors = {k: np.zeros(2) for k in exact}
    rng = np.random.default_rng(case.seed)
    model = build_model(case)
    record(model, case)
    for order in range(common.ORDERS):
        shuffle = rng.permutation(len(tokens)) if order else np.arange(len(tokens))
        for k, v in balance_results(model, case, tokens[shuffle], weights[shuffle]).items():
            difference = v - exact[k]
            errors[k] = np.maximum(errors[k], [np.linalg.norm(difference), abs(difference).max()])
    return {**exact, **{k + ".fp32_error": v for k, v in errors.items()}, **runs}


def compute(case: Case, build, double, folder: pathlib.Path) -> float:
    """As common.compute(). Returns the least margin of its float64 runs."""
    ROUTED.clear()
    common.compute(case, build, double, folder)
    margin = min(m for *_, m in ROUTED)
    path = folder / "reference.safetensors"
    tensors = safetensors.numpy.load_file(path)
    with safetensors.safe_open(path, "np") as file:
        settings = json.loads(file.metadata()["settings"])
    tokens, weights = tensors["batch/tokens"], tensors["batch/weights"]
    positions = tensors.get("batch/positions")
    ROUTED.clear()
    common.run_batch(double(build(case), case), tokens, weights, positions)
    tensors["batch/loads"] = loads(case)
    theirs = build(case)
    ROUTED.clear()
    record(theirs, case)
    common.run_batch(theirs, tokens, weights, positions)
    assert np.array_equal(loads(case), tensors["batch/loads"]), "float32 chooses otherwise"
    error = tensors["batch/logits.fp32_error"][1]
    assert error < 1e-4, f"the formula is another one than transformers': {error}"
    if case.balanced:
        runs = settings["runs"] if case.balanced == "runs" else {}
        own = {**settings, "runs": runs, "balance": dict(aux=AUX, z=Z, bias_rate=BIAS_RATE)}
        safetensors.numpy.save_file(balance_file(case, tokens, weights, tensors["train/tokens"]),
                                    folder / "balance.safetensors",
                                    metadata={"settings": json.dumps(own)})
    safetensors.numpy.save_file(tensors, path, metadata={"settings": json.dumps(settings)})
    if case.fused:
        with tempfile.TemporaryDirectory() as other:
            build(case).save_pretrained(other, save_original_format=False)
            shutil.copy(pathlib.Path(other) / "model.safetensors", folder / "fused.safetensors")
    return margin


def find_seeds(names: list) -> int:
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for case in [c for c in CASES if not names or c.name in names]:
        for seed in range(case.seed, case.seed + 2000, 100):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    margin = compute(dataclasses.replace(case, seed=seed), build_model, in_double,
                                     pathlib.Path(folder))
                except AssertionError as error:
                    print(case.name, seed, error)
                    continue
            print(f"{case.name}: seed {seed} has a margin of {margin:.1e}", flush=True)
            if margin >= LEAST_MARGIN:
                break
    return 0


def checked_compute(case: Case, build, double, folder: pathlib.Path) -> None:
    margin = compute(case, build, double, folder)
    assert margin >= LEAST_MARGIN, f"{case.name}: choices are {margin:.1e} apart: --seeds finds others"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--seeds"]:
        sys.exit(find_seeds(sys.argv[2:]))
    sys.exit(common.main(__doc__.splitlines()[0], CASES, build_model, in_double,
                         common.FIXTURES / "moe", checked_compute))
