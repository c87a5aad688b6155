#!/usr/bin/env python3
"""Writes tests/fixtures/t5: small T5 models of both versions and what PyTorch computes with them in
float64.

    python t5.py            writes the fixtures
    python t5.py --check    computes them again and compares with the committed ones
    python t5.py --buckets  writes tests/fixtures/t5/buckets.json

README.md beside this file says what every tensor means and which error the tests accept.
"""

import dataclasses
import json
import math
import sys

import common  # Before transformers: it keeps it off the network.
import numpy as np
import torch
import transformers
from transformers.models.t5 import modeling_t5


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    seed: int
    vocab: int
    inputs: int  # Tokens of an input.
    sequence: int  # Tokens of a target.
    hidden: int
    heads: int
    head_dim: int
    inner: int
    layers: int
    decoder_layers: int
    buckets: int
    distance: int
    epsilon: float
    gated: bool
    tied: bool
    scaled: bool
    padded: bool  # Inputs and targets have lengths of their own.
    masked: bool  # The batch has targets of weight zero, and one sample of nothing else.


CASES = [
    # v1.0: an odd vocabulary, prime lengths, heads that are wider together than the model.
    Case("relu", 21, 211, 37, 23, 48, 3, 20, 100, 2, 2, 32, 128, 1e-6, gated=False, tied=True,
         scaled=True, padded=True, masked=True),
    # v1.1: a decoder that is deeper than the encoder, a head dimension of 7, other buckets.
    Case("gated", 22, 257, 19, 29, 30, 5, 7, 77, 2, 3, 12, 20, 1e-6, gated=True, tied=False,
         scaled=False, padded=True, masked=False),
    # One head, one layer each, an epsilon that is not the default, nothing padded.
    Case("one_head", 23, 509, 64, 5, 24, 1, 40, 96, 1, 1, 7, 9, 1e-3, gated=False, tied=True,
         scaled=True, padded=False, masked=True),
    # Inputs beyond the largest distance that has a bucket of its own.
    Case("far", 24, 131, 150, 6, 32, 4, 6, 50, 2, 1, 32, 128, 1e-6, gated=True, tied=False,
         scaled=False, padded=True, masked=False),
    # As transformers 5 trains v1.1 from nothing: tied, not scaled.
    Case("tied_gated", 25, 383, 11, 41, 36, 2, 9, 44, 3, 1, 16, 40, 1e-6, gated=True, tied=True,
         scaled=False, padded=True, masked=True),
]


class Seq2Seq(common.Causal):
    """A sample is a row of an input, a target, and how long each of them is."""

    def draw(self, rng, case, *shape):
        self.case = case
        row = dataclasses.replace(case, sequence=case.inputs + case.sequence + 1)
        rows = common.draw_tokens(rng, row, *shape)
        for column, most in ((-2, case.inputs), (-1, case.sequence)):
            rows[..., column] = most
            if case.padded:
                rows[..., column] = rng.integers(1, most + 1, shape)
        return rows

    def logits_and_targets(self, model, ids, positions):
        inputs, targets = self.case.inputs, ids[:, self.case.inputs:-2]
        mask = torch.arange(inputs)[None] < ids[:, -2:-1]
        # The decoder begins with pad.
        before = torch.cat([torch.zeros_like(targets[:, :1]), targets[:, :-1]], dim=1)
        result = model(input_ids=ids[:, :inputs], attention_mask=mask.long(),
                       decoder_input_ids=before, use_cache=False)
        return result.logits, targets

    def weights(self, tokens):
        return (np.arange(self.case.sequence) < tokens[..., -1:]).astype(np.float32)


def build_model(case: Case) -> transformers.T5ForConditionalGeneration:
    """Random float32 weights with no norm at 1, where mistakes would hide."""
    config = transformers.T5Config(
        vocab_size=case.vocab,
        d_model=case.hidden,
        d_kv=case.head_dim,
        d_ff=case.inner,
        num_layers=case.layers,
        num_decoder_layers=case.decoder_layers,
        num_heads=case.heads,
        relative_attention_num_buckets=case.buckets,
        relative_attention_max_distance=case.distance,
        layer_norm_epsilon=case.epsilon,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu" if case.gated else "relu",
        tie_word_embeddings=case.scaled,  # The value that transformers 5 takes it for.
        decoder_start_token_id=0,
        attn_implementation="eager",
    )
    model = transformers.T5ForConditionalGeneration(config).float()
    if not case.tied:
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    rng = np.random.default_rng(case.seed)
    for name, p in model.named_parameters():
        values = rng.standard_normal(p.shape)
        if name.endswith("layer_norm.weight"):
            values = 1 + 0.2 * values
        elif name == "shared.weight" and case.tied and not case.scaled:
            values *= 0.2
        elif name.endswith(".q.weight"):
            values *= 1.2 / math.sqrt(p.shape[1] * case.head_dim)
        elif name == "lm_head.weight":
            values *= 0.2
        elif not name.endswith(("shared.weight", "relative_attention_bias.weight")):
            values *= 1.2 / math.sqrt(p.shape[1])
        p.data.copy_(torch.from_numpy(values.astype(np.float32)))
    return model


class Norm64(torch.nn.Module):
    """T5LayerNorm, whose mean of squares is float32 whatever the model is."""

    def __init__(self, norm):
        super().__init__()
        self.weight = torch.nn.Parameter(norm.weight.double())
        self.epsilon = norm.variance_epsilon

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon))


def in_double(model: torch.nn.Module, _) -> torch.nn.Module:
    model = model.double()
    norms = [(parent, name, child) for parent in model.modules()
             for name, child in parent.named_children()
             if isinstance(child, modeling_t5.T5LayerNorm)]
    for parent, name, norm in norms:
        setattr(parent, name, Norm64(norm))
    return model


def write_buckets() -> None:
    """Writes the bucket of each distance from query to key, for several numbers of buckets and largest
    distances."""
    all_of = []
    for buckets, distance in ((32, 128), (12, 20), (7, 9), (4, 3), (16, 40), (33, 1000), (64, 300)):
        span = 2 * distance + 3
        relative = torch.arange(-span, span + 1)
        entry = {"buckets": buckets, "max_distance": distance, "first": -span}
        for bidirectional in (True, False):
            entry["bidirectional" if bidirectional else "causal"] = (
                modeling_t5.T5Attention._relative_position_bucket(
                    relative, bidirectional, buckets, distance).tolist())
        all_of.append(entry)
    path = common.FIXTURES / "t5" / "buckets.json"
    path.write_text("[\n" + ",\n".join(json.dumps(e) for e in all_of) + "\n]\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--buckets"]:
        sys.exit(write_buckets())
    common.FEED = Seq2Seq()
    sys.exit(common.main(__doc__.splitlines()[0], CASES, build_model, in_double,
                         common.FIXTURES / "t5"))
