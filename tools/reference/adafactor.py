#!/usr/bin/env python3
"""Writes tests/fixtures/adafactor/steps.json: 20 steps of torch.optim.Adafactor for tensors of GPT-2.

    python adafactor.py            writes the file (seconds)
    python adafactor.py --check    computes it again and compares with the committed one

Weights and gradients follow from a formula: number() of muon.py, and for gradients a power of two by
element, so that rows and columns differ. "want" has the weights in float64; "float32" and
"bfloat16" are the root mean squares of torch's own errors with weights, gradients and state of that
dtype.
"""

import argparse
import json
import pathlib

import torch

from muon import number

FILE = pathlib.Path(__file__).parents[2] / "tests/fixtures/adafactor/steps.json"
STEPS, LR, DECAY = 20, 0.1, 0.1
BETA2_DECAY, EPS, D = -0.8, (1.1920929e-7, 1e-3), 1.0
H = "transformer.h.1."
TENSORS = [("transformer.wpe.weight", (16, 24)), (H + "attn.c_attn.weight", (24, 72)),
           (H + "attn.c_attn.bias", (72,)), (H + "mlp.c_fc.weight", (24, 52)),
           (H + "ln_1.weight", (24,))]


def values(name, shape, step, dtype):
    n = torch.Size(shape).numel()
    scale = lambda i: 2.0 ** (i // 5 % 6 - 3) if step > 0 else 1.0
    return torch.tensor([number(name, i, step) * scale(i) for i in range(n)], dtype=dtype).view(shape)


def train(name, shape, dtype):
    weight = torch.nn.Parameter(values(name, shape, 0, dtype))
    decay = DECAY if len(shape) > 1 else 0
    optimizer = torch.optim.Adafactor([weight], lr=LR, beta2_decay=BETA2_DECAY, eps=EPS, d=D,
                                      weight_decay=decay, foreach=False)
    for step in range(1, STEPS + 1):
        weight.grad = values(name, shape, step, dtype)
        optimizer.step()
    return weight.detach().double()


def compute():
    tensors = []
    for name, shape in TENSORS:
        want = train(name, shape, torch.float64)
        error = lambda of: float((train(name, shape, of) - want).square().mean().sqrt())
        tensors.append({"name": name, "float32": error(torch.float32),
                        "bfloat16": error(torch.bfloat16),
                        "want": [round(x, 9) for x in want.flatten().tolist()]})
    return {"steps": STEPS, "lr": LR, "weight_decay": DECAY, "beta2_decay": BETA2_DECAY,
            "eps": EPS, "d": D, "tensors": tensors}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true")
    computed = compute()
    if not parser.parse_args().check:
        FILE.write_text(json.dumps(computed) + "\n")
        return
    committed = json.loads(FILE.read_text())
    for got, want in zip(computed["tensors"], committed["tensors"], strict=True):
        worst = max(abs(a - b) for a, b in zip(got["want"], want["want"], strict=True))
        assert worst < 1e-8, f"{got['name']}: {worst}"
    print("the committed file is what PyTorch computes")


if __name__ == "__main__":
    main()
