#!/usr/bin/env python3
"""Writes tests/fixtures/lora: a small GPT-2 with PEFT's adapters, computed by PyTorch in float64.

    python lora.py            writes the fixtures
    python lora.py --check    computes them again and compares with the committed ones

README.md beside this file says what every tensor means and which error the tests accept.
"""

import dataclasses
import sys

import common  # Before transformers: it keeps it off the network.
import gpt2
import numpy as np
import peft
import safetensors.torch
import torch


@dataclasses.dataclass(frozen=True)
class Case(gpt2.Case):
    rank: int = 3
    alpha: float = 7.0
    targets: tuple = ("attn.c_attn", "mlp.c_proj")


CASES = [Case("gpt2", 21, 211, 32, 23, 36, 3, 50, 2, 1e-5, masked=True)]


class Adapted(torch.nn.Module):
    """PEFT's model, of which only the adapters are parameters, under the names that PEFT saves."""

    def __init__(self, case: Case):
        super().__init__()
        base = gpt2.build_model(case)
        self.base = {name: p.detach().clone() for name, p in base.named_parameters()}
        config = peft.LoraConfig(r=case.rank, lora_alpha=case.alpha, lora_dropout=0.0,
                                 target_modules=list(case.targets), fan_in_fan_out=True)
        self.model = peft.get_peft_model(base, config)
        rng = np.random.default_rng(100 + case.seed)
        # B, too: at 0 it would hide A's mistakes. Together a fifth of W.
        for _, p in self.named_parameters():
            p.data.copy_(torch.from_numpy((0.1 * rng.standard_normal(p.shape)).astype(np.float32)))

    @property
    def dtype(self):
        return self.model.dtype

    def named_parameters(self, *args, **kwargs):
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                yield name.replace(".default.", "."), p

    def parameters(self, recurse=True):
        return [p for _, p in self.named_parameters()]

    def forward(self, ids, **kwargs):
        return self.model(ids, **kwargs)

    def save_pretrained(self, folder):
        self.model.get_base_model().config.save_pretrained(folder)
        tensors = self.base | {name: p.detach() for name, p in self.named_parameters()}
        safetensors.torch.save_file(
            {name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors",
            metadata={"format": "pt"})


def in_double(model: Adapted, _) -> Adapted:
    return model.double()


if __name__ == "__main__":
    sys.exit(common.main(__doc__.splitlines()[0], CASES, Adapted, in_double,
                         common.FIXTURES / "lora"))
