#!/usr/bin/env python3
"""Writes tests/fixtures/muon/steps.json: 20 steps of torch.optim.Muon for two of GPT-2's matrices.

    python muon.py            writes the file (seconds)
    python muon.py --check    computes it again and compares with the committed one

Weights and gradients follow from a formula (number() below, and Number() of
tests/trainer/optim/muon_test.cc). "want" has the weights in float64; "float32" and "bfloat16" are
the root mean squares of torch's own errors when its iteration has that dtype. torch's own choice is
bfloat16; the other two replace the dtype in its source. With "row_beta2" the iteration is followed
by NorMuon's normalisation (arXiv 2510.05491), as normuon_update() of the authors' normuon.py has it:
https://github.com/zichongli5/NorMuon.
"""

import argparse
import inspect
import itertools
import json
import pathlib

import torch
import torch.optim._muon as muon

FILE = pathlib.Path(__file__).parents[2] / "tests/fixtures/muon/steps.json"
STEPS, LR, DECAY, MOMENTUM = 20, 0.02, 0.1, 0.95
MASK = 0xFFFFFFFF
H = "transformer.h.1."
# The parameter, its row length, and a matrix in it: first column, rows, columns. Rows are inputs.
MATRICES = [(H + "attn.c_attn.weight", 72, 24, 24, 24), (H + "mlp.c_fc.weight", 52, 0, 24, 52)]


def number(name, element, step):
    key = 7
    for c in name.encode():
        key = (key * 31 + c) & MASK
    word = (element * 2654435761 + step * 2246822519 + key * 3266489917) & MASK
    for factor in (2246822519, 3266489917):
        word = ((word ^ (word >> 15)) * factor) & MASK
    word ^= word >> 13
    signed = word - (1 << 32) if word >> 31 else word
    return (signed >> 8) / 2**23


def values(matrix, step, dtype):
    name, pitch, column, rows, width = matrix
    rows = [[number(name, r * pitch + column + c, step) for c in range(width)] for r in range(rows)]
    return torch.tensor(rows, dtype=dtype).T.contiguous()  # [outputs, inputs]


def normalized(iteration, beta2):
    """The iteration, and the rows of its result by their second moments; its norm stays."""
    moment = None

    def of(update, *args):
        nonlocal moment
        result = iteration(update, *args)
        o = result.to(torch.promote_types(result.dtype, torch.float32))
        mean = o.square().mean(dim=-1, keepdim=True)
        moment = torch.zeros_like(mean) if moment is None else moment
        moment.lerp_(mean, 1 - beta2)
        n = o / (moment.sqrt() + 1e-10)
        return (n * (o.norm() / (n.norm() + 1e-10))).to(result.dtype)

    return of


def train(matrix, dtype, iteration, beta2):
    scope = dict(vars(muon))
    source = inspect.getsource(muon._zeropower_via_newtonschulz)
    assert source.count("torch.bfloat16") == 1
    exec(source.replace("torch.bfloat16", f"torch.{iteration}"), scope)
    own = muon._zeropower_via_newtonschulz
    muon._zeropower_via_newtonschulz = scope["_zeropower_via_newtonschulz"]
    if beta2 is not None:
        muon._zeropower_via_newtonschulz = normalized(muon._zeropower_via_newtonschulz, beta2)
    weight = torch.nn.Parameter(values(matrix, 0, dtype))
    optimizer = torch.optim.Muon([weight], lr=LR, weight_decay=DECAY, momentum=MOMENTUM)
    for step in range(1, STEPS + 1):
        weight.grad = values(matrix, step, dtype)
        optimizer.step()
    muon._zeropower_via_newtonschulz = own
    return weight.detach().double().T.contiguous()


def compute():
    out = []
    for matrix, beta2 in itertools.product(MATRICES, [None, 0.9]):
        want = train(matrix, torch.float64, "float64", beta2)
        error = lambda of: float((train(matrix, torch.float32, of, beta2) - want).square().mean().sqrt())
        out.append({"name": matrix[0], "pitch": matrix[1], "column": matrix[2], "width": matrix[4],
                    "row_beta2": beta2, "float32": error("float32"), "bfloat16": error("bfloat16"),
                    "want": [round(x, 9) for x in want.flatten().tolist()]})
    return {"steps": STEPS, "lr": LR, "weight_decay": DECAY, "momentum": MOMENTUM, "matrices": out}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true")
    computed = compute()
    if not parser.parse_args().check:
        FILE.write_text(json.dumps(computed) + "\n")
        return
    committed = json.loads(FILE.read_text())
    for got, want in zip(computed["matrices"], committed["matrices"], strict=True):
        worst = max(abs(a - b) for a, b in zip(got["want"], want["want"], strict=True))
        assert worst < 1e-8, f"{got['name']}: {worst}"
    print("the committed file is what PyTorch computes")


if __name__ == "__main__":
    main()
