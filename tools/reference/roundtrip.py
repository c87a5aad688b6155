#!/usr/bin/env python3
"""Hugging Face directories in and out, held to transformers itself, offline.

    bazel build -c opt //cmd:fsdp-train //tools/reference:logits
    python roundtrip.py [--family NAME ...]

For a small random model of every family, in every dtype, in one file and in several:
  bits     save_pretrained -> import -> export -> from_pretrained: every tensor has the same bits,
           and the model of the exported config.json has the same logits, bit for bit
  trained  five steps of training on two ranks from the directory, exported, with averaged weights
           as well: the logits of transformers in float64 against ours and against its own in
           float32; generate() runs
Prints one line for each and exits with 1 where something differs.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # Models are built from their configuration.

import numpy as np
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = ROOT / "bazel-bin" / "cmd" / "fsdp-train"
LOGITS = ROOT / "bazel-bin" / "tools" / "reference" / "logits"

SMALL = dict(hidden_size=48, intermediate_size=88, num_hidden_layers=2, num_attention_heads=6,
             num_key_value_heads=2, vocab_size=251, max_position_embeddings=64,
             initializer_range=0.2)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 50000.0, "factor": 4.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 16}

EXPERTS = dict(moe_intermediate_size=24, num_experts_per_tok=3)
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "dots1")

T5 = dict(d_model=48, d_kv=12, d_ff=88, num_layers=2, num_heads=3,
          vocab_size=251, relative_attention_num_buckets=12, relative_attention_max_distance=20,
          dropout_rate=0.0, decoder_start_token_id=0)

FAMILIES = {
    "gpt2": lambda: transformers.GPT2Config(
        n_embd=48, n_layer=2, n_head=3, vocab_size=251, n_positions=64, initializer_range=0.2,
        bos_token_id=None, eos_token_id=None),
    "gpt2-untied": lambda: transformers.GPT2Config(
        n_embd=48, n_layer=2, n_head=3, vocab_size=251, n_positions=64, initializer_range=0.2,
        bos_token_id=None, eos_token_id=None, tie_word_embeddings=False),
    "llama": lambda: transformers.LlamaConfig(**SMALL, rope_parameters=LLAMA3),
    "llama-biased": lambda: transformers.LlamaConfig(
        **SMALL, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=10),
    "mistral": lambda: transformers.MistralConfig(**SMALL, sliding_window=None),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen2-yarn": lambda: transformers.Qwen2Config(**SMALL, rope_parameters=YARN),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL, head_dim=12, tie_word_embeddings=True),
    "mixtral": lambda: transformers.MixtralConfig(**SMALL, num_local_experts=5),
    "qwen2_moe": lambda: transformers.Qwen2MoeConfig(
        **SMALL, **EXPERTS, num_experts=6, shared_expert_intermediate_size=20, mlp_only_layers=[0]),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **SMALL, **EXPERTS, num_experts=7, head_dim=12, norm_topk_prob=True, tie_word_embeddings=True),
    "olmoe": lambda: transformers.OlmoeConfig(
        **SMALL, num_experts=4, num_experts_per_tok=3, pad_token_id=None, eos_token_id=None),
    "dots1": lambda: transformers.Dots1Config(
        **SMALL, **EXPERTS, n_routed_experts=8, n_shared_experts=2, n_group=4, topk_group=2,
        first_k_dense_replace=1, routed_scaling_factor=2.5, norm_topk_prob=True, sliding_window=None),
    "t5": lambda: transformers.T5Config(**T5),
    "t5-v1.1": lambda: transformers.T5Config(
        **T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "t5-tied-gated": lambda: transformers.T5Config(
        **T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def run(*arguments):
    result = subprocess.run([str(a) for a in arguments], capture_output=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}\n{result.stderr.decode()}")
    return result.stdout


def make(family, dtype):
    torch.manual_seed(17)
    config = FAMILIES[family]()
    if config.is_encoder_decoder:
        model = transformers.AutoModelForSeq2SeqLM.from_config(config)
        if family == "t5-v1.1":  # transformers 5 ties every head that no file holds.
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight))
    else:
        model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        buffers = [b for n, b in model.named_buffers() if n.endswith("correction_bias")]
        for parameter in [*model.parameters(), *buffers]:  # No bias is 0 and no norm 1.
            parameter += 0.1 * torch.randn_like(parameter)
    return model.to(dtype).eval()


def load(directory, dtype):
    config = transformers.AutoConfig.from_pretrained(directory)
    kind = (transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder
            else transformers.AutoModelForCausalLM)
    # Grouped products are not there in float64.
    more = dict(experts_implementation="eager") if config.model_type in MIXTURES else {}
    return kind.from_pretrained(directory, dtype=dtype, **more).eval()


def tokens():
    return torch.tensor(np.random.default_rng(5).integers(0, 251, 40))[None]


@torch.no_grad()
def logits(model):
    if not model.config.is_encoder_decoder:
        return model(tokens()).logits[0]
    before = torch.cat([torch.zeros_like(tokens()[:, :1]), tokens()[:, :-1]], dim=1)
    return model(input_ids=tokens(), decoder_input_ids=before).logits[0]


def same_bits(a, b):
    a, b = a.state_dict(), b.state_dict()
    if a.keys() != b.keys():
        return False
    return all(x.dtype == b[n].dtype and torch.equal(x.contiguous().view(torch.uint8),
                                                     b[n].contiguous().view(torch.uint8))
               for n, x in a.items())


def check_bits(family, work):
    ok = True
    for name, dtype in DTYPES.items():
        for size in ("5GB", "20KB"):
            theirs, ours, back = work / "theirs", work / "ours", work / "back"
            # Files of several sizes have the experts of a layer in one tensor.
            more = dict(save_original_format=False) if family in MIXTURES and size != "5GB" else {}
            make(family, dtype).save_pretrained(theirs, max_shard_size=size, **more)
            model = load(theirs, dtype)
            files = len(list(theirs.glob("*.safetensors")))
            run(BINARY, "checkpoint", "import", theirs, "--out", ours)
            run(BINARY, "checkpoint", "verify", ours)
            run(BINARY, "checkpoint", "export", ours, "--out", back, "--dtype", name,
                "--max-shard-size", size)
            exported = len(list(back.glob("*.safetensors")))
            again = load(back, dtype)
            bits = same_bits(model, again)
            equal = torch.equal(logits(model), logits(again))
            good = bits and equal and (files > 1) == (exported > 1)
            ok &= good
            print(f"{family:13} bits     {name} {files:2} files in, {exported:2} out: "
                  f"tensors {'the same' if bits else 'DIFFER'}, "
                  f"logits {'the same' if equal else 'DIFFER'}")
            for directory in (theirs, ours, back):
                run("rm", "-r", directory)
    return ok


def distance(a, b):
    return float((a.double() - b.double()).abs().max())


def check_trained(family, work):
    ok = True
    theirs, run_dir = work / "theirs", work / "run"
    make(family, torch.float32).save_pretrained(theirs)
    recipe = work / "recipe.yaml"
    kind = next((k for k in ("gpt2", "t5") if family.startswith(k)), "llama")
    kind = "moe" if family in MIXTURES else kind
    recipe.write_text(f"""
run: {{dir: {run_dir}, threads: 1}}
model: {{family: {kind}, init_from: {theirs}}}
data: {{train: {{source: synthetic}}, valid: null, seq_len: 32}}
train: {{steps: 5, micro_batch_size: 2, global_batch_size: 4, ema: {{decay: 0.5}}}}
optimizer: {{lr: 1.0e-2}}
checkpoint: {{every: 5}}
""")
    run(BINARY, "launch", "--nproc-per-node", "2", "--", "--config", recipe)
    before = logits(load(theirs, torch.float64))
    sequence = [str(t) for t in tokens()[0].tolist()]
    for flags in ([], ["--ema"]):
        out = work / "out"
        run(BINARY, "checkpoint", "export", run_dir, "--out", out, *flags)
        exact = logits(load(out, torch.float64))
        theirs32 = distance(logits(load(out, torch.float32)), exact)
        rows = np.frombuffer(run(LOGITS, out, *sequence), np.float32).reshape(exact.shape)
        ours = distance(torch.tensor(rows), exact)
        if not flags:  # The checkpoint itself, not only what was exported of it.
            rows = np.frombuffer(
                run(LOGITS, run_dir / "checkpoints" / "step_5", *sequence), np.float32)
            ours = max(ours, distance(torch.tensor(rows.reshape(exact.shape)), exact))
        moved = distance(before, exact)
        model = load(out, torch.float32)
        text = model.generate(tokens(), max_new_tokens=4, do_sample=False, min_new_tokens=4)
        length = 5 if model.config.is_encoder_decoder else 44
        good = ours <= 4 * theirs32 and moved > 0.1 and text.shape[1] == length
        ok &= good
        print(f"{family:13} trained  {'ema ' if flags else 'last'}  largest difference of logits "
              f"from float64: ours {ours:.2e}, PyTorch's float32 {theirs32:.2e} "
              f"(largest logit {float(exact.abs().max()):.1f}; training moved them by {moved:.1f})"
              f"{'' if good else '  TOO FAR'}")
        run("rm", "-r", out)
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=FAMILIES, action="append")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    ok = True
    for family in arguments.family or FAMILIES:
        with tempfile.TemporaryDirectory() as work:
            ok &= check_bits(family, pathlib.Path(work))
        with tempfile.TemporaryDirectory() as work:
            ok &= check_trained(family, pathlib.Path(work))
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
