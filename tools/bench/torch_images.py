#!/usr/bin/env python3
"""Seconds of training steps of a ViT or a RegNetY in plain PyTorch, on one device.

    tools/bench/torch_images.py --shape FILE --batch N --device cuda|cpu --steps N [--compile]

FILE: the recipe's `model` as JSON. Prints one line of JSON: seconds of each step, parameters, peak_bytes.
The code is as a careful user writes it: fused attention and AdamW, channels last where there are
convolutions, weights in fp32 and, on a GPU, autocast to bf16. The images are random, and stay on
the device.
"""

import argparse
import json
import pathlib
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

LEAST_COMPILED = 3  # Steps that compile, or choose algorithms, and are not printed.


class VitBlock(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width, self.heads = shape["hidden_size"], shape["num_attention_heads"]
        self.before = nn.LayerNorm(width, eps=shape["layer_norm_epsilon"])
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.after = nn.LayerNorm(width, eps=shape["layer_norm_epsilon"])
        self.up = nn.Linear(width, shape["intermediate_size"])
        self.down = nn.Linear(shape["intermediate_size"], width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.before(x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.after(x))))


class Vit(nn.Module):
    channels_last = False

    def __init__(self, shape):
        super().__init__()
        width, patch = shape["hidden_size"], shape["patch_size"]
        self.patches = nn.Conv2d(shape["num_channels"], width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        length = (shape["image_size"] // patch)**2 + 1
        self.places = nn.Parameter(torch.randn(1, length, width) * 0.02)
        self.blocks = nn.ModuleList(VitBlock(shape) for _ in range(shape["num_hidden_layers"]))
        self.norm = nn.LayerNorm(width, eps=shape["layer_norm_epsilon"])
        self.head = nn.Linear(width, shape["num_labels"])

    def forward(self, images, labels):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)[:, 0]).float(), labels)


def normed(inside, outside, kernel, stride=1, groups=1, relu=True):
    return nn.Sequential(
        nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outside), *([nn.ReLU()] if relu else []))


class Excitation(nn.Module):
    def __init__(self, channels, squeezed):
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.excite = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x):
        y = F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))
        return x * torch.sigmoid(self.excite(y))


class RegNetBlock(nn.Module):
    def __init__(self, inside, outside, stride, width):
        super().__init__()
        self.layers = nn.Sequential(
            normed(inside, outside, 1), normed(outside, outside, 3, stride, max(1, outside // width)),
            Excitation(outside, round(inside / 4)), normed(outside, outside, 1, relu=False))
        self.shortcut = (normed(inside, outside, 1, stride, relu=False)
                         if inside != outside or stride != 1 else nn.Identity())

    def forward(self, x):
        return F.relu(self.shortcut(x) + self.layers(x))


class RegNet(nn.Module):
    channels_last = True

    def __init__(self, shape):
        super().__init__()
        inside = shape["embedding_size"]
        layers = [normed(shape["num_channels"], inside, 3, 2)]
        for stage, (outside, depth) in enumerate(zip(shape["hidden_sizes"], shape["depths"])):
            for at in range(depth):
                halves = at == 0 and (stage > 0 or shape["downsample_in_first_stage"])
                layers.append(RegNetBlock(inside, outside, 2 if halves else 1,
                                          shape["groups_width"]))
                inside = outside
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inside, shape["num_labels"])

    def forward(self, images, labels):
        return F.cross_entropy(self.head(self.layers(images).mean((2, 3))).float(), labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", type=pathlib.Path, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    shape = json.loads(args.shape.read_text())
    if shape["family"] == "regnet" and not shape["squeeze_excitation"]:
        sys.exit("torch_images: of RegNets only Y is here")
    gpu = args.device == "cuda"
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    model = {"vit": Vit, "regnet": RegNet}[shape["family"]](shape).to(args.device)
    layout = torch.channels_last if model.channels_last else torch.contiguous_format
    model = model.to(memory_format=layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loss_of = torch.compile(model) if args.compile else model
    size = shape["image_size"]
    images = torch.randn(args.batch, shape["num_channels"], size, size,
                         device=args.device).to(memory_format=layout)
    labels = torch.randint(shape["num_labels"], (args.batch,), device=args.device)

    def step():
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=gpu):
            loss = loss_of(images, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # Waits for the device.
        return time.perf_counter() - begin

    seconds = [step() for _ in range(LEAST_COMPILED + args.steps)][LEAST_COMPILED:]
    print(json.dumps({"seconds": seconds,
                      "parameters": sum(p.numel() for p in model.parameters()),
                      "peak_bytes": torch.cuda.max_memory_allocated() if gpu else None}))


if __name__ == "__main__":
    main()
