#!/usr/bin/env python3
"""Writes tests/fixtures/regnet: small RegNets and what PyTorch computes with them in float64.

    python regnet.py            writes the fixtures
    python regnet.py --check    computes them again and compares with the committed ones

README.md beside this file says what every tensor means and which error the tests accept. A training
step's batch norms see the samples of the whole step that have a weight; scores, batch/eval_loss and
final_loss are of the running statistics, which a step begins with, or has left.
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
    image: int  # Pixels of a side.
    channels: int
    labels: int
    embedding: int
    hidden: tuple
    depths: tuple
    group: int
    y: bool  # With squeeze and excitation.
    first: bool  # The first stage halves the image, too.
    masked: bool  # The batch has a sample of weight zero.
    sequence: int = 1  # Targets of a sample.


CASES = [
    Case("odd", 61, 13, 3, 7, 9, (12, 20), (1, 2), 4, y=True, first=True, masked=True),
    # No convolution beside the first block.
    Case("plain", 62, 10, 1, 2, 8, (8, 16, 24), (2, 1, 1), 8, y=False, first=False, masked=False),
    Case("one_stage", 63, 9, 2, 11, 10, (15,), (3,), 5, y=True, first=False, masked=True),
    # More classes than anything else.
    Case("classes", 64, 14, 4, 101, 12, (16, 32), (1, 1), 16, y=False, first=True, masked=True),
    # One group, of all channels.
    Case("one_group", 66, 11, 3, 5, 6, (10, 14), (1, 2), 64, y=True, first=False, masked=False),
]


class Images(common.Causal):
    """A sample is a row of pixels from 0 to 255, [image, image, channels], and a label. The model
    gets (pixel - 128) / 64."""

    def draw(self, rng, case, *shape):
        self.case = case
        pixels = rng.integers(0, 256, (*shape, case.image * case.image * case.channels))
        labels = (case.labels * rng.random((*shape, 1)) ** 2).astype(np.int64)
        return np.concatenate([pixels, labels], axis=-1).astype(np.int32)

    def pixels(self, model, ids):
        c = self.case
        pixels = ids[:, :-1].reshape(-1, c.image, c.image, c.channels).permute(0, 3, 1, 2)
        return (pixels - 128).to(model.dtype) / 64

    def weights(self, tokens):
        return np.ones((*tokens.shape[:-1], 1), np.float32)


def mean_loss(logits, ids, w):
    losses = torch.nn.functional.cross_entropy(logits, ids[:, -1], reduction="none")
    return (losses * w).sum() / w.sum()


def run_batch(model, tokens, weights, positions):
    """common.run_batch with batch norms: scores of all samples by the running statistics; the loss
    of those that count, by their own where there is something to train."""
    ids = torch.from_numpy(tokens.astype(np.int64))
    w = torch.from_numpy(weights).to(model.dtype).flatten()
    pixels = common.FEED.pixels(model, ids)
    with torch.no_grad():
        scores = model.eval()(pixels).logits
    if not torch.is_grad_enabled():
        return scores[:, None], mean_loss(scores, ids, w)
    counted = w != 0
    logits = model.train()(pixels[counted]).logits
    return scores[:, None], mean_loss(logits, ids[counted], w[counted])


def begin_anew(model):
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()


plain_results, plain_train = common.batch_results, common.train


def batch_results(model, tokens, weights, positions, rows):
    begin_anew(model)
    results = plain_results(model, tokens, weights, positions, rows)
    with torch.no_grad():
        _, loss = run_batch(model, tokens, weights, positions)
    return results | {"batch/eval_loss": loss.double().reshape(1).numpy().copy()}


def train(model, tokens, positions, recipe):
    begin_anew(model)
    return plain_train(model, tokens, positions, recipe)


def build_model(case: Case):
    """Random float32 weights with no bias at 0 and no norm at 1, where mistakes would hide."""
    config = transformers.RegNetConfig(
        num_channels=case.channels,
        embedding_size=case.embedding,
        hidden_sizes=list(case.hidden),
        depths=list(case.depths),
        groups_width=case.group,
        layer_type="y" if case.y else "x",
        downsample_in_first_stage=case.first,
        num_labels=case.labels,
        image_size=case.image,
    )
    model = transformers.RegNetForImageClassification(config).float()
    rng = np.random.default_rng(case.seed)
    for name, p in model.named_parameters():
        values = rng.standard_normal(p.shape)
        if "normalization.weight" in name:
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
    common.FEED = Images()
    common.run_batch, common.batch_results, common.train = run_batch, batch_results, train
    sys.exit(common.main(__doc__.splitlines()[0], CASES, build_model, in_double,
                         common.FIXTURES / "regnet"))
