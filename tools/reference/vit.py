#!/usr/bin/env python3
"""Writes tests/fixtures/vit: small ViT and DeepViT models and what PyTorch computes with them in
float64.

    python vit.py            writes the fixtures
    python vit.py --check    computes them again and compares with the committed ones

README.md beside this file says what every tensor means and which error the tests accept.
"""

import dataclasses
import importlib.util
import json
import math
import pathlib
import sys

import common  # Before transformers: it keeps it off the network.
import numpy as np
import safetensors.torch
import torch
import transformers


def load_deepvit():
    """vit_pytorch.deepvit alone: the package as a whole needs torchvision."""
    package = importlib.util.find_spec("vit_pytorch")
    path = pathlib.Path(package.submodule_search_locations[0]) / "deepvit.py"
    spec = importlib.util.spec_from_file_location("deepvit", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DeepViT = load_deepvit().DeepViT


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    seed: int
    image: int  # Pixels of a side, as the next.
    patch: int
    channels: int
    labels: int
    hidden: int
    heads: int
    inner: int
    layers: int
    epsilon: float
    masked: bool  # The batch has a sample of weight zero.
    qkv_bias: bool = True
    head_dim: int = 0  # A DeepViT's; 0: it is a ViT.
    sequence: int = 1  # Targets of a sample.


CASES = [
    Case("odd", 31, 12, 4, 3, 7, 24, 3, 52, 2, 1e-12, masked=True),
    # One patch, one head, an epsilon that is not the default, the fewest classes.
    Case("one_patch", 32, 6, 6, 1, 2, 20, 1, 33, 1, 1e-3, masked=False),
    Case("no_bias", 33, 10, 2, 2, 11, 30, 5, 77, 3, 1e-12, masked=True, qkv_bias=False),
    # More classes than anything else; more channels than pixels.
    Case("classes", 34, 9, 3, 4, 101, 32, 2, 50, 2, 1e-6, masked=False),
    # A patch is a pixel.
    Case("pixels", 35, 5, 1, 5, 13, 18, 2, 41, 2, 1e-12, masked=True),
    Case("deep", 41, 12, 4, 3, 7, 24, 3, 52, 2, 1e-5, masked=True, head_dim=8),
    # Heads that are wider together than the model.
    Case("deep_wide", 42, 8, 2, 1, 10, 20, 5, 33, 3, 1e-5, masked=False, head_dim=7),
    # Many heads, each narrow, and one patch.
    Case("deep_heads", 43, 7, 7, 3, 5, 30, 9, 44, 2, 1e-5, masked=True, head_dim=3),
    Case("deep_narrow", 44, 10, 5, 4, 31, 32, 2, 61, 1, 1e-5, masked=False, head_dim=5),
    Case("deep_layers", 45, 6, 3, 2, 3, 16, 4, 23, 5, 1e-5, masked=True, head_dim=4),
]


class Images(common.Causal):
    """A sample is a row of pixels from 0 to 255, [image, image, channels], and a label. The model
    gets (pixel - 128) / 64."""

    def draw(self, rng, case, *shape):
        self.case = case
        pixels = rng.integers(0, 256, (*shape, case.image * case.image * case.channels))
        labels = (case.labels * rng.random((*shape, 1)) ** 2).astype(np.int64)
        return np.concatenate([pixels, labels], axis=-1).astype(np.int32)

    def logits_and_targets(self, model, ids, positions):
        c = self.case
        pixels = ids[:, :-1].reshape(-1, c.image, c.image, c.channels).permute(0, 3, 1, 2)
        pixels = (pixels - 128).to(model.dtype) / 64
        result = model(pixels)
        return (result if c.head_dim else result.logits)[:, None], ids[:, -1:]

    def weights(self, tokens):
        return np.ones((*tokens.shape[:-1], 1), np.float32)

    def file_name(self, name):
        """A parameter's name in the file: transformers 5 writes other names than its own."""
        for ours, files in (("vit.layers.", "vit.encoder.layer."),
                            ("attention.q_proj", "attention.attention.query"),
                            ("attention.k_proj", "attention.attention.key"),
                            ("attention.v_proj", "attention.attention.value"),
                            ("attention.o_proj", "attention.output.dense"),
                            ("mlp.fc1", "intermediate.dense"), ("mlp.fc2", "output.dense")):
            name = name.replace(ours, files)
        return name


class SavedDeepViT(DeepViT):
    """With what common.py asks of a model."""

    def __init__(self, case: Case):
        super().__init__(image_size=case.image, patch_size=case.patch, num_classes=case.labels,
                         dim=case.hidden, depth=case.layers, heads=case.heads,
                         mlp_dim=case.inner, channels=case.channels, dim_head=case.head_dim)
        self.case = case

    @property
    def dtype(self):
        return self.pos_embedding.dtype

    def save_pretrained(self, folder):
        c = self.case
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "architectures": ["DeepViT"], "model_type": "deepvit", "image_size": c.image,
            "patch_size": c.patch, "num_channels": c.channels, "num_labels": c.labels,
            "hidden_size": c.hidden, "intermediate_size": c.inner, "num_hidden_layers": c.layers,
            "num_attention_heads": c.heads, "head_dim": c.head_dim, "qkv_bias": False,
            "reattention": "layer_norm", "layer_norm_epsilon": c.epsilon,
        }
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        safetensors.torch.save_file(self.state_dict(), folder / "model.safetensors",
                                    metadata={"format": "pt"})


def new_model(case: Case):
    if case.head_dim:
        return SavedDeepViT(case).float()
    config = transformers.ViTConfig(
        hidden_size=case.hidden,
        num_hidden_layers=case.layers,
        num_attention_heads=case.heads,
        intermediate_size=case.inner,
        image_size=case.image,
        patch_size=case.patch,
        num_channels=case.channels,
        num_labels=case.labels,
        layer_norm_eps=case.epsilon,
        qkv_bias=case.qkv_bias,
        attn_implementation="eager",
    )
    return transformers.ViTForImageClassification(config).float()


def build_model(case: Case):
    """Random float32 weights with no bias at 0 and no norm at 1, where mistakes would hide."""
    model = new_model(case)
    rng = np.random.default_rng(case.seed)
    for name, p in model.named_parameters():
        values = rng.standard_normal(p.shape)
        is_norm = "norm" in name or name.startswith("mlp_head.0")
        if is_norm and name.endswith("weight"):
            values = 1 + 0.2 * values
        elif p.dim() == 1:
            values *= 0.2
        elif name.endswith("weight"):
            values *= 1.2 / math.sqrt(p[0].numel())
        p.data.copy_(torch.from_numpy(values.astype(np.float32)))
    return model


def in_double(model, case: Case):
    """transformers' own softmax is float32 whatever the model is; PyTorch's attention is not."""
    if not case.head_dim:
        model.set_attn_implementation("sdpa")
    return model.double()


if __name__ == "__main__":
    common.FEED = Images()
    sys.exit(common.main(__doc__.splitlines()[0], CASES, build_model, in_double,
                         common.FIXTURES / "vit"))
