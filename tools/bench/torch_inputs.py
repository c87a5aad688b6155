"""Writes what all participants of step.py begin with: a Hugging Face directory of initial weights,
and tokens, or what else the model is fed (torch_families.py).

    python torch_inputs.py SHAPE.json DIR [SEED] [--recipe RECIPE.json | --weights-only]

SHAPE: the `model` section of `config print`; RECIPE, for models of torch_families.py: all sections.
SEED seeds the weights (default 1). Weights made on a GPU differ from those made on a CPU.
"""

import argparse
import json
import pathlib

import numpy as np
import safetensors.torch
import torch

import torch_models


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", type=pathlib.Path)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--recipe", type=pathlib.Path)
    parser.add_argument("--weights-only", action="store_true", help="of models of torch_families.py")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"],
                        help="of the file")
    args = parser.parse_args()
    shape, directory = json.loads(args.shape.read_text()), args.directory
    torch.manual_seed(args.seed)
    with torch.device(args.device):
        model = torch_models.make(shape)
    if args.recipe or args.weights_only:
        model.save(directory)
        if args.recipe:
            model.write_data(shape, json.loads(args.recipe.read_text()), directory)
        return
    if hasattr(model, "save_initial"):
        model.save_initial(directory)
    else:
        save_weights(model, shape, args)
    # Some words often and most of them seldom, as in a text.
    random = np.random.default_rng(2)
    tokens = shape["vocab_size"] * random.random(1 << 20) ** 3
    np.save(directory / "tokens.npy", tokens.astype(np.uint32))


def save_weights(model, shape, args):
    weights, directory = {}, args.directory
    for name, value in torch_models.initial_weights(model, shape, seed=args.seed).items():
        turned = model.TRANSPOSED and name.endswith(model.TRANSPOSED)
        weights[model.file_name(name)] = (value.t().contiguous() if turned else value).to(
            getattr(torch, args.dtype))
    directory.mkdir()
    safetensors.torch.save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(model.config(shape)))


if __name__ == "__main__":
    main()
