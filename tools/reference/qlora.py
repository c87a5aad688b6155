#!/usr/bin/env python3
"""Writes tests/fixtures/qlora: PEFT's adapters over bases in nf4, computed by PyTorch in float64.

    pip install -r requirements.txt bitsandbytes==0.50.2
    python qlora.py            writes the fixtures
    python qlora.py --check    computes them again and compares with the committed ones

The bases and the tokens are those of other fixtures. README.md beside this file says what every tensor
means and which error the tests accept.
"""

import argparse
import dataclasses
import fnmatch
import json
import sys

import common  # Before transformers: it keeps it off the network.
import gpt2
import llama
import numpy as np
import peft
import safetensors.numpy
import t5
import torch
import transformers
from bitsandbytes import functional

BLOCK, NESTED_BLOCK = 64, 256
ORDERS = 4  # Those of bf16's runs; float32's are common.ORDERS.
RUN = "adamw"


@dataclasses.dataclass(frozen=True)
class Adapters:
    base: str  # A folder of tests/fixtures.
    rank: int
    alpha: float
    targets: tuple  # Modules, by the last parts of their names.
    nested: bool  # Scales in 8 bits.
    exclude: tuple = ()  # Globs of weights that stay as they are.

    @property
    def family(self):
        return {"gpt2": gpt2, "llama": llama, "t5": t5}[self.base.split("/")[0]]


CASES = {
    "gpt2": Adapters("gpt2/odd_heads", 2, 7.0, ("c_attn", "c_proj"), nested=True),
    "llama": Adapters("llama/llama_6_2", 3, 4.0, ("q_proj", "v_proj", "down_proj"), nested=False),
    "qwen3": Adapters("llama/qwen3_documents", 3, 5.0, ("k_proj", "o_proj", "gate_proj"),
                      nested=True, exclude=("*.0.self_attn.o_proj.weight", "*.down_proj.weight")),
    "t5": Adapters("t5/gated", 1, 2.0, ("SelfAttention.q", "EncDecAttention.v", "wi_1"),
                   nested=False),
}


def nearest(values: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The index of the nearest of ascending values, ties to the lower."""
    above = np.clip(np.searchsorted(values, x), 1, len(values) - 1)
    wide = x.astype(np.float64)
    return above - (wide - values[above - 1] <= values[above] - wide)


def nested_scales(scales: np.ndarray) -> np.ndarray:
    """fp32 scales in 8 bits and back, as trainer/ops/weight_codes.h has it: the nearest value, which
    bitsandbytes' CPU kernel does not always find."""
    values = np.sort(functional.create_dynamic_map(signed=True).numpy())
    mean = np.float32(scales.astype(np.float64).sum() / len(scales))
    decoded = np.empty_like(scales)
    for at in range(0, len(scales), NESTED_BLOCK):
        offsets = scales[at:at + NESTED_BLOCK] - mean
        largest = np.abs(offsets).max()
        codes = nearest(values, offsets / (largest or np.float32(1)))
        decoded[at:at + NESTED_BLOCK] = values[codes] * largest + mean
    return decoded


def decoded(weight: torch.Tensor, nested: bool) -> torch.Tensor:
    """The weight as its codes have it: bitsandbytes' codes and values, in fp32."""
    codes, state = functional.quantize_4bit(weight.flatten(), blocksize=BLOCK, quant_type="nf4")
    if nested:
        state.absmax = torch.from_numpy(nested_scales(state.absmax.numpy()))
    return functional.dequantize_4bit(codes, state).reshape(weight.shape)


def is_coded(name: str, module: torch.nn.Module, exclude) -> bool:
    linear = isinstance(module, (torch.nn.Linear, transformers.pytorch_utils.Conv1D))
    return linear and name != "lm_head" and not any(
        fnmatch.fnmatchcase(f"{name}.weight", glob) for glob in exclude)


class Rounded(torch.autograd.Function):
    """Rounds to bf16; the gradient passes as it is."""

    @staticmethod
    def forward(_, x):
        return x.bfloat16().to(x.dtype)

    @staticmethod
    def backward(_, gradient):
        return gradient


class Adapted(torch.nn.Module):
    """PEFT's model over the decoded base. Its parameters are the adapters, under the names that PEFT
    saves. `half`: it computes with all weights in bf16, or, in float64, with all weights rounded to bf16;
    the adapters stay as they are."""

    def __init__(self, adapters: Adapters, case, dtype: torch.dtype, half: bool):
        super().__init__()
        base = adapters.family.build_model(case)
        for name, module in base.named_modules():
            if is_coded(name, module, adapters.exclude):
                module.weight.data = decoded(module.weight.detach(), adapters.nested)
        if half:
            for p in base.parameters():
                p.data = p.data.bfloat16().float()
        if dtype == torch.float64:
            base = adapters.family.in_double(base, case)
        elif adapters.family is gpt2:
            base.set_attn_implementation("sdpa")  # transformers' default.
        config = peft.LoraConfig(
            r=adapters.rank, lora_alpha=adapters.alpha, lora_dropout=0.0,
            target_modules=list(adapters.targets), fan_in_fan_out=adapters.family is gpt2)
        self.model = peft.get_peft_model(base, config).to(dtype)
        self.round = lambda p: p
        if half and dtype == torch.float64:
            self.round = Rounded.apply
        elif half:
            self.round = torch.Tensor.bfloat16
            for p in self.model.parameters():  # Buffers stay: they are angles.
                p.data = p.data.bfloat16()
        self.trained, rng = {}, np.random.default_rng(100 + case.seed)
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                # B, too: at 0 it would hide A's mistakes.
                values = torch.from_numpy(0.1 * rng.standard_normal(p.shape))
                self.trained[name] = torch.nn.Parameter(values.bfloat16().to(dtype))
        self.dtype = dtype  # Weights of targets and their sum, and the loss, are in it.

    def named_parameters(self, *args, **kwargs):
        for name, p in self.trained.items():
            yield name.replace(".default.", "."), p

    def parameters(self, recurse=True):
        return list(self.trained.values())

    def forward(self, *args, **kwargs):
        weights = {name: self.round(p) for name, p in self.trained.items()}
        result = torch.func.functional_call(self.model, weights, args, kwargs)
        result.logits = result.logits.to(self.dtype)
        return result


class Inputs:
    """The batch and the 20 steps of the base's fixture."""

    def __init__(self, base: str, case):
        file = safetensors.numpy.load_file(common.FIXTURES / base / "reference.safetensors")
        self.tokens, self.weights = file["batch/tokens"], file["batch/weights"]
        self.train, self.length = file["train/tokens"], case.sequence
        self.places, self.train_places = (file.get(f"{of}/positions") for of in ("batch", "train"))
        rows = file["batch/logits_rows"]
        self.rows = rows[rows % self.length == self.length - 1]  # The last of each sequence.

    def results(self, build, rng: np.random.Generator | None) -> dict[str, np.ndarray]:
        """rng: of the order of the sequences."""
        order = [np.arange(n) if rng is None else rng.permutation(n)
                 for n in (len(self.tokens), common.GLOBAL_BATCH)]
        places, train_places = (None if p is None else p[o] for p, o in
                                zip((self.places, self.train_places), order))
        moved = np.argsort(order[0])[self.rows // self.length] * self.length + self.rows % self.length
        got = common.batch_results(build(), self.tokens[order[0]], self.weights[order[0]], places, moved)
        run = common.train(build(), self.train[:, order[1]], train_places, common.RUNS[RUN])
        return got | {f"{RUN}/{k}": v for k, v in run.items()}


def errors(exact, others, of_many) -> dict[str, np.ndarray]:
    """of_many: of the differences of several orders."""
    found = {k: [o[k] - v for o in others] for k, v in exact.items() if not k.endswith("/lr")}
    return {k: of_many(k, differences) for k, differences in found.items()}


def largest(name, differences):
    """common.compute()'s: the largest 2-norm, of steps each one's largest error."""
    if name.startswith(RUN):
        return np.abs(differences).max(0)
    return np.array([max(np.linalg.norm(d) for d in differences)])


def mean_square(_, differences):
    """precision.py's: the root mean square of 2-norms."""
    return np.array([np.sqrt(np.mean([np.linalg.norm(d) ** 2 for d in differences]))])


def compute(name: str, adapters: Adapters) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    case = next(c for c in adapters.family.CASES if c.name == adapters.base.split("/")[1])
    if adapters.family is t5:
        common.FEED = t5.Seq2Seq()
        common.FEED.case = case
    else:
        common.FEED = common.Causal()
    inputs, tensors = Inputs(adapters.base, case), {}
    for half, prefix, suffix, orders, of_many in (
            (False, "", ".fp32_error", common.ORDERS, largest),
            (True, "bf16/", ".bf16_error", ORDERS, mean_square)):
        build = lambda dtype: lambda: Adapted(adapters, case, dtype, half)
        rng = np.random.default_rng(2000 + case.seed)
        exact = inputs.results(build(torch.float64), None)
        others = [inputs.results(build(torch.float32), rng if i else None) for i in range(orders)]
        found = errors(exact, others, of_many)
        kept = {k: v for k, v in exact.items() if not half or k.startswith(("grad/", "batch/logits"))
                or k == f"{RUN}/loss"}
        tensors |= {prefix + k: v.astype(np.float32) if half else v for k, v in kept.items()}
        tensors |= {prefix + k + suffix: found[k] for k in kept if k in found}
    start = Adapted(adapters, case, torch.float32, False)
    tensors |= {n: p.detach().numpy() for n, p in start.named_parameters()}
    tensors["batch/logits_rows"] = inputs.rows
    settings = dict(
        case=dataclasses.asdict(case) | dict(adapters=dataclasses.asdict(adapters)),
        steps=common.STEPS, global_batch_size=common.GLOBAL_BATCH, grad_clip=common.CLIP,
        schedule=common.SCHEDULE, runs={RUN: common.RUNS[RUN]})
    return tensors, {"settings": json.dumps(settings)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    check = parser.parse_args().check
    torch.set_num_threads(1)  # Small matrices: a second thread only waits.
    torch.use_deterministic_algorithms(True)
    problems = []
    for name, adapters in CASES.items():
        tensors, metadata = compute(name, adapters)
        path = common.FIXTURES / "qlora" / f"{name}.safetensors"
        if check:
            problems += common.differences(name, safetensors.numpy.load_file(path), tensors)
        else:
            safetensors.numpy.save_file(tensors, path, metadata=metadata)
            path.chmod(0o644)
        print(f"{name}: {'checked' if check else 'written'}")
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
