#!/usr/bin/env python3
"""Writes tests/fixtures/gpt2: small GPT-2 models and what PyTorch computes with them in float64.

    python gpt2.py            writes the fixtures
    python gpt2.py --check    computes them again and compares with the committed ones

README.md beside this file says what every tensor means and which error the tests accept.
"""

import dataclasses
import math
import sys

import common  # Before transformers: it keeps it off the network.
import numpy as np
import torch
import transformers


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    seed: int
    vocab: int
    positions: int
    sequence: int
    hidden: int
    heads: int
    inner: int | None  # None: 4 x hidden, and null in config.json.
    layers: int
    epsilon: float
    tied: bool
    masked: bool  # The batch has targets of weight zero, and one sequence of nothing else.


CASES = [
    # An odd vocabulary, a prime sequence length, positions that are never used.
    Case("odd_vocab", 1, 1021, 64, 37, 48, 3, None, 2, 1e-5, tied=True, masked=True),
    # A head dimension that is not a multiple of 4, an odd intermediate size.
    Case("odd_heads", 2, 257, 24, 19, 30, 5, 77, 3, 1e-5, tied=True, masked=False),
    # Every position used, one head as wide as the model, an epsilon that is not the default.
    Case("one_head", 3, 509, 64, 64, 64, 1, 96, 1, 1e-3, tied=True, masked=True),
    # A head of its own.
    Case("untied", 4, 131, 16, 11, 24, 3, None, 2, 1e-5, tied=False, masked=True),
]


def build_model(case: Case) -> transformers.GPT2LMHeadModel:
    """Random float32 weights with no bias at 0 and no LayerNorm at 1, where mistakes would hide."""
    config = transformers.GPT2Config(
        vocab_size=case.vocab,
        n_positions=case.positions,
        n_embd=case.hidden,
        n_head=case.heads,
        n_inner=case.inner,
        n_layer=case.layers,
        layer_norm_epsilon=case.epsilon,
        tie_word_embeddings=case.tied,
        activation_function="gelu_new",
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    model = transformers.GPT2LMHeadModel(config).float()
    rng = np.random.default_rng(case.seed)
    for name, p in model.named_parameters():
        values = rng.standard_normal(p.shape)
        if name.endswith((".ln_1.weight", ".ln_2.weight", ".ln_f.weight")):
            values = 1 + 0.2 * values
        elif p.dim() == 1:
            values *= 0.1
        elif name.endswith((".wte.weight", ".wpe.weight", "lm_head.weight")):
            values *= 0.2
        else:
            values *= 1.2 / math.sqrt(p.shape[0])  # [in, out], as Conv1D has it.
        p.data.copy_(torch.from_numpy(values.astype(np.float32)))
    return model


def in_double(model: transformers.GPT2LMHeadModel, _) -> transformers.GPT2LMHeadModel:
    return model.double()


if __name__ == "__main__":
    sys.exit(common.main(__doc__.splitlines()[0], CASES, build_model, in_double,
                         common.FIXTURES / "gpt2"))
