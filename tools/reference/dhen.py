#!/usr/bin/env python3
"""Writes tests/fixtures/dhen: the layers of small DHENs and what PyTorch computes with them in float64.

    python dhen.py            writes the fixtures
    python dhen.py --check    computes them again and compares with the committed ones

The modules are written from docs/models.md alone. The vectors of the columns of ids are inputs here: tables
are no parameters of the layers. README.md beside this file says what every tensor means and which error the tests
accept.
"""

import dataclasses
import json
import math
import pathlib
import sys

import common
import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    seed: int
    columns: int  # Numbers of a sample.
    tables: int
    width: int
    dense_vectors: int
    vectors: int
    layers: int
    heads: int
    rank: int
    inner: int
    epsilon: float
    masked: bool  # The batch has a sample of weight zero.
    sequence: int = 1  # Targets of a sample.


CASES = [
    Case("odd", 51, 5, 4, 12, 3, 5, 2, 3, 7, 19, 1e-5, masked=True),
    # As many vectors come as go: no shortcut has a weight. One head.
    Case("alike", 52, 3, 5, 10, 2, 7, 2, 1, 4, 13, 1e-3, masked=False),
    # One table, one number, the fewest vectors, the least rank.
    Case("least", 53, 1, 1, 6, 1, 2, 1, 2, 1, 9, 1e-5, masked=False),
    # More vectors than numbers in one.
    Case("many", 54, 11, 13, 9, 6, 23, 1, 3, 5, 31, 1e-6, masked=True),
    Case("deep", 55, 7, 3, 15, 2, 6, 4, 5, 8, 22, 1e-5, masked=True),
]


class Affine(torch.nn.Module):
    """x -> x W^T + b."""

    def __init__(self, *shape, bias=True):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(shape))
        self.bias = torch.nn.Parameter(torch.empty(shape[0])) if bias else None

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class Module(torch.nn.Module):
    """An interaction, with the matrix that mixes what it makes."""

    def __init__(self, c: Case, n: int, **parts):
        super().__init__()
        self.mix = Affine(c.vectors, n, bias=False)
        for name, part in parts.items():
            setattr(self, name, part)


class Norm(torch.nn.Module):
    def __init__(self, c: Case):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(c.width))
        self.bias = torch.nn.Parameter(torch.empty(c.width))
        self.epsilon = c.epsilon

    def forward(self, x):
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.epsilon)


class Layer(torch.nn.Module):
    def __init__(self, c: Case, n: int):
        super().__init__()
        self.case = c
        d, l = c.width, c.vectors
        self.linear = Affine(l, n)
        self.attention = Module(c, n, qkv=Affine(3 * d, d), out=Affine(d, d))
        self.convolution = Module(c, n)
        self.convolution.weight = torch.nn.Parameter(torch.empty(d, d, 3, 1))
        self.cross = Module(c, n, down=Affine(c.rank, n * d, bias=False), up=Affine(n * d, c.rank))
        self.dot = Affine(l * d, n * (n - 1) // 2, bias=False)
        self.shortcut = None if n == l else Affine(l, n, bias=False)
        self.norm = Norm(c)

    def forward(self, x):
        c, (rows, n, d) = self.case, x.shape
        total = self.linear.weight @ x + self.linear.bias[:, None]
        q, k, v = (part.unflatten(-1, (c.heads, d // c.heads)).transpose(1, 2)
                   for part in self.attention.qkv(x).chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        total = total + self.attention.mix.weight @ self.attention.out(attended)
        convolved = F.conv2d(x.transpose(1, 2)[..., None], self.convolution.weight, padding=(1, 0))
        total = total + self.convolution.mix.weight @ convolved[..., 0].transpose(1, 2).relu()
        gate = self.cross.up(self.cross.down(x.flatten(1))).unflatten(-1, (n, d))
        total = total + self.cross.mix.weight @ (x * gate)
        i, j = torch.tril_indices(n, n, -1)
        dots = (x @ x.transpose(1, 2))[:, i, j] / math.sqrt(d)
        total = total + self.dot(dots).unflatten(-1, (c.vectors, d))
        total = total + (x if self.shortcut is None else self.shortcut.weight @ x)
        return self.norm(total)


class Dhen(torch.nn.Module):
    def __init__(self, c: Case):
        super().__init__()
        self.case = c
        d = c.width
        self.dense = torch.nn.ModuleDict({"up": Affine(c.inner, c.columns),
                                          "down": Affine(c.dense_vectors * d, c.inner)})
        self.layers = torch.nn.ModuleList(
            Layer(c, c.vectors if i else c.tables + c.dense_vectors) for i in range(c.layers))
        self.head = torch.nn.ModuleDict({"up": Affine(c.inner, c.vectors * d),
                                         "down": Affine(1, c.inner)})

    @property
    def dtype(self):
        return self.head["down"].weight.dtype

    def forward(self, numbers, pooled):
        dense = self.dense["down"](self.dense["up"](numbers).relu())
        x = torch.cat([pooled, dense.unflatten(-1, (-1, self.case.width))], dim=1)
        for layer in self.layers:
            x = layer(x)
        return self.head["down"](self.head["up"](x.flatten(1)).relu())

    def save_pretrained(self, folder):
        c = self.case
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "architectures": ["Dhen"], "model_type": "fsdp_train_dhen", "dense_columns": c.columns,
            "table_rows": [3] * c.tables, "table_bags": [], "table_width": c.width,
            "dense_vectors": c.dense_vectors, "num_vectors": c.vectors,
            "num_hidden_layers": c.layers, "num_attention_heads": c.heads, "cross_rank": c.rank,
            "intermediate_size": c.inner, "layer_norm_epsilon": c.epsilon, "table_capacity": 2.0,
            "table_dtype": "fp32",
        }
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        safetensors.torch.save_file(self.state_dict(), folder / "model.safetensors",
                                    metadata={"format": "pt"})


class Clicks(common.Causal):
    """A sample is a row of numbers and of vectors, from 0 to 255, and a label. The model gets
    (number - 128) / 64."""

    def draw(self, rng, case, *shape):
        self.case = case
        numbers = rng.integers(0, 256, (*shape, case.columns + case.tables * case.width))
        labels = rng.integers(0, 2, (*shape, 1))
        return np.concatenate([numbers, labels], axis=-1).astype(np.int32)

    def logits_and_targets(self, model, ids, positions):
        c = self.case
        inputs = (ids[:, :-1] - 128).to(model.dtype) / 64
        pooled = inputs[:, c.columns:].reshape(-1, c.tables, c.width)
        return model(inputs[:, : c.columns], pooled)[:, None], ids[:, -1:]

    def losses(self, logits, targets):
        return F.binary_cross_entropy_with_logits(logits.flatten(), targets.flatten().to(logits.dtype),
                                                  reduction="none")

    def weights(self, tokens):
        return np.ones((*tokens.shape[:-1], 1), np.float32)


def build_model(case: Case):
    """Random float32 weights with no bias at 0 and no norm at 1, where mistakes would hide."""
    model = Dhen(case).float()
    rng = np.random.default_rng(case.seed)
    for name, p in model.named_parameters():
        values = rng.standard_normal(p.shape)
        if "norm" in name and name.endswith("weight"):
            values = 1 + 0.2 * values
        elif p.dim() == 1:
            values *= 0.2
        else:
            values *= 1.2 / math.sqrt(p[0].numel())
        p.data.copy_(torch.from_numpy(values.astype(np.float32)))
    return model


def in_double(model, case: Case):
    return model.double()


if __name__ == "__main__":
    common.FEED = Clicks()
    sys.exit(common.main(__doc__.splitlines()[0], CASES, build_model, in_double,
                         common.FIXTURES / "dhen"))
