#!/usr/bin/env python3
"""Exported adapters are PEFT's: peft loads them beside their base, and the logits are ours.

    bazel build -c opt //cmd:fsdp-train //tools/reference:logits
    python export_adapters.py

For each fixture and choice of targets: trains adapters, exports them with --adapters in each dtype,
lets peft load them, and compares the logits of a sequence with those that this program's model has
(logits.cc), which merges. Both are float32 but for the adapters' dtype. Prints one line for each
and exits with 1 where they differ by more than 2e-5 (fp32), 2e-3 (fp16) or 2e-2 (bf16) of the
largest, or do not differ from the base's.

A base in nf4 is, for peft, the decoded one (qlora.py; needs bitsandbytes). Its merged export in bf16
may differ from peft's merge_and_unload() in float64, rounded, by one unit in the last place, in one
of 10,000 elements.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import peft
import safetensors.torch
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = ROOT / "bazel-bin" / "cmd" / "fsdp-train"
LOGITS = ROOT / "bazel-bin" / "tools" / "reference" / "logits"
FIXTURES = ROOT / "tests" / "fixtures"
CASES = [
    ("gpt2/odd_heads", "[c_attn, mlp.c_proj]"),
    ("gpt2/odd_heads", "['*']"),
    ("gpt2/odd_heads", "['*h.1.*']"),
    ("llama/llama_6_2", "[q_proj, v_proj]"),
    ("llama/llama_6_2", "['*layers.0*down_proj*', k_proj]"),
    ("llama/qwen2_8_1", "['*']"),
    ("llama/qwen3_documents", "[o_proj, gate_proj, up_proj]"),
    ("llama/mistral_dynamic", "[self_attn.q_proj]"),
    ("moe/qwen3_7_2", "[q_proj, gate_proj, up_proj, down_proj]"),
    ("moe/mixtral_5_2", "[w1, w2, w3, v_proj]"),
    ("moe/olmoe_6_3", "['*']"),
    ("gpt2/odd_heads", "['*'], base: nf4"),
    ("llama/llama_6_2", "[q_proj, v_proj], base: nf4, base_scales: fp32"),
    ("llama/qwen3_documents", "['*'], base: nf4, base_exclude: ['*down_proj*']"),
]
LIMITS = {"fp32": 2e-5, "fp16": 2e-3, "bf16": 2e-2}
TOKENS = list(range(3, 15))


def run(*arguments):
    result = subprocess.run([str(a) for a in arguments], capture_output=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}\n{result.stderr.decode()}")
    return result.stdout


def logits_of(model):
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].float().numpy()


def loop_of(path):
    """Grouped products want rows of whole 16 bytes, and the fixtures' are odd."""
    return dict(experts_implementation="eager") if path.parent.name == "moe" else {}


def load(path, targets, dtype=torch.float32):
    """The base as peft gets it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **loop_of(path)).eval()
    if "base: nf4" in targets:
        import qlora

        for name, module in model.named_modules():
            if qlora.is_coded(name, module, ["*down_proj*"] if "exclude" in targets else []):
                values = qlora.decoded(module.weight.detach().float(), "fp32" not in targets)
                module.weight.data = values.to(dtype)
    return model


def merged_difference(base, adapters, ours):
    """How far the export in `ours`, which has bf16, is from what peft merges in float64 and this rounds:
    the largest difference in units in the last place, and the number of elements that differ, of how many."""
    model = peft.PeftModel.from_pretrained(base, adapters).double().merge_and_unload()
    saved = safetensors.torch.load_file(ours / "model.safetensors")
    most = differ = total = 0
    for name, want in model.state_dict().items():
        if name in saved:
            # Neighbours in bf16 are neighbours as integers, but around 0.
            bits = [t.to(torch.bfloat16).view(torch.int16).int() for t in (want, saved[name])]
            ulps = (bits[0] - bits[1]).abs()
            most, differ = max(most, ulps.max().item()), differ + (ulps > 0).sum().item()
            total += ulps.numel()
    return most, differ, total


def our_logits(directory):
    return np.frombuffer(run(LOGITS, directory, *TOKENS), np.float32).reshape(len(TOKENS), -1)


def main():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    wrong = 0
    for number, (fixture, targets) in enumerate(CASES):
        with tempfile.TemporaryDirectory() as name:
            directory = pathlib.Path(name)
            (directory / "recipe.yaml").write_text(
                f"run: {{dir: {directory}/run, threads: 1}}\n"
                f"model: {{init_from: {FIXTURES / fixture}, lora: {{rank: 3, alpha: 5.5, targets: "
                f"{targets}}}}}\n"
                "data: {train: {source: synthetic}, valid: null, seq_len: 16}\n"
                "train: {steps: 20, micro_batch_size: 2, global_batch_size: 4}\n"
                "optimizer: {lr: 2.0e-2}\nschedule: {name: constant}\ncheckpoint: {every: 20}\n")
            run(BINARY, "--config", directory / "recipe.yaml")
            ours = our_logits(directory / "run" / "checkpoints" / "step_20")
            for dtype, limit in LIMITS.items():
                out = directory / dtype
                run(BINARY, "checkpoint", "export", directory / "run", "--out", out, "--adapters",
                    "--dtype", dtype)
                base = load(FIXTURES / fixture, targets)
                before = logits_of(base)
                model = peft.PeftModel.from_pretrained(base, out).eval()
                theirs, largest = logits_of(model), np.abs(ours).max()
                error, change = (np.abs(theirs - other).max() / largest for other in (ours, before))
                good = error <= limit and change > 10 * limit
                wrong += not good
                print(f"{fixture} {targets} {dtype}: target_modules "
                      f"{sorted(model.peft_config['default'].target_modules)}: error {error:.1e}, "
                      f"adapters change {change:.1e}{'' if good else ': WRONG'}")
                if dtype == "fp32" and "nf4" in targets:
                    merged = directory / "merged"
                    run(BINARY, "checkpoint", "export", directory / "run", "--out", merged, "--dtype",
                        "bf16")
                    most, differ, total = merged_difference(
                        load(FIXTURES / fixture, targets, torch.float64), out, merged)
                    good = most <= 1 and differ <= 1e-4 * total
                    wrong += not good
                    print(f"{fixture} {targets} merged in bf16: {differ} of {total} elements differ, at "
                          f"most by {most} ulp{'' if good else ': WRONG'}")
                # As a user types it, from the directory alone.
                elif dtype == "fp32":
                    auto = peft.AutoPeftModelForCausalLM.from_pretrained(
                        out, **loop_of(FIXTURES / fixture)).eval()
                    if np.abs(logits_of(auto) - theirs).max() > limit * largest:
                        print(f"{fixture} {targets}: AutoPeftModelForCausalLM differs: WRONG")
                        wrong += 1
                    if np.abs(our_logits(out) - theirs).max() > limit * largest:
                        print(f"{fixture} {targets}: our own reading of it differs: WRONG")
                        wrong += 1
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
