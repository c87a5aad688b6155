#!/usr/bin/env python3
"""An exported directory is a model one can use: transformers itself, offline.

    bazel build -c opt //cmd:fsdp-train
    python export_generate.py [--family NAME ...]

For each kind of tokenizer and family: trains on one short document over and over, exports, and asks
  ids    AutoTokenizer.from_pretrained of the directory for the ids of hard text, against those of the
         library that the tokenizer is from (bytes: the text's own), and for the text back
  stops  AutoModelForCausalLM's generate() to continue a document's first token: it ends with the
         end-of-text token, and so does `fsdp-train generate`, behind the same tokens
Prints one line for each and exits with 1 where something differs.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import sentencepiece
import tokenizers
import torch
import transformers

import tokenizer_fixtures

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = ROOT / "bazel-bin" / "cmd" / "fsdp-train"
FIXTURES = ROOT / "tests" / "fixtures" / "tokenizers"
SIZE = "hidden_size: 48, num_hidden_layers: 1, num_attention_heads: 3, max_position_embeddings: 64"
FAMILIES = {
    "gpt2": "family: gpt2",
    "llama": "family: llama",
    "qwen3": "family: llama, qk_norm: true",
}
DOCUMENT = "xyz abc"
KINDS = ["bytes", "bytes_eot", "gpt2.json", "llama3.json", "qwen2.json", "llama2.json", "parts.json",
         "sp_bpe.model", "sp_unigram.model"]


def run(*arguments):
    result = subprocess.run([str(a) for a in arguments], capture_output=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}\n{result.stderr.decode()}")
    return result


def hard_text():
    return tokenizer_fixtures.hard_text(7, 200_000).decode("utf-8", "replace")


def ids_of_library(kind, text):
    if kind.startswith("bytes"):
        return list(text.encode())
    if kind.endswith(".json"):
        return tokenizers.Tokenizer.from_file(str(FIXTURES / kind)).encode(
            text, add_special_tokens=False).ids
    return sentencepiece.SentencePieceProcessor(model_file=str(FIXTURES / kind)).encode(text)


def vocabulary(kind):
    if kind.startswith("bytes"):
        return 257
    if kind.endswith(".json"):
        return tokenizers.Tokenizer.from_file(str(FIXTURES / kind)).get_vocab_size() + 7
    return sentencepiece.SentencePieceProcessor(model_file=str(FIXTURES / kind)).get_piece_size() + 7


def train(kind, family, work):
    if kind.startswith("bytes"):
        text = work / "text.txt"
        text.write_text((DOCUMENT + "\n") * 2000)
        source = f"{{source: text, paths: [{text}], eot: {10 if kind == 'bytes' else 256}}}"
    else:
        text = work / "text.jsonl"
        text.write_text((json.dumps({"text": DOCUMENT}) + "\n") * 2000)
        source = f"{{source: text, paths: [{text}], tokenizer: {FIXTURES / kind}}}"
    recipe = work / "recipe.yaml"
    recipe.write_text(f"""
run: {{dir: {work / 'run'}, threads: 1}}
model: {{{FAMILIES[family]}, {SIZE}, vocab_size: {vocabulary(kind)}}}
data: {{train: {source}, valid: null, seq_len: 32, cache: {work / 'cache'}}}
train: {{steps: 60, micro_batch_size: 4, global_batch_size: 4}}
optimizer: {{lr: 1.0e-2}}
checkpoint: {{every: 60}}
""")
    run(BINARY, "--config", recipe)
    exported = run(BINARY, "checkpoint", "export", work / "run", "--out", work / "out")
    return exported.stderr.decode()


def check(kind, family, work):
    warnings = train(kind, family, work)
    tokenizer = transformers.AutoTokenizer.from_pretrained(work / "out")
    text = hard_text()
    if kind.endswith(".model") or kind == "bytes_eot":
        text = text.replace("</s>", "").replace("<s>", "").replace("<unk>", "").replace(
            "<|endoftext|>", "")  # Special to transformers, text to us.
    want = ids_of_library(kind, text)
    got = tokenizer(text, add_special_tokens=False)["input_ids"]
    same = got == want
    if not same:
        first = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), -1)
        print(f"{kind}: {len(got)} and {len(want)} ids, first difference at {first}")
    if kind.startswith("bytes"):
        same &= tokenizer.decode(got) == text

    model = transformers.AutoModelForCausalLM.from_pretrained(work / "out").eval()
    prompt = tokenizer(DOCUMENT, return_tensors="pt", add_special_tokens=False)["input_ids"][:, :1]
    new = model.generate(prompt, max_new_tokens=20, do_sample=False)[0, prompt.shape[1]:].tolist()
    if kind == "bytes_eot":  # Its text has none: the model has never seen one.
        stops, ours = len(new) == 20, None
    else:
        ours = json.loads(run(BINARY, "generate", "--checkpoint", work / "out", "--prompt-ids",
                              ",".join(map(str, prompt[0].tolist())), "--temperature", "0",
                              "--max-tokens", "20", "--json").stdout)
        eos = model.generation_config.eos_token_id
        stops = (len(new) < 20 and new[-1] == eos and ours["end"] == "end_of_text"
                 and ours["tokens"] == new[:-1])
    named = model.config.eos_token_id
    print(f"{kind:16} {family:6} {type(tokenizer).__name__:20} {len(want)} ids "
          f"{'the same' if same else 'DIFFER'}; eos {named}, "
          f"{'stops as ours does' if stops else f'DOES NOT STOP: {new}, {ours}'}"
          f"{'; ' + warnings.strip() if warnings else ''}")
    return same and stops


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=FAMILIES, action="append")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    ok = True
    for family in arguments.family or FAMILIES:
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as work:
                ok &= check(kind, family, pathlib.Path(work))
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
