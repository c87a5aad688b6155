"""Writes what all participants of step.py begin with: a Hugging Face directory of initial weights,
and tokens.

    python torch_inputs.py SHAPE.json DIR [SEED]    (SHAPE: the `model` section of `config print`)

SEED is of the weights, 1 unless given.
"""

import json
import pathlib
import sys

import numpy as np
import safetensors.torch

import torch_models


def main():
    shape = json.loads(pathlib.Path(sys.argv[1]).read_text())
    directory = pathlib.Path(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    model = torch_models.make(shape)
    weights = {}
    for name, value in torch_models.initial_weights(model, shape, seed=seed).items():
        turned = model.TRANSPOSED and name.endswith(model.TRANSPOSED)
        weights[model.file_name(name)] = value.t().contiguous() if turned else value
    directory.mkdir()
    safetensors.torch.save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(model.config(shape)))
    # Some words often and most of them seldom, as in a text.
    random = np.random.default_rng(2)
    tokens = shape["vocab_size"] * random.random(1 << 20) ** 3
    np.save(directory / "tokens.npy", tokens.astype(np.uint32))


if __name__ == "__main__":
    main()
