#!/usr/bin/env python3
"""Records what transformers makes of the files beside a tokenizer, and Hugging Face's `tokenizers` of split
patterns and of splitters: tests/fixtures/tokenizers/side_files.json, patterns.json and splits.json."""

import argparse
import json
import pathlib
import shutil
import sys
import tempfile

from tokenizer_fixtures import FOLDER, fnv, hard_text

HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
PATTERNS = [
    # DeepSeek-LLM's and -Coder's, o200k's, and what other published files are made of.
    r"\s+$", r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN, r"[!-/:-~]+$", r"[0-9][0-9][0-9]",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{L}&&[^\p{Han}]]+|\p{N}{1,3}|\s+",
    r"(?:^|\s)[a-z]+", r"[A-Z]?[a-z]+$", r"^.", r".$", r"\A\w+", r"\w+\z", r"\w+\Z", r"(?m:.+)", r".+",
    r"\b", r"\B", r"\b\w", r"\w+\b", r"\W+", r"[\W]+", r"[^\w]+", r"[\S]+", r"[^\S]+", r"[^\S\n]+",
    r"\d+", r"\D+", r"[\D]+", r"\h+", r"\H+", r"[\h]+", r"[\H\n]+", r"\R", r"\R+", r"\N+", r"\O",
    r"\p{Han}+", r"\p{Latin}+", r"\P{Latin}+", r"\p{^Lu}+", r"\P{^Lu}+", r"[\p{^L}]+", r"[^\P{L}]+",
    r"\p{Cyrillic}|\p{Greek}+|\p{Hiragana}+", r"\p{Letter}+", r"\p{Lowercase_Letter}+", r"\p{Uppercase}+",
    r"\p{Alphabetic}+", r"\p{alnum}+", r"\p{Punct}+", r"\p{punctuation}+", r"\p{Space}+", r"\p{Word}+",
    r"\p{XDigit}+", r"\p{Cntrl}", r"\p{Blank}+", r"\p{Any}", r"\p{ASCII}+", r"\p{Emoji}+", r"\p{LC}+",
    r"\p{Sc}|\p{Sm}|\p{Sk}|\p{So}", r"\p{Nl}|\p{No}", r"\p{M}+", r"\p{White_Space}", r"\p{Assigned}+",
    r"[[:alpha:]]+", r"[[:^alpha:]]+", r"[^[:space:][:punct:]]+", r"[[:upper:][:digit:]_]+", r"[[:word:]-]+",
    r"[a-f[x-z]]+", r"[a-z&&[^aeiou]]+", r"[a-z&&[^aeiou]&&[b-m]]+", r"[^a-z&&[a-m]]+", r"[^a-z[0-9]]+",
    r"[\w&&[^\d]]+", r"[\p{L}&&\p{ASCII}]+", r"[a\-z]+", r"[-a]+", r"[a-]+", r"[+--]+",
    r"[\]\[]+", r"[\x41-\x5A]+", r"\x{4e00}|[\x{3041}-\x{3096}]", r"\u00e9|\u0301", r"[\t\v\f\a\e\b]+", r"\v",
    r"a++b?", r"[a-z]*+[0-9]", r"x?+x", r"[a-z]{2}", r"[a-z]{2}?", r"[a-z]{2,3}?", r"[a-z]{2,3}+",
    r"[a-z]{,2}[0-9]", r"[a-z]{2,}", r"a{,}|{x}|a{b", r"(?:ab?)*+", r"[a-z]+?\b", r"(?>[a-z]+)s?", r"(?>e|er)r",
    r"(?<=[a-z])[A-Z]", r"(?<![a-z])[A-Z]", r"(?<=\s)\S", r"[a-z]+(?=\s|$)", r"[a-z]+(?!\w)", r"(?=[A-Z])",
    r"(?i)the|OF", r"(?i:x)y", r"t(?i)h|o", r"(?-i:a)|(?im:b.)", r"(?i)[a-f]+(?-i)x", r"(?#comment)[a-z]+",
    r"\Ga", r"\p{Nd}{1,510}(?=(?>\p{Nd}{3})*(?:\P{Nd}|$))|\G\p{Nd}{3}",  # The second is AFMoE's.
    r"(?<name>[a-z])+[0-9]", r"(a|b)+c?", r"'(?:[sdmt]|ll|ve|re)", r"\ ?\/|\-|\#", "\u00e9+",
]
# Patterns that our own refuses although the library takes them, by a part of the message.
REFUSED = {
    r"(a)\1": r"\1 at byte 3", r"a\K": r"\K at byte 1", r"(?x: a )": "(?x at byte 0",
    r"(?~ab)": "(?~ at byte 0", r"\p{In_Hiragana}": r"\p{In_Hiragana} at byte 0", r"(?<n>a)\k<n>": r"\k at byte",
    r"\y": r"\y at byte 0", r"a\X": r"\X at byte 1", r"(*FAIL)": "(* at byte 0",
}

# Splitters in the place of gpt2.json's.
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


SPLITS = {
    "contiguous_at_nothing": [split(r"(?=[A-Z])|(?<=[a-z])(?=[0-9])", "Contiguous"), BYTES],
    "contiguous_at_nothing_inverted": [split(r"(?=[A-Z])|\s", "Contiguous", True), BYTES],
    "next_behind_nothing": [split(r"(?=[A-Z])|[0-9]|(?<=\s)", "MergedWithNext"), BYTES],
    "previous_behind_nothing": [split(r"(?=[A-Z])|[0-9]|(?<=\s)", "MergedWithPrevious"), BYTES],
    "punctuation": [{"type": "Punctuation"}, BYTES],
    "punctuation_contiguous": [{"type": "Punctuation", "behavior": "Contiguous"}, BYTES],
    "whitespace": [{"type": "Whitespace"}, BYTES],
    # Falcon's and Falcon3's.
    "behind_bytes": [{"type": "Punctuation", "behavior": "Contiguous"}, {**BYTES, "use_regex": True},
                     {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]", "Isolated")],
    "digits_behind_bytes": [{**BYTES, "add_prefix_space": True}, {"type": "Digits", "individual_digits": True},
                            split("\u0120\u0120+", "MergedWithNext")],
}

IM = {"content": "<|im_start|>", "special": True, "normalized": False, "lstrip": False, "rstrip": False,
      "single_word": False}
CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast"}
# Name: tokenizer, files beside it. In each, N is the tokenizer's first free id.
SIDES = {
    "decoder": ("gpt2.json", {"config": {"eos_token": "<|endoftext|>", "added_tokens_decoder": {"N": IM}}}),
    "not_a_number": ("gpt2.json", {"config": {"eos_token": "<|endoftext|>", "temperature": float("nan"),
                                              "added_tokens_decoder": {"N": IM}}}),
    "decoder_two": ("gpt2.json", {"config": {"added_tokens_decoder": {
        "N+1": {**IM, "content": "<|im_end|>"}, "N": IM}}}),
    "decoder_gap": ("gpt2.json", {"config": {"added_tokens_decoder": {"N+5": IM}}}),
    "decoder_clash": ("gpt2.json", {"config": {"added_tokens_decoder": {"5": IM}}}),
    "decoder_old_id": ("gpt2.json", {"config": {"added_tokens_decoder": {"7": {**IM, "content": "<|endoftext|>"}}}}),
    "decoder_flags": ("gpt2.json", {"config": {"added_tokens_decoder": {
        "1000": {**IM, "content": "<|endoftext|>", "lstrip": True, "rstrip": True}}}}),
    "decoder_single": ("gpt2.json", {"config": {"added_tokens_decoder": {
        "1000": {**IM, "content": "<|endoftext|>", "single_word": True}}}}),
    "decoder_normalized": ("qwen2.json", {"config": {"added_tokens_decoder": {
        "1003": {**IM, "content": "vi\u1ebfX", "normalized": False}}}}),
    "decoder_of_a_piece": ("gpt2.json", {"config": {"added_tokens_decoder": {
        "ID": {**IM, "content": "PIECE"}}}}),
    "decoder_plain": ("gpt2.json", {"config": {"added_tokens_decoder": {
        "N": {"content": "vie\u0302\u0301X", "special": False}}}}),
    "decoder_plain_nfc": ("qwen2.json", {"config": {"added_tokens_decoder": {
        "N": {"content": "e\u0301X", "special": False}}}}),
    "additional": ("gpt2.json", {"config": {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}}),
    "extra_list": ("gpt2.json", {"config": {"extra_special_tokens": ["<|im_end|>", "<|im_start|>"]}}),
    "extra_map": ("gpt2.json", {"config": {"extra_special_tokens": {
        "z_token": "<|im_end|>", "a_token": "<|im_start|>"}}}),
    "extra_and_additional": ("gpt2.json", {"config": {
        "extra_special_tokens": ["<|im_end|>"], "additional_special_tokens": ["<|im_start|>"]}}),
    "empty_extra": ("gpt2.json", {"config": {
        "extra_special_tokens": [], "additional_special_tokens": ["<|im_start|>"]}}),
    "extra_flags": ("gpt2.json", {"config": {"extra_special_tokens": [
        {**IM, "__type": "AddedToken", "rstrip": True}]}}),
    "image_token": ("gpt2.json", {"config": {"image_token": "<|im_start|>", "eos_token": "<|im_end|>"}}),
    "eos_map": ("gpt2.json", {"config": {"eos_token": {
        **IM, "__type": "AddedToken", "lstrip": True}}}),
    "eos_new": ("gpt2.json", {"config": {"eos_token": "<|im_end|>", "pad_token": "[PAD]"}}),
    "eos_piece": ("gpt2.json", {"config": {"eos_token": "PIECE"}}),
    "all_names": ("gpt2.json", {"config": {
        "mask_token": "<mask>", "cls_token": "<s>", "unk_token": "<unk>", "bos_token": "<|im_start|>",
        "sep_token": "</s>", "pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"}}),
    "added_file": ("gpt2.json", {"config": {}, "added": {"<|im_end|>": "N+1", "<|im_start|>": "N"}}),
    "added_file_special": ("qwen2.json", {"config": {"additional_special_tokens": ["e\u0301X"]},
                                          "added": {"e\u0301X": "N", "a\u0301Y": "N+1"}}),
    "added_file_gap": ("gpt2.json", {"config": {}, "added": {"<|im_start|>": "N+3"}}),
    "added_file_unread": ("gpt2.json", {"config": {"added_tokens_decoder": {}},
                                        "added": {"<|im_start|>": "N"}}),
    "map_eos": ("llama3.json", {"config": {}, "map": {"eos_token": "<|begin_of_text|>"}}),
    "map_first": ("qwen2.json", {"config": {"eos_token": "<|endoftext|>"}, "map": {"eos_token": "<|im_end|>"}}),
    "map_unread": ("qwen2.json", {"config": {"eos_token": "<|endoftext|>", "added_tokens_decoder": {}},
                                  "map": {"eos_token": "<|im_end|>"}}),
    "map_flags": ("gpt2.json", {"config": {}, "map": {"eos_token": {
        "content": "<|im_end|>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}}}),
    "map_alone": ("gpt2.json", {"map": {"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]}}),
    "map_additional_second": ("gpt2.json", {"config": {"additional_special_tokens": ["<|im_end|>"]},
                                            "map": {"additional_special_tokens": ["<|im_start|>"]}}),
    "map_extra": ("gpt2.json", {"config": {"extra_special_tokens": ["<|im_end|>"]},
                                "map": {"extra_special_tokens": ["<|im_start|>"]}}),
    "unigram": ("uni_spm.json", {"config": {"eos_token": "</s>", "additional_special_tokens": ["<|im_end|>"]}}),
    "t5_model": ("t5.model", {"config": {"tokenizer_class": "T5Tokenizer", "extra_ids": 10}}),
    "t5_list": ("t5.model", {"config": {"tokenizer_class": "T5Tokenizer", "extra_ids": 3, "eos_token": "</s>",
                                        "additional_special_tokens": [f"<extra_id_{i}>" for i in range(3)]}}),
    "t5_more": ("t5.model", {"config": {"tokenizer_class": "T5TokenizerFast", "extra_ids": 2,
                                        "extra_special_tokens": ["<|im_end|>"]}}),
    "t5_none": ("t5.model", {"config": {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}}),
    "t5_plain": ("t5.model", {"model": {"model_type": "t5"}}),
    "t5_json": ("uni_t5.json", {"config": {"tokenizer_class": "T5Tokenizer", "extra_ids": 10}}),
    "sp_added": ("sp_bpe.model", {"config": {"tokenizer_class": "SentencePieceBackend", "unk_token": "<unk>"},
                                  "added": {"<|im_start|>": "N", "<|im_end|>": "N+1"}}),
    "sp_decoder": ("sp_bpe.model", {"config": {
        "tokenizer_class": "SentencePieceBackend", "unk_token": "<unk>", "eos_token": "<|im_end|>",
        "added_tokens_decoder": {"1": {**IM, "content": "<s>"}, "N": IM,
                                 "N+1": {**IM, "content": "<|im_end|>", "lstrip": True}}}}),
    "sp_llama": ("sp_bpe.model", {"config": {
        "tokenizer_class": "LlamaTokenizer", "legacy": False, "added_tokens_decoder": {
            "0": {**IM, "content": "<unk>"}, "1": {**IM, "content": "<s>"}, "2": {**IM, "content": "</s>"},
            "N": IM}}}),
}


def texts():
    raw = hard_text(3, 60_000)
    return [raw[at:at + 300].decode("utf-8", "replace") for at in range(0, len(raw), 300)]


def ranges(pattern):
    """For each text the bytes where the pieces of Split begin: isolated, and with matches removed."""
    from tokenizers import Regex, pre_tokenizers

    out = []
    for behavior in ("isolated", "removed"):
        split = pre_tokenizers.Split(Regex(pattern), behavior)
        for text in texts():
            places = [0]
            for c in text:
                places.append(places[-1] + len(c.encode("utf-8")))
            for _, (begin, end) in split.pre_tokenize_str(text):
                out += [places[begin], places[end]]
            out.append(-1)
    return out


def patterns():
    import struct

    found = {}
    for pattern in [*PATTERNS, *REFUSED]:
        try:
            values = ranges(pattern)
        except Exception as error:  # Not a pattern to Oniguruma either.
            print(f"{pattern}: {error}", file=sys.stderr)
            continue
        if pattern in REFUSED:
            found[pattern] = {"refused": REFUSED[pattern]}
        else:
            found[pattern] = {"hash": f"{fnv(struct.pack(f'<{len(values)}i', *values)):016x}"}
    return found


def splits():
    import struct

    from tokenizers import Tokenizer

    found = {}
    for name, steps in SPLITS.items():
        as_json = json.loads((FOLDER / "gpt2.json").read_text("utf-8"))
        as_json["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
        tokenizer = Tokenizer.from_str(json.dumps(as_json))
        values = [id_ for text in texts() for id_ in tokenizer.encode(text, add_special_tokens=False).ids]
        found[name] = {"pre_tokenizer": as_json["pre_tokenizer"], "ids": len(values),
                       "hash": f"{fnv(struct.pack(f'<{len(values)}i', *values)):016x}"}
    return found


def side_text():
    return ("train <|im_start|>a model<|im_end|> of  <|endoftext|>  x<|endoftext|>y e\u0301X a\u0301Y vi\u1ebfX vie\u0302\u0301X "
            "<s> one</s> <mask> [PAD]<unk> <extra_id_0> two<extra_id_1>three <extra_id_2> word \u212b\uff21\u2122 fin")


def sides():
    import tokenizers
    import transformers

    transformers.logging.set_verbosity_error()
    found = {"text": side_text()}
    for name, (file, beside) in SIDES.items():
        model = file.endswith(".model")
        source = FOLDER / file
        if model:
            import sentencepiece
            free = sentencepiece.SentencePieceProcessor(model_file=str(source)).get_piece_size()
        else:
            free = tokenizers.Tokenizer.from_file(str(source)).get_vocab_size()
        written = {}
        for key, target in {"config": "tokenizer_config.json", "map": "special_tokens_map.json",
                            "added": "added_tokens.json", "model": "config.json"}.items():
            if key not in beside:
                continue
            value = {**CONFIG, **beside[key]} if key == "config" and not model else beside[key]
            text = json.dumps(value)
            for i in range(9, 0, -1):
                text = text.replace(f'"N+{i}"', f'"{free + i}"')
            written[target] = text.replace('"N"', f'"{free}"').replace("PIECE", "er")
        if "added_tokens.json" in written:
            value = json.loads(written["added_tokens.json"])
            written["added_tokens.json"] = json.dumps({k: int(v) for k, v in value.items()})
        if not model:
            id_ = tokenizers.Tokenizer.from_file(str(source)).token_to_id("er")
            written = {to: contents.replace('"ID"', f'"{id_}"') for to, contents in written.items()}
        text = side_text()
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            t5 = "T5" in written.get("tokenizer_config.json", "") or "config.json" in written
            to = "tokenizer.json" if not model else "spiece.model" if t5 else "tokenizer.model"
            shutil.copy(source, folder / to)
            for target, value in written.items():
                (folder / target).write_text(value)
            case = {"tokenizer": file, "as": to, "files": written}
            if "tokenizer_config.json" in written or "config.json" in written:
                load = transformers.AutoTokenizer
            else:
                load = transformers.PreTrainedTokenizerFast
            try:
                tokenizer = load.from_pretrained(folder)
            except Exception as error:
                print(f"{name}: {type(error).__name__} {error}", file=sys.stderr)
                continue
            vocab = tokenizer.get_vocab()
            case["class"] = type(tokenizer).__name__
            case["ids"] = tokenizer.encode(text, add_special_tokens=False)
            case["size"] = len(tokenizer)
            case["named"] = {token: vocab[token] for token in
                             sorted({*tokenizer.all_special_tokens, "<extra_id_0>"}) if token in vocab}
            case["eos"] = tokenizer.eos_token_id
            found[name] = case
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is there")
    options = parser.parse_args()
    for file, make in {"patterns.json": patterns, "splits.json": splits, "side_files.json": sides}.items():
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in make().items()]
        text = "{\n" + ",\n".join(lines) + "\n}\n"
        if options.check and (FOLDER / file).read_text("utf-8") != text:
            sys.exit(f"tests/fixtures/tokenizers/{file} is not what the libraries say")
        if not options.check:
            (FOLDER / file).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
