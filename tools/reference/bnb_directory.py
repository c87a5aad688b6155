#!/usr/bin/env python3
"""Writes tests/fixtures/bitsandbytes: Llamas whose linear layers bitsandbytes has in four bits.

    pip install -r requirements.txt bitsandbytes==0.50.2 accelerate==1.15.0
    python bnb_directory.py                     writes the fixtures
    python bnb_directory.py --check             computes them again and compares with the committed ones
    python bnb_directory.py --compare A B       loads two directories with transformers, which must be
                                                the same model: codes, quant_state and logits

A folder has config.json and model.safetensors as save_pretrained() writes them. `double` has bf16
weights, double quantisation, tensors of an odd number of elements and of more than 256 blocks.
`single` has fp16 weights, scales in fp32, and a layer that is left plain. decoded.safetensors has what
dequantize_4bit() makes of some of the tensors in fp32: of all in `single`. No layer's width is a
multiple of 16 without being one of 64: of these bitsandbytes 0.50.2 decodes most blocks with scales of
others on a CPU with AVX-512, and so computes other logits than it does without.
"""

import argparse
import filecmp
import pathlib
import tempfile

import common  # Before transformers: it keeps it off the network.
import bitsandbytes.functional as bnb
import numpy as np
import safetensors.torch
import torch
import transformers

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "bitsandbytes"
# Name: the model's sizes, its dtype, BitsAndBytesConfig's arguments, the layers to decode.
CASES = {
    "double": (dict(vocab_size=32, hidden_size=35, intermediate_size=77, num_attention_heads=7,
                    num_key_value_heads=1, head_dim=68), torch.bfloat16,
               dict(bnb_4bit_use_double_quant=True), ["q_proj", "v_proj", "down_proj"]),
    "single": (dict(vocab_size=40, hidden_size=24, intermediate_size=45, num_attention_heads=4,
                    num_key_value_heads=2, head_dim=6), torch.float16,
               dict(bnb_4bit_use_double_quant=False, llm_int8_skip_modules=["lm_head", "down_proj"]),
               ["_proj"]),
}


def draw(model, seed):
    """Weights of several sizes, with blocks of zeros and of one value."""
    rng = np.random.default_rng(seed)
    for parameter in model.parameters():
        values = rng.standard_normal(parameter.shape, np.float32) * rng.uniform(0.02, 0.2)
        if parameter.dim() == 2:
            flat = values.reshape(-1)
            flat[128:192] = 0
            flat[256:320] = -0.0625
        parameter.data.copy_(torch.from_numpy(values + (parameter.dim() == 1)))


def decoded(folder, wanted):
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    found = {}
    for name in [n for n in tensors if n + ".absmax" in tensors and any(w in n for w in wanted)]:
        parts = {n: t for n, t in tensors.items() if n.startswith(name + ".")}
        state = bnb.QuantState.from_dict(parts, torch.device("cpu"))
        state.dtype = torch.float32  # In place of the weights' own, to which the values are rounded.
        found[name] = bnb.dequantize_4bit(tensors[name], state)
    return found


def load(folder, **arguments):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, device_map="cpu", **arguments)


def write(name, out):
    sizes, dtype, arguments, wanted = CASES[name]
    config = transformers.LlamaConfig(num_hidden_layers=1, max_position_embeddings=16,
                                      tie_word_embeddings=False, **sizes)
    model = transformers.LlamaForCausalLM(config)
    draw(model, seed=len(name) + len(wanted))
    with tempfile.TemporaryDirectory() as plain:
        model.to(dtype).save_pretrained(plain)
        quantised = load(plain, dtype=dtype, quantization_config=transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype, **arguments))
    quantised.save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)
    safetensors.torch.save_file(decoded(out, wanted), out / "decoded.safetensors")
    for file in out.iterdir():
        file.chmod(0o644)


def differences(a, b):
    """The tensors of two directories that differ in a byte, and what transformers makes of them."""
    first, second = (
        {n: t for file in sorted(folder.glob("*.safetensors")) if file.name != "decoded.safetensors"
         for n, t in safetensors.torch.load_file(file).items()} for folder in (a, b))
    wrong = sorted(first.keys() ^ second.keys())
    wrong += [n for n in first.keys() & second.keys()
              if first[n].dtype != second[n].dtype or not torch.equal(first[n], second[n])]
    models = [load(folder) for folder in (a, b)]
    ids = torch.arange(8).reshape(1, -1)
    logits = [model(ids).logits for model in models]
    if not torch.equal(*logits):
        wrong.append("logits")
    layers = [{n: type(m).__name__ for n, m in model.named_modules()} for model in models]
    wrong += [f"module {n}" for n in layers[0] if layers[0][n] != layers[1].get(n)]
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    parser.add_argument("--compare", nargs=2, type=pathlib.Path, metavar=("A", "B"))
    arguments = parser.parse_args()
    wrong = differences(*arguments.compare) if arguments.compare else []
    for name in CASES if not arguments.compare else []:
        with tempfile.TemporaryDirectory() as temporary:
            out = pathlib.Path(temporary) if arguments.check else FIXTURES / name
            out.mkdir(parents=True, exist_ok=True)
            write(name, out)
            for file in sorted(out.iterdir()) if arguments.check else []:
                if not filecmp.cmp(file, FIXTURES / name / file.name, shallow=False):
                    wrong.append(f"{name}/{file.name}")
    print(f"differ: {', '.join(wrong)}" if wrong else "done")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
