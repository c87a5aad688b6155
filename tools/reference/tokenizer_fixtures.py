#!/usr/bin/env python3
"""Small tokenizers of every kind, and what Hugging Face's `tokenizers` and `sentencepiece` make of a
megabyte of hard text. README.md says what the files mean; tests/testing/hard_text.h draws the same
text."""

import argparse
import json
import pathlib
import struct
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "fixtures" / "tokenizers"
# tokenizer_files.py's, but for the first.
OTHERS = {"expected.json", "patterns.json", "side_files.json", "splits.json", "t5.model"}
MASK = (1 << 64) - 1

GPT2 = None  # ByteLevel's own.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# --- The hard text: integers only, so that C++ draws the same bytes ---

SCRIPTS = [
    (0x3B1, 25), (0x430, 32), (0x5D0, 27), (0x628, 19), (0x905, 53), (0x995, 20), (0xE01, 46),
    (0x3041, 86), (0x30A1, 90), (0x4E00, 0x51A6), (0xAC00, 11172), (0x10D0, 33), (0x561, 38),
    (0x1200, 73), (0xC0, 0x190), (0x10400, 80), (0x1D400, 85),
]
DIGITS = [(0x30, 10), (0x30, 10), (0x660, 10), (0x966, 10), (0xB2, 2), (0xBC, 3), (0x2160, 41),
          (0x2460, 20), (0xFF10, 10)]
SPACES = [0x20, 0x20, 0x20, 0x09, 0x0A, 0x0D, 0x0B, 0x0C, 0x85, 0xA0, 0x1680, 0x180E, 0x2003, 0x2028,
          0x2029, 0x200B, 0x202F, 0x3000]
PUNCTUATION = [*range(0x21, 0x30), *range(0x3A, 0x41), *range(0x5B, 0x61), *range(0x7B, 0x7F),
               0x201C, 0x201D, 0x2018, 0x2019, 0x2014, 0x2026, 0x3002, 0x3001, 0xFF01, 0xAB, 0xBF,
               0x2581]
EMOJI = ["\U0001F468\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466", "\U0001F1E9\U0001F1EA",
         "\U0001F44D\U0001F3FD", "1\uFE0F\u20E3", "\u2764\uFE0F", "\u00A9"]
COMPOSED = ["\u212B", "\uFB01", "\uFDFA", "\uFF21", "e\u0301", "\u1100\u1161\u11A8", "\u0958",
            "a\u0323\u0302", "a\u0302\u0323", "\uAC00\u11A8", "\u1E9B\u0323", "\u0344", "\u2126"]
WORDS = ["the", "of", "and", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on", "are",
         "don't", "I'LL", "we've", "They'Re", "it's", "'tis", "o'clock", "New", "York", "2024",
         "3.14159", "e.g.", "CamelCase", "snake_case", "https://example.org/a?b=c&d=%20", "x86_64"]
SPECIALS = ["<|endoftext|>", "<|begin_of_text|>", "<|im_start|>", "<|im_end|>", "</s>", "<s>",
            "<unk>", "<|endof", "<|endoftext|", "<mask>", "  <mask>\t ", "word<mask>s", "[word]",
            " [word] ", "a[word]b", "vi\u1EBFX", "vie\u0302\u0301X", "<0x0A>", "\u2581"]
CONTRACTIONS = ["'s", "'S", "'ll", "'LL", "'Ve", "n't", "'\u017F", "'d", "'D", "'m", "'re", "'T"]
CODE = ["for (int i = 0; i < n; ++i) {\n    x[i] += 1;\n}\n", "def f(x):\n\treturn x**2\n",
        "SELECT * FROM t WHERE a >= 10;\r\n", "\n\n\n", "    \n", "{\"k\": [1, 2.5, null]}",
        "<p class=\"x\">&amp;</p>", "# ==== #\n"]
INVALID = [b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xf0\x9f\x98", b"\x80",
           b"\xff\xfe", b"\xf8\x88\x80\x80\x80", b"\xc3", b"\xe0\x9f\x80", b"\xf0\x8f\xbf\xbf"]


class Draws:
    """splitmix64 (Steele, Lea, Flood 2014)."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return (z ^ (z >> 31)) % n


def chars(draws, table, count):
    start, size = table[draws.below(len(table))]
    return "".join(chr(start + draws.below(size)) for _ in range(count))


def stretch(d):
    """One stretch of the hard text, as bytes."""
    kind = d.below(24)
    if kind < 6:
        word = "".join(chr(0x61 + d.below(26)) for _ in range(1 + d.below(12)))
        text = word.capitalize() if d.below(8) == 0 else word
    elif kind < 8:
        text = WORDS[d.below(len(WORDS))]
    elif kind < 11:
        text = chars(d, SCRIPTS, 1 + d.below(10))
    elif kind == 11:
        text = chars(d, DIGITS, 1 + d.below(8))
    elif kind == 12:
        text = "".join(chr(PUNCTUATION[d.below(len(PUNCTUATION))]) for _ in range(1 + d.below(6)))
    elif kind == 13:
        text = " " * (1 + d.below(8))
    elif kind == 14:
        text = "".join(chr(SPACES[d.below(len(SPACES))]) for _ in range(1 + d.below(6)))
    elif kind == 15:
        text = chr(0x1F600 + d.below(80)) if d.below(2) else EMOJI[d.below(len(EMOJI))]
    elif kind == 16:
        text = chr(0x61 + d.below(26))
        text += "".join(chr(0x300 + d.below(0x70)) for _ in range(1 + d.below(4)))
    elif kind == 17:
        text = COMPOSED[d.below(len(COMPOSED))]
    elif kind == 18:
        text = "".join(chr(d.below(0x20) + (0x7F if d.below(3) == 0 else 0)) for _ in range(1 + d.below(3)))
    elif kind == 19:
        if d.below(2):
            return INVALID[d.below(len(INVALID))]
        return bytes(0x80 + d.below(0x80) for _ in range(1 + d.below(4)))
    elif kind == 20:
        text = SPECIALS[d.below(len(SPECIALS))]
    elif kind == 21:
        text = CONTRACTIONS[d.below(len(CONTRACTIONS))]
    elif kind == 22:
        text = CODE[d.below(len(CODE))]
    else:
        rare = d.below(60)
        if rare == 0:
            text = "".join(chr(0x61 + d.below(4)) for _ in range(1000 + d.below(9000)))
        elif rare == 1:
            text = "a" * (100 + d.below(3000))
        elif rare == 2:
            text = chars(d, SCRIPTS, 500 + d.below(1000))
        elif rare == 3:
            text = " " * (100 + d.below(2000))
        elif rare == 4:
            text = chars(d, DIGITS, 300)
        else:
            text = "-"
    return text.encode("utf-8")


def hard_text(seed, size):
    draws, out = Draws(seed), bytearray()
    while len(out) < size:
        out += stretch(draws)
        if draws.below(3) > 0:
            out += b" "
    return bytes(out)


def fnv(data, value=0xCBF29CE484222325):
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


# --- The tokenizers ---


def corpus(hard=150_000):
    """The text that tokenizers are trained on: easy text, and some of the hard one."""
    jargon = (ROOT / "configs" / "data" / "jargon.txt").read_text("utf-8")[:300_000]
    return jargon + hard_text(1, hard).decode("utf-8", "replace").replace("\0", "")


def huggingface():
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
    from tokenizers import pre_tokenizers, processors, trainers

    text = corpus().splitlines(keepends=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()

    def byte_level(splitter, normalizer=None, size=1000, **model):
        tokenizer = Tokenizer(models.BPE(**model))
        if normalizer:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = splitter
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet,
                                      show_progress=False)
        tokenizer.train_from_iterator(text, trainer)
        return tokenizer

    made = {}
    gpt2 = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    gpt2.add_special_tokens(["<|endoftext|>"])
    made["gpt2"] = gpt2

    prefix = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), size=600)
    prefix.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True)])
    prefix.add_tokens([AddedToken("[word]", single_word=True), AddedToken("word", single_word=True)])
    made["prefix_space"] = prefix

    split = lambda pattern: pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    llama3 = byte_level(split(LLAMA3), ignore_merges=True)
    llama3.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B:1",
            special_tokens=[("<|begin_of_text|>", llama3.token_to_id("<|begin_of_text|>"))])])
    made["llama3"] = llama3

    qwen2 = byte_level(split(QWEN2), normalizer=normalizers.NFC())
    qwen2.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    qwen2.add_tokens([AddedToken("vi\u1EBFX", normalized=True)])
    made["qwen2"] = qwen2

    stripped = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), size=400,
                          normalizer=normalizers.Sequence([
                              normalizers.NFD(),
                              normalizers.Replace(Regex("[\u0300-\u036F]+"), "")]))
    made["stripped"] = stripped

    # Llama 2 as converted: no pre-tokenizer, so that a document is one word.
    llama2 = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    llama2.normalizer = normalizers.Sequence([
        normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    llama2.decoder = decoders.Sequence([
        decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=900, show_progress=False, limit_alphabet=200,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)])
    llama2.pre_tokenizer = pre_tokenizers.Metaspace()  # To train with; the model goes without.
    llama2.train_from_iterator(text, trainer)
    as_json = json.loads(llama2.to_str())
    as_json["pre_tokenizer"] = None
    for token in as_json["added_tokens"]:
        token["normalized"] = False
    as_json["added_tokens"] = as_json["added_tokens"][:3]
    made["llama2"] = Tokenizer.from_str(json.dumps(as_json))

    # Other settings that a file may have.
    parts = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    parts.normalizer = normalizers.Sequence([
        normalizers.NFKD(), normalizers.Replace("\u0301", "")])
    parts.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split("-", "merged_with_previous"),
        pre_tokenizers.Split(Regex(r"[.,;]+"), "removed"),
        pre_tokenizers.Split(Regex(r"[A-Z]"), "merged_with_next"),
        pre_tokenizers.Split(Regex(r"[(){}\[\]]"), "contiguous"),
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Metaspace(prepend_scheme="first")])
    parts.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False, limit_alphabet=150,
                                  special_tokens=["<unk>", "</s>"])
    parts.train_from_iterator(text, trainer)
    made["parts"] = parts
    made.update(unigrams())
    return made


# A small charsmap replaces these: one character by several, several by one, and some by nothing.
CHARSMAP = ["\u212B \u00C5", "A\u030A \u00C5", "e\u0301 \u00E9", "\uFB01 fi", "\u2122 TM", "\uFF21 A",
            "\u2460 1", "\u00BD 1\u20442", "\uFDFA \u0635\u0644\u0649", "\u3000  ", "\u00A0  ", "\t  ",
            "\n  ", "\u0344 ", "\u1100\u1161 \uAC00", "\u2126 \u03A9",
            "\u00B2 2", "\u2026 ...", "\u0958 \u0915\u093C"]


def t5_model():
    """A SentencePiece model as T5's: ids of <pad>, </s> and <unk>, and a charsmap."""
    import sentencepiece

    with tempfile.TemporaryDirectory() as folder:
        rules = pathlib.Path(folder) / "rules.tsv"
        code = lambda text: " ".join(f"{ord(c):X}" for c in text)
        rules.write_text("".join(f"{code(rule.split(' ', 1)[0])}\t{code(rule.split(' ', 1)[1])}\n"
                                 for rule in CHARSMAP))
        text = pathlib.Path(folder) / "text.txt"
        text.write_text("\n".join(line for line in corpus(20_000).splitlines() if len(line) < 2000),
                        "utf-8")
        prefix = pathlib.Path(folder) / "t5"
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=str(prefix), model_type="unigram", vocab_size=500,
            character_coverage=0.98, normalization_rule_tsv=str(rules), pad_id=0, eos_id=1,
            unk_id=2, bos_id=-1, hard_vocab_limit=False, num_threads=1, minloglevel=2,
            max_sentence_length=8192)
        return prefix.with_suffix(".model").read_bytes()


def unigrams():
    """Unigram models: with and without charsmap, byte_fallback, and every prepend_scheme."""
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
    from tokenizers import pre_tokenizers, processors

    proto = sentencepiece_model_pb2.ModelProto.FromString(t5_model())
    charsmap = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    vocab = [(piece.piece, piece.score) for piece in proto.pieces]
    metaspace = lambda scheme, split=True: pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    decode = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                decoders.Fuse(), decoders.Strip(" ", 1, 0)])

    made = {}
    extra = [f"<extra_id_{i}>" for i in range(9, -1, -1)]
    t5 = Tokenizer(models.Unigram(vocab + [(token, 0.0) for token in extra], 2, False))
    t5.normalizer = charsmap
    t5.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace("always")])
    t5.decoder = decoders.Metaspace(prepend_scheme="always")
    t5.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>",
                                                      special_tokens=[("</s>", 1)])
    t5.add_special_tokens(["<pad>", "</s>", "<unk>", *extra])
    made["uni_t5"] = t5

    converted = Tokenizer(models.Unigram(vocab, 2, False))
    converted.normalizer = normalizers.Sequence([
        charsmap, normalizers.Strip(left=False, right=True),
        normalizers.Replace(Regex(" {2,}"), "\u2581")])
    converted.pre_tokenizer = metaspace("first")
    converted.decoder = decode
    converted.add_tokens([AddedToken("<mask>", lstrip=True, special=True, normalized=False),
                          AddedToken("[word]", single_word=True)])
    made["uni_spm"] = converted

    bytes_ = [(f"<0x{i:02X}>", 0.0) for i in range(256)]
    fallback = Tokenizer(models.Unigram([("<unk>", 0.0), *bytes_, *vocab[3:]], 0, True))
    fallback.pre_tokenizer = metaspace("first", False)  # A text is one word.
    fallback.decoder = decode
    fallback.add_special_tokens(["</s>"])
    made["uni_bytes"] = fallback
    # Without a byte, some characters are unknown.
    some = [piece for piece in bytes_ if piece[0] != "<0xF0>"]
    fallback = Tokenizer(models.Unigram([*some, *vocab[2:]], len(some), True))
    fallback.pre_tokenizer = metaspace("always")
    fallback.decoder = decode
    made["uni_some"] = fallback

    never = Tokenizer(models.Unigram(vocab[1:], 1, False))
    never.normalizer = normalizers.Sequence([
        normalizers.NFKC(), normalizers.Nmt(), normalizers.Replace(Regex(" {2,}"), " ")])
    never.pre_tokenizer = metaspace("never")
    never.decoder = decoders.Metaspace(prepend_scheme="never")
    never.add_tokens([AddedToken("vi\u1EBFX", normalized=True), AddedToken("word", single_word=True),
                      AddedToken("<|im_end|>", rstrip=True, normalized=False)])
    made["uni_never"] = never
    return made


def sentencepiece_models():
    import sentencepiece

    made = {}
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("\n".join(line for line in corpus(20_000).splitlines() if len(line) < 2000))
        file.flush()
        common = dict(input=file.name, hard_vocab_limit=False, num_threads=1, minloglevel=2,
                      max_sentence_length=8192)
        for name, options in {
            # As Llama 2 was made.
            "sp_bpe": dict(model_type="bpe", vocab_size=900, byte_fallback=True, character_coverage=0.98,
                           normalization_rule_name="identity", remove_extra_whitespaces=False,
                           split_digits=True, allow_whitespace_only_pieces=True),
            # As T5 was.
            "sp_unigram": dict(model_type="unigram", vocab_size=800, character_coverage=0.98,
                               normalization_rule_name="nmt_nfkc"),
        }.items():
            prefix = str(pathlib.Path(tempfile.gettempdir()) / name)
            sentencepiece.SentencePieceTrainer.train(model_prefix=prefix, **common, **options)
            made[name] = pathlib.Path(prefix + ".model").read_bytes()
    made["t5"] = t5_model()
    return made


# --- The files ---


# Where a token begins inside a character or in the marks behind one, normal forms decide what of it
# comes from where: all of that begins where the character does.
MARKS = [(0x300, 0x36F), (0x610, 0x65F), (0x1160, 0x11FF), (0x20D0, 0x20FF), (0xFE00, 0xFE0F)]


def bases(text):
    """For each character of text the byte where it, or what it is a mark of, begins."""
    out, at = [], 0
    for i, c in enumerate(text):
        mark = i > 0 and any(first <= ord(c) <= last for first, last in MARKS)
        out.append(out[-1] if mark else at)
        at += len(c.encode("utf-8"))
    return out


def results(folder):
    """name -> ids of the hard text, and where they begin."""
    import sentencepiece
    import tokenizers

    text = hard_text(2, 1_000_000)
    decoded = text.decode("utf-8", "replace")
    base = bases(decoded)
    out = {"text": {"bytes": len(text), "hash": f"{fnv(text):016x}"}}
    for path in sorted(folder.glob("*.json")):
        if path.name in OTHERS:
            continue
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        encoded = tokenizer.encode(decoded, add_special_tokens=False)
        back = tokenizer.decode(encoded.ids, skip_special_tokens=False)
        begins = [base[begin] for begin, _ in encoded.offsets]
        out[path.name] = describe(encoded.ids, begins, back)
    for path in sorted(folder.glob("*.model")):
        if path.name in OTHERS:
            continue
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        ids = processor.encode(decoded)
        pieces = processor.encode(decoded, out_type="immutable_proto").pieces
        assert ids == [piece.id for piece in pieces]
        begins = [base[min(piece.begin, len(base) - 1)] for piece in pieces]
        out[path.name] = describe(ids, begins, processor.decode(ids))
    return out


def hashes(values):
    # Hashes of the first 1024, then twice as many, ...: so that a difference has a place.
    out, n = [], 1024
    while True:
        part = values[:n]
        out.append(f"{fnv(struct.pack(f'<{len(part)}i', *part)):016x}")
        if n >= len(values):
            return out
        n *= 2


def describe(ids, begins, back):
    return {"ids": len(ids), "hashes": hashes(ids), "begins": hashes(begins), "first": ids[:64],
            "decoded": f"{fnv(back.encode('utf-8')):016x}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is there")
    parser.add_argument("--time", action="store_true", help="MB/s of the libraries, one thread")
    parser.add_argument("--text", metavar="FILE", help="write the hard text, and nothing else")
    options = parser.parse_args()
    if options.text:
        pathlib.Path(options.text).write_bytes(hard_text(2, 1_000_000))
        return
    if options.time:
        measure()
        return
    if not options.check:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name, tokenizer in huggingface().items():
            text = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False,
                              separators=(",", ":"))
            if name == "gpt2":  # As older versions of the library write merges.
                old = json.loads(text)
                old["model"]["merges"] = [" ".join(pair) for pair in old["model"]["merges"]]
                text = json.dumps(old, ensure_ascii=False, separators=(",", ":"))
            (FOLDER / f"{name}.json").write_text(text, "utf-8")
        for name, model in sentencepiece_models().items():
            (FOLDER / f"{name}.model").write_bytes(model)
    found = json.dumps(results(FOLDER), indent=1) + "\n"
    expected = FOLDER / "expected.json"
    if options.check:
        if expected.read_text("utf-8") != found:
            sys.exit("tests/fixtures/tokenizers/expected.json is not what the libraries say")
        print("the libraries still say the same")
    else:
        expected.write_text(found, "utf-8")


def measure():
    import os

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import sentencepiece
    import tokenizers

    hard = hard_text(2, 1_000_000).decode("utf-8", "replace")
    easy = (ROOT / "configs" / "data" / "jargon.txt").read_text("utf-8")
    for path in sorted([*FOLDER.glob("*.json"), *FOLDER.glob("*.model")]):
        if path.name in OTHERS:
            continue
        if path.suffix == ".json":
            encode = tokenizers.Tokenizer.from_file(str(path)).encode
        else:
            encode = sentencepiece.SentencePieceProcessor(model_file=str(path)).encode
        rates = []
        for text in (easy, hard):
            best = 1e9
            for _ in range(3):
                begin = time.perf_counter()
                encode(text)
                best = min(best, time.perf_counter() - begin)
            rates.append(len(text.encode()) / best / 1e6)
        print(f"{path.name:20} {rates[0]:8.2f} MB/s of jargon.txt {rates[1]:8.2f} of the hard text")


if __name__ == "__main__":
    main()
