#!/usr/bin/env python3
"""Writes tests/fixtures/peft: adapters of PEFT for small fixtures, and the weights that PEFT merges.

    python peft_adapters.py            writes the fixtures
    python peft_adapters.py --check    computes them again and compares with the committed ones

A folder has adapter_config.json and adapter_model.safetensors as save_pretrained() writes them, and
merged.safetensors with the adapted weights, which merge_and_unload() has made in float64. The base
is another fixture, by its path in this repository. Weights are drawn from the case's seed.
"""

import argparse
import filecmp
import json
import os
import pathlib
import tempfile

import common  # Before transformers: it keeps it off the network.
import moe
import numpy as np
import peft
import safetensors.torch
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
# Name: base, model's class, and LoraConfig's arguments.
CASES = {
    "plain": ("llama/llama_6_2", "AutoModelForCausalLM",
              dict(r=3, lora_alpha=5, target_modules=["q_proj", "v_proj"])),
    "patterns": ("llama/qwen3_documents", "AutoModelForCausalLM",
                 dict(r=2, lora_alpha=7, target_modules=["k_proj", "o_proj", "down_proj"],
                      rank_pattern={"o_proj": 4, "layers.1.mlp.down_proj": 1},
                      alpha_pattern={"layers.0.self_attn.k_proj": 3, "down_proj": 11})),
    "rslora": ("gpt2/odd_heads", "AutoModelForCausalLM",
               dict(r=4, lora_alpha=6, use_rslora=True, target_modules=["c_attn", "c_proj"])),
    "ends": ("llama/llama_6_2", "AutoModelForCausalLM",
             dict(r=2, lora_alpha=3, target_modules=["lm_head", "embed_tokens", "gate_proj"])),
    "whole": ("llama/qwen3_documents", "AutoModelForCausalLM",
              dict(r=1, lora_alpha=2, target_modules=["lm_head", "k_proj"],
                   modules_to_save=["embed_tokens", "norm"])),
    "biases": ("llama/llama_biases", "AutoModelForCausalLM",
               dict(r=1, lora_alpha=3, target_modules=["v_proj"], bias="all")),
    "t5": ("t5/gated", "T5ForConditionalGeneration",
           dict(r=2, lora_alpha=4, target_modules=["q", "wi_0", "EncDecAttention.v"])),
    "vit": ("vit/odd", "AutoModelForImageClassification",
            dict(r=1, lora_alpha=2.5, target_modules=["classifier"])),
}

# The adapters of experts lie expert by expert, as PEFT wrote them with transformers 4: it puts them
# together for the experts of transformers 5, which are one parameter.
EXPERTS = {
    "experts": ("moe/qwen3_7_2", dict(r=2, lora_alpha=3,
                                      target_modules=["down_proj", "gate_proj", "q_proj", "up_proj"])),
    "mixtral": ("moe/mixtral_5_2", dict(r=1, lora_alpha=2.5, target_modules=["w1", "w2", "w3"])),
}

SEEDS = ["ends", "patterns", "plain", "rslora", "t5", "vit"]


def write_experts(name, out):
    base, arguments = EXPERTS[name]
    path = FIXTURES / base
    rng = np.random.default_rng(sorted(EXPERTS).index(name))
    tensors = {}
    for weight, values in safetensors.torch.load_file(path / "model.safetensors").items():
        module = weight.removesuffix(".weight")
        if module.rpartition(".")[2] not in arguments["target_modules"]:
            continue
        for part, shape in (("A", (arguments["r"], values.shape[1])), ("B", (values.shape[0], arguments["r"]))):
            drawn = 0.5 * rng.standard_normal(shape)
            tensors[f"base_model.model.{module}.lora_{part}.weight"] = torch.from_numpy(drawn).float()
    safetensors.torch.save_file(tensors, out / "adapter_model.safetensors")
    peft.LoraConfig(**arguments, task_type="CAUSAL_LM").save_pretrained(out)
    saved = json.loads((out / "adapter_config.json").read_text())
    saved["base_model_name_or_path"] = str(path.relative_to(ROOT))
    saved["target_modules"].sort()  # It was a set.
    (out / "adapter_config.json").write_text(json.dumps(saved, indent=2) + "\n")
    load = transformers.AutoModelForCausalLM.from_pretrained
    merged = peft.PeftModel.from_pretrained(load(path, dtype=torch.float64), out)
    for parameter in merged.parameters():
        parameter.data = parameter.data.double()
    before, feed = load(path, dtype=torch.float64).state_dict(), moe.Experts()
    feed.mixtral = name == "mixtral"
    changed = {}
    for whole, values in merged.merge_and_unload().state_dict().items():
        if not torch.equal(values, before[whole]):
            changed |= {n: t.float().contiguous().clone() for n, t in feed.tensors(whole, values)}
    assert len(changed) == len(tensors) / 2, name
    safetensors.torch.save_file(changed, out / "merged.safetensors")
    for file in out.iterdir():
        file.chmod(0o644)


def write(name, out):
    if name in EXPERTS:
        return write_experts(name, out)
    base, kind, arguments = CASES[name]
    path = FIXTURES / base
    torch.manual_seed(SEEDS.index(name) if name in SEEDS else 100 + sorted(CASES).index(name))
    load = getattr(transformers, kind).from_pretrained
    model = peft.get_peft_model(load(path, dtype=torch.float32), peft.LoraConfig(**arguments))
    for parameter in (p for n, p in model.named_parameters() if "lora_" in n):
        parameter.data.normal_(std=0.5)
    for parameter in (p for n, p in model.named_parameters() if "lora_" not in n and p.requires_grad):
        parameter.data.add_(0.5 * torch.randn_like(parameter))  # It is stored whole.
    config = model.peft_config["default"]
    config.base_model_name_or_path = str(path.relative_to(ROOT))
    model.save_pretrained(out, save_embedding_layers="auto" if name == "whole" else False)
    (out / "README.md").unlink(missing_ok=True)
    saved = json.loads((out / "adapter_config.json").read_text())
    saved["target_modules"].sort()  # It was a set.
    (out / "adapter_config.json").write_text(json.dumps(saved, indent=2) + "\n")
    os.chdir(ROOT)  # The base's path begins here.
    before = load(path, dtype=torch.float64)
    merged = peft.PeftModel.from_pretrained(load(path, dtype=torch.float64), out)
    for parameter in merged.parameters():
        parameter.data = parameter.data.double()
    after = merged.merge_and_unload().state_dict()
    changed = {n: t.float().contiguous().clone() for n, t in after.items()
               if not torch.equal(t, before.state_dict()[n])}
    assert changed, name
    safetensors.torch.save_file(changed, out / "merged.safetensors")
    for file in out.iterdir():
        file.chmod(0o644)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    check = parser.parse_args().check
    wrong = []
    for name in [*CASES, *EXPERTS]:
        with tempfile.TemporaryDirectory() as temporary:
            out = pathlib.Path(temporary) if check else FIXTURES / "peft" / name
            out.mkdir(parents=True, exist_ok=True)
            write(name, out)
            for file in sorted(out.iterdir()) if check else []:
                if not filecmp.cmp(file, FIXTURES / "peft" / name / file.name, shallow=False):
                    wrong.append(f"{name}/{file.name}")
    print(f"differ: {', '.join(wrong)}" if wrong else "done")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
