#!/usr/bin/env python3
"""Writes tests/fixtures/chat: conversations, what transformers makes of them, and how a small GPT-2
learns their answers with labels of -100 in float64 PyTorch.

    python chat.py            writes the fixtures
    python chat.py --check    computes them again and compares with the committed ones

README.md beside this file says what they mean and which error the tests accept.
"""

import argparse
import json
import random
import sys

import common  # Before transformers: it keeps it off the network.
import torch
import transformers

FOLDER = common.FIXTURES / "chat"
MODEL = common.FIXTURES / "gpt2" / "odd_vocab"
TOKENIZER = common.FIXTURES / "tokenizers" / "gpt2.json"
LONGEST = 64  # Tokens: the model's positions.
STEPS = 20
BATCH = 6  # Conversations of a step; 4 ranks do not divide it.
RATE = 3e-3

# With marks, and without: then what a message adds behind the generation prompt is the answer.
TEMPLATES = {
    "marked.jinja": """{%- for message in messages %}
{{- message.role + ':' }}
{%- if message.role == 'assistant' %}
{%- generation %}{{ ' ' + message.content + '<|endoftext|>' }}{% endgeneration %}
{%- else %}{{ ' ' + message.content | trim + '\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}assistant:{% endif %}
""",
    "plain.jinja": """{%- for message in messages %}
{{- '<' + message.role + '>' + message.content + '<|endoftext|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}
""",
}
WORDS = ["the", "reef", "ebb", "tide", "keel", "it's", "na\u00efve", "\u65e5\u672c", "3.50", "and", "of",
         "e\u0301", "Who", "sails", "<b>", "\u2028", "- ", "\n"]


def conversations():
    r = random.Random(5)
    phrase = lambda most: " ".join(r.choice(WORDS) for _ in range(r.randrange(1, most)))
    out = []
    for i in range(40):
        messages = []
        if i % 4 == 0:
            messages.append({"role": "system", "content": phrase(3)})
        for _ in range(r.randrange(1, 3)):
            messages.append({"role": "user", "content": phrase(4)})
            messages.append({"role": "assistant", "content": phrase(4)})
        if i % 7 == 3:
            messages.pop()  # Nobody answers.
        out.append({"messages": messages})
    return out


def tokenizer_with(template):
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER))
    tokenizer.chat_template = template
    return tokenizer


def encode(tokenizer, messages, marked):
    """Ids, and for each whether it is a target: whether its first character is said by the assistant."""
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    ids = encoded["input_ids"]
    if marked:
        both = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True,
                                             return_assistant_tokens_mask=True)
        assert both["input_ids"] == ids
        return ids, [bool(m) for m in both["assistant_masks"]]
    said = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = tokenizer.apply_chat_template(messages[:i], tokenize=False,
                                               add_generation_prompt=True)
        after = tokenizer.apply_chat_template(messages[: i + 1], tokenize=False)
        assert whole.startswith(after) and after.startswith(before)
        said.append((len(before), len(after)))
    return ids, [any(a <= begin < b for a, b in said) for begin, _ in encoded["offset_mapping"]]


def load(dtype):
    model = transformers.GPT2LMHeadModel.from_pretrained(MODEL, attn_implementation="eager")
    return model.to(dtype).train()


def losses_of(model, samples):
    """The sum over the targets, one conversation after the other, and how many there are."""
    total, count = 0, 0
    for ids, targets in samples:
        row = torch.tensor([ids])
        labels = torch.tensor([t if on else -100 for t, on in zip(ids, targets)])
        logits = model(row, use_cache=False).logits[0, :-1]
        total = total + torch.nn.functional.cross_entropy(logits, labels[1:], ignore_index=-100,
                                                          reduction="sum")
        count += int((labels[1:] != -100).sum())
    return total, count


def train(samples, dtype):
    model = load(dtype)
    with torch.no_grad():
        total, count = losses_of(model, samples)
    out = {"all": (total / count).item(), "targets": count, "loss": [], "grad_norm": []}
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([dict(params=matrices, weight_decay=0.1),
                                   dict(params=vectors, weight_decay=0.0)],
                                  lr=RATE, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    for step in range(STEPS):
        batch = [samples[(step * BATCH + i) % len(samples)] for i in range(BATCH)]
        optimizer.zero_grad()
        total, count = losses_of(model, batch)
        (total / count).backward()
        out["loss"].append((total / count).item())
        out["grad_norm"].append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
    with torch.no_grad():
        total, count = losses_of(model, samples)
    out["trained"] = (total / count).item()
    return out


def worst(a, b):
    """The largest relative difference."""
    pairs = [(a["all"], b["all"]), (a["trained"], b["trained"])]
    for key in ("loss", "grad_norm"):
        pairs += zip(a[key], b[key])
    return max(abs(x - y) / abs(y) for x, y in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is there")
    options = parser.parse_args()
    lines = conversations()
    files = {"conversations.jsonl": "".join(json.dumps(line) + "\n" for line in lines), **TEMPLATES}
    expected = {}
    for name, template in TEMPLATES.items():
        tokenizer = tokenizer_with(template)
        encoded = [encode(tokenizer, line["messages"], name == "marked.jinja")
                   for line in lines]
        assert max(len(ids) for ids, _ in encoded) <= LONGEST, max(len(ids) for ids, _ in encoded)
        samples = [(ids, targets) for ids, targets in encoded if any(targets[1:])]
        result = train(samples, torch.float64)
        result["error"] = worst(train(samples, torch.float32), result)
        result["ids"] = [ids for ids, _ in encoded]
        result["trained_on"] = [[i for i, on in enumerate(targets) if on] for _, targets in encoded]
        expected[name] = result
        print(name, "float32 differs by", result["error"], "lengths",
              sorted(len(ids) for ids, _ in encoded)[::8])
    if options.check:
        there = json.loads((FOLDER / "expected.json").read_text("utf-8"))
        for name, text in files.items():
            if (FOLDER / name).read_text("utf-8") != text:
                sys.exit(f"{FOLDER / name} is another")
        for name, result in expected.items():
            same = [there[name][key] == result[key] for key in ("ids", "trained_on", "targets")]
            if not all(same) or worst(there[name], result) > 1e-9:
                sys.exit(f"expected.json: {name} is not what PyTorch and transformers say")
        print("PyTorch and transformers still say the same")
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (FOLDER / name).write_text(text, "utf-8")
    (FOLDER / "expected.json").write_text(json.dumps(expected) + "\n", "utf-8")


if __name__ == "__main__":
    main()
