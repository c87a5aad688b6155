#!/usr/bin/env python3
"""Writes tests/fixtures/llama: small models of the Llama family, computed by PyTorch in float64.

    python llama.py            writes the fixtures
    python llama.py --check    computes them again and compares with the committed ones

README.md beside this file says what every tensor means and which error the tests accept.
"""

import dataclasses
import math
import sys
import types

import common  # Before transformers: it keeps it off the network.
import numpy as np
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    model: str  # A key of MODELS.
    seed: int
    vocab: int
    positions: int
    sequence: int
    hidden: int
    heads: int
    groups: int  # Heads of keys and values.
    head_dim: int
    inner: int
    layers: int
    epsilon: float
    tied: bool
    rope: dict  # rope_parameters of config.json.
    masked: bool = False
    documents: list | None = None  # Lengths of each row's, by row modulo their number.
    attention_bias: bool = False
    mlp_bias: bool = False


MODELS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}

CASES = [
    # Groups of 3, a head wider than hidden / heads; llama3 has wavelengths on both sides and between.
    Case("llama_6_2", "llama", 11, 401, 64, 29, 36, 6, 2, 10, 50, 2, 1e-5, False,
         dict(rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=16), masked=True),
    # Every bias there is, one layer, an epsilon that is not the default, documents.
    Case("llama_biases", "llama", 12, 257, 40, 40, 24, 4, 4, 6, 41, 1, 1e-3, True,
         dict(rope_type="default", rope_theta=10000.0), masked=True,
         documents=[[13, 1, 26], [40], [20, 20]], attention_bias=True, mlp_bias=True),
    # One head of keys and values for eight, biases of q, k and v alone, a prime vocabulary.
    Case("qwen2_8_1", "qwen2", 13, 1021, 48, 37, 40, 8, 1, 6, 77, 2, 1e-6, True,
         dict(rope_type="yarn", rope_theta=300.0, factor=3.0, original_max_position_embeddings=16,
              beta_fast=2.0, beta_slow=0.25), masked=True),
    # Norms of q and k, documents that begin anywhere, more layers.
    Case("qwen3_documents", "qwen3", 14, 311, 64, 53, 30, 6, 2, 8, 44, 3, 1e-6, False,
         dict(rope_type="linear", rope_theta=10000.0, factor=2.0),
         documents=[[50, 3], [7, 11, 35], [53], [1, 1, 51]]),
    # Sequences beyond the positions of training.
    Case("mistral_dynamic", "mistral", 15, 383, 24, 43, 32, 4, 2, 8, 60, 2, 1e-5, False,
         dict(rope_type="dynamic", rope_theta=1000.0, factor=2.5)),
]


def build_model(case: Case) -> torch.nn.Module:
    """Random float32 weights with no bias at 0 and no norm at 1, where mistakes would hide."""
    make_config, make_model = MODELS[case.model]
    more = {}
    if case.model == "llama":
        more = dict(attention_bias=case.attention_bias, mlp_bias=case.mlp_bias)
    if case.model == "mistral":
        more = dict(sliding_window=None)
    config = make_config(
        vocab_size=case.vocab,
        max_position_embeddings=case.positions,
        hidden_size=case.hidden,
        num_attention_heads=case.heads,
        num_key_value_heads=case.groups,
        head_dim=case.head_dim,
        intermediate_size=case.inner,
        num_hidden_layers=case.layers,
        rms_norm_eps=case.epsilon,
        tie_word_embeddings=case.tied,
        rope_parameters=dict(case.rope),
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",
        **more,
    )
    model = make_model(config).float()
    rng = np.random.default_rng(case.seed)
    for name, p in model.named_parameters():
        values = rng.standard_normal(p.shape)
        if name.endswith("norm.weight"):
            values = 1 + 0.2 * values
        elif p.dim() == 1:
            values *= 0.1
        elif name.endswith("embed_tokens.weight"):
            values *= 0.2
        else:
            values *= 1.2 / math.sqrt(p.shape[1])
        p.data.copy_(torch.from_numpy(values.astype(np.float32)))
    return model


def frequencies(case: Case) -> tuple[np.ndarray, float]:
    """Rotary frequencies and attention factor in float64, from the papers' formulas."""
    r, d = case.rope, case.head_dim
    i = np.arange(0, d, 2)
    theta, kind = r["rope_theta"], r["rope_type"]
    if kind == "dynamic":
        n, length = max(case.sequence, case.positions), case.positions
        theta *= (r["factor"] * n / length - (r["factor"] - 1)) ** (d / (d - 2))
    f = theta ** (-i / d)
    if kind == "linear":
        f = f / r["factor"]
    if kind == "llama3":
        length, low, high = (r["original_max_position_embeddings"], r["low_freq_factor"],
                             r["high_freq_factor"])
        smooth = np.clip((length * f / (2 * math.pi) - low) / (high - low), 0, 1)
        f = f * ((1 - smooth) / r["factor"] + smooth)
    if kind == "yarn":
        def dimension(turns):
            length = r["original_max_position_embeddings"]
            return d * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))
        low = max(math.floor(dimension(r["beta_fast"])), 0)
        high = min(math.ceil(dimension(r["beta_slow"])), d - 1)
        ramp = np.clip((np.arange(d // 2) - low) / (high - low), 0, 1)
        assert 0 < ramp.sum() < len(ramp), "the case has wavelengths of one kind only"
        f = f / r["factor"] * ramp + f * (1 - ramp)
        return f, 0.1 * math.log(r["factor"]) + 1
    return f, 1.0


def in_double(model: torch.nn.Module, case: Case) -> torch.nn.Module:
    """transformers computes norms, angles and softmax in float32 whatever the model's dtype."""
    f, factor = frequencies(case)
    rotary = model.model.rotary_emb
    if case.rope["rope_type"] == "dynamic":
        rotary(torch.zeros(1), torch.arange(case.sequence)[None])  # Grows to the sequence.
    np.testing.assert_allclose(rotary.inv_freq.numpy(), f, rtol=2e-6)
    assert math.isclose(rotary.attention_scaling, factor)
    model = model.double()

    def rotary_forward(self, x, position_ids, *_, **__):
        angles = position_ids[..., None].double() * torch.from_numpy(f)
        both = torch.cat((angles, angles), dim=-1)
        return both.cos() * factor, both.sin() * factor

    def norm_forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    rotary.forward = types.MethodType(rotary_forward, rotary)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(norm_forward, module)

    forward = model.forward

    def all_in_double(*args, **kwargs):
        with sdpa_kernel(SDPBackend.MATH):
            return forward(*args, **kwargs)

    model.forward = all_in_double
    return model


if __name__ == "__main__":
    sys.exit(common.main(__doc__.splitlines()[0], CASES, build_model, in_double,
                         common.FIXTURES / "llama"))
