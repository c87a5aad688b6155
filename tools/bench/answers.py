#!/usr/bin/env python3
"""A small model learns to answer questions about the Jargon File: ours beside PyTorch, and a plot.

    bazel build -c opt //cmd:fsdp-train
    $(tools/bench/setup) tools/bench/answers.py --plot docs/benchmarks/answers.png

A Llama of a million parameters is trained on the Jargon File through a tokenizer made of it, exported, and
tuned on conversations made of its entries: what a word means, and the first sentence of its entry. One in
ten is held out. PyTorch goes on from the same exported directory, with transformers' own tokenizer, chat
template and assistant mask, labels of -100 and the same conversations in the same order, one a row. At the
end both have the same loss over the held-out answers, or the run fails; the tuned model then answers held-out
questions, and is to stop by itself.
"""

import argparse
import json
import math
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = ROOT / "bazel-bin" / "cmd" / "fsdp-train"
SEQ = 128
BATCH = 16
TUNE = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, warmup=20, min_ratio=0.1)
WITHIN = 1e-3  # Largest difference of the two losses over the held-out answers, in nats.
TEMPLATE = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
{%- else %}{{ message.content + '<|im_end|>' }}{% endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
QUESTIONS = ["What is {}?", "What does {} mean?", "Define {}.", "Explain {} to me."]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-steps", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=30, help="steps between evaluations")
    parser.add_argument("--plot", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, help="a directory to keep what is made")
    return parser.parse_args()


def entries():
    """Word and first sentence of each entry of the Jargon File."""
    text = (ROOT / "configs" / "data" / "jargon.txt").read_text("utf-8")
    parts = re.split(r"^   :(.+?): .*$", text, flags=re.M)[1:]
    for word, body in zip(parts[::2], parts[1::2]):
        paragraph = next((p for p in body.split("\n\n") if p.strip()), "")
        plain = re.sub(r"\s+", " ", re.sub(r"[{}]", "", paragraph)).strip()
        plain = re.sub(r"^(\[.*?\]|\d\.|\([^)]*\)) *", "", plain)
        sentence = re.match(r"[A-Z“‘].{20,180}?[.!](?= |$)", plain)
        if sentence and len(word) < 30:
            yield word, sentence.group(0)


def conversations(folder):
    r = random.Random(7)
    lines = []
    for word, sentence in entries():
        messages = [{"role": "user", "content": r.choice(QUESTIONS).format(word)},
                    {"role": "assistant", "content": sentence}]
        lines.append({"messages": messages})
    r.shuffle(lines)
    held = len(lines) // 10
    for name, part in (("held.jsonl", lines[:held]), ("talks.jsonl", lines[held:])):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in part), "utf-8")
    return lines[held:], lines[:held]


def make_tokenizer(folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=2048, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.train([str(ROOT / "configs" / "data" / "jargon.txt")], trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>",
              "clean_up_tokenization_spaces": False, "model_max_length": SEQ}
    (folder / "tokenizer_config.json").write_text(json.dumps(config) + "\n", "utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")


def call(*arguments, capture=True):
    command = [str(BINARY), *map(str, arguments)]
    done = subprocess.run(command, text=True, capture_output=capture, cwd=ROOT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nends with {done.returncode}\n{done.stderr}")
    return done.stdout


def train_base(folder, steps):
    recipe = folder / "base.yaml"
    recipe.write_text(f"""
run: {{name: base, dir: {folder / 'base'}}}
model: {{family: llama, hidden_size: 128, intermediate_size: 384, num_hidden_layers: 4,
         num_attention_heads: 4, num_key_value_heads: 4, tie_word_embeddings: true,
         max_position_embeddings: {SEQ}, initializer_range: 0.05}}
data:
  train: {{source: text, paths: [configs/data/jargon.txt], tokenizer: {folder / 'tokenizer/tokenizer.json'}}}
  valid: null
  seq_len: {SEQ}
  cache: {folder / 'cache'}
train: {{steps: {steps}, micro_batch_size: {BATCH}, global_batch_size: {BATCH}}}
optimizer: {{lr: 3.0e-3, betas: [0.9, 0.95], weight_decay: 0.1}}
schedule: {{name: cosine, warmup_steps: 50, min_lr_ratio: 0.1}}
log: {{every: 100}}
""", "utf-8")
    print(call("--config", recipe).splitlines()[-4])
    call("checkpoint", "export", folder / "base", "--out", folder / "hf")


def tune(folder, options, packing, count):
    recipe = folder / f"{packing}.yaml"
    recipe.write_text(f"""
run: {{name: {packing}, dir: {folder / packing}}}
model: {{init_from: {folder / 'hf'}}}
data:
  train: {{source: chat, paths: ["{folder / 'talks.jsonl'}"]}}
  valid: {{source: chat, paths: ["{folder / 'held.jsonl'}"]}}
  seq_len: {SEQ}
  shuffle: false
  packing: {packing}
  cache: {folder / 'cache'}
train: {{steps: {count}, micro_batch_size: {BATCH}, global_batch_size: {BATCH}}}
eval: {{every: {options.every}, steps: 1000}}
optimizer: {{lr: {TUNE['lr']:f}, betas: [{TUNE['betas'][0]}, {TUNE['betas'][1]}], weight_decay: {TUNE['weight_decay']}}}
schedule: {{name: cosine, warmup_steps: {TUNE['warmup']}, min_lr_ratio: {TUNE['min_ratio']}}}
log: {{every: 10}}
""", "utf-8")
    begin = time.monotonic()
    call("--config", recipe)
    seconds = time.monotonic() - begin
    records = [json.loads(line) for line in (folder / packing / "metrics.jsonl").open()]
    losses = {0: evaluate(folder, recipe)}
    losses.update({r["step"]: r["loss"] for r in records if r.get("kind") == "eval"})
    return losses, seconds


def evaluate(folder, recipe):
    """The exported model's loss, before the first step."""
    out = call("eval", "--checkpoint", folder / "hf", "--config", recipe, "--full", "--json")
    return json.loads(out[out.index("{"):])["sets"][0]["loss"]


def rate(step, steps):
    if step <= TUNE["warmup"]:
        return TUNE["lr"] * step / TUNE["warmup"]
    progress = (step - TUNE["warmup"]) / (steps - TUNE["warmup"])
    return TUNE["lr"] * (TUNE["min_ratio"]
                         + (1 - TUNE["min_ratio"]) * 0.5 * (1 + math.cos(math.pi * progress)))


def tune_pytorch(folder, options, talks, held):
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "hf")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "hf", dtype=torch.float32)

    def encode(lines):
        out = []
        for line in lines:
            both = tokenizer.apply_chat_template(line["messages"], return_dict=True,
                                                 return_assistant_tokens_mask=True)
            out.append((both["input_ids"], both["assistant_masks"]))
        return out

    def batch(samples):
        ids = torch.zeros(len(samples), SEQ, dtype=torch.long)
        labels = torch.full((len(samples), SEQ), -100)
        mask = torch.zeros(len(samples), SEQ, dtype=torch.long)
        for i, (tokens, targets) in enumerate(samples):
            ids[i, :len(tokens)] = torch.tensor(tokens)
            mask[i, :len(tokens)] = 1
            labels[i, :len(tokens)] = torch.tensor([t if on else -100
                                                    for t, on in zip(tokens, targets)])
        return ids, labels, mask

    def loss_of(samples):
        ids, labels, mask = batch(samples)
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
        total = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(),
                                                  ignore_index=-100, reduction="sum")
        return total, int((labels[:, 1:] != -100).sum())

    def held_out():
        model.eval()
        total, count = 0.0, 0
        with torch.no_grad():
            for at in range(0, len(test), BATCH):
                part, targets = loss_of(test[at:at + BATCH])
                total, count = total + part.item(), count + targets
        model.train()
        return total / count

    samples, test = encode(talks), encode(held)
    assert max(len(ids) for ids, _ in samples + test) <= SEQ
    groups = [dict(params=[p for p in model.parameters() if p.dim() == 2],
                   weight_decay=TUNE["weight_decay"]),
              dict(params=[p for p in model.parameters() if p.dim() == 1], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=TUNE["betas"], eps=TUNE["eps"])
    losses, begin = {0: held_out()}, time.monotonic()
    for step in range(1, options.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, options.steps)
        part = [samples[((step - 1) * BATCH + i) % len(samples)] for i in range(BATCH)]
        optimizer.zero_grad()
        total, count = loss_of(part)
        (total / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % options.every == 0:
            losses[step] = held_out()
    return losses, time.monotonic() - begin


def answers(folder, held, count=100):
    """How many of so many held-out questions are answered to an end; and some of them."""
    files = []
    for i, line in enumerate(held[:count]):
        path = folder / f"question_{i}.json"
        path.write_text(json.dumps(line["messages"][:1]), "utf-8")
        files += ["--messages", path]
    out = call("generate", "--checkpoint", folder / "none", "--temperature", 0, "--max-tokens",
               SEQ, "--batch", 32, "--json", *files)
    rows = [json.loads(line) for line in out.splitlines()]
    ended = sum(row["end"] == "end_of_text" for row in rows)
    return ended, [(line["messages"][0]["content"], row["text"], line["messages"][1]["content"])
                   for line, row in zip(held, rows)]


def plot(ours, theirs, packed, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axis = pyplot.subplots(figsize=(7, 3.6), constrained_layout=True)
    axis.plot(list(theirs), list(theirs.values()), "o", markersize=9, fillstyle="none",
              label="PyTorch, transformers")
    axis.plot(list(ours), list(ours.values()), "-", label="fsdp-train, one conversation a row")
    axis.plot(list(packed), list(packed.values()), "--", label="fsdp-train, packed")
    axis.set_xlabel("step")
    axis.set_ylabel("nats a token of held-out answers")
    axis.legend()
    figure.savefig(path, dpi=150)


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.out or pathlib.Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        talks, held = conversations(folder)
        print(f"{len(talks)} conversations, {len(held)} held out")
        make_tokenizer(folder / "tokenizer")
        train_base(folder, options.base_steps)
        ours, our_seconds = tune(folder, options, "none", options.steps)
        # Fewer rows hold as many conversations.
        packed_steps = max(options.every, options.steps * 4 // 10)
        packed, packed_seconds = tune(folder, options, "samples", packed_steps)
        theirs, their_seconds = tune_pytorch(folder, options, talks, held)
        print(f"{'step':>6} {'ours':>10} {'PyTorch':>10} {'difference':>11}")
        for step in theirs:
            print(f"{step:6} {ours[step]:10.5f} {theirs[step]:10.5f} {ours[step] - theirs[step]:11.1e}")
        last = max(theirs)
        print(f"{our_seconds:.0f} s with {len(ours) - 1} evaluations, PyTorch {their_seconds:.0f} s; "
              f"packed: {packed_steps} steps, {packed_seconds:.0f} s, {packed[max(packed)]:.5f}")
        ended, some = answers(folder, held)
        print(f"{ended} of {min(100, len(held))} answers end by themselves")
        for question, answer, entry in some[:6]:
            print(f"  {question}\n    {answer}\n    [{entry}]")
        if options.plot:
            plot(ours, theirs, packed, options.plot)
        if abs(ours[last] - theirs[last]) > WITHIN:
            sys.exit(f"the losses at step {last} are more than {WITHIN} apart")


if __name__ == "__main__":
    main()
