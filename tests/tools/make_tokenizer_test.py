#!/usr/bin/env python3
"""The tokens that tools/make_tokenizer learns from a text, and the file that it writes. fsdp-train reads
one in guide_test."""

import importlib.machinery
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
TOOL = "tools/make_tokenizer"
loader = importlib.machinery.SourceFileLoader("make_tokenizer", TOOL)
tool = importlib.util.module_from_spec(importlib.util.spec_from_loader("make_tokenizer", loader))
loader.exec_module(tool)


def slowly(words, count):
    """learn() by counting all pairs anew for each merge."""
    letters = tool.alphabet()
    spelled = [[letters[byte] for byte in word.encode()] for word in words]
    merges = []
    while len(merges) < count:
        pairs = {}
        for word, times in zip(spelled, words.values()):
            for pair in zip(word, word[1:]):
                pairs[pair] = pairs.get(pair, 0) + times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None or pairs[best] < 2:
            break
        merges.append(best)
        for word in spelled:
            i = 0
            while i + 1 < len(word):
                if (word[i], word[i + 1]) == best:
                    word[i:i + 2] = [best[0] + best[1]]
                i += 1
    return merges


class MakeTokenizer(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.text = self.directory / "a.txt"

    def run_tool(self, *flags):
        out = self.directory / "out"
        result = subprocess.run([sys.executable, TOOL, "--out", out, *flags, self.text],
                                capture_output=True, text=True, check=False)
        return result.returncode, result.stdout + result.stderr, out

    def test_pieces_are_the_text(self):
        text = "It's  42 cafés_;\n\n  a\tb\r\n 日本 ½² \u00a0x '"
        self.assertEqual("".join(tool.PIECES.findall(text)), text)
        self.assertEqual(tool.PIECES.findall("a cat's 1st  _x"), ["a", " cat", "'s", " 1", "st", " ", " _", "x"])

    def test_merges_are_those_of_counting_anew(self):
        self.text.write_text("aaaa aaaaa banana bandana ban the then there aa\n" * 3 + "naïve 日本日本 nana\n")
        words = tool.words_of([self.text], 10**6)
        merges = tool.learn(words, 60)
        self.assertEqual(merges, slowly(words, 60))
        self.assertGreater(len(merges), 20)
        self.assertEqual(tool.learn(words, 5), merges[:5])

    def test_every_merge_makes_a_token(self):
        self.text.write_text("to be or not to be, that is the question\n" * 20)
        code, said, out = self.run_tool("--vocab", "280")
        self.assertEqual(code, 0, said)
        tokenizer = json.loads((out / "tokenizer.json").read_text())
        vocab, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
        self.assertEqual(sorted(vocab.values()), list(range(280)))
        self.assertEqual([vocab[a + b] for a, b in merges], list(range(259, 280)))
        for token in tokenizer["added_tokens"]:
            self.assertEqual(vocab[token["content"]], token["id"])
        config = json.loads((out / "tokenizer_config.json").read_text())
        self.assertIn(config["eos_token"], vocab)
        self.assertEqual(said, f"{out}/tokenizer.json: 280 tokens\n")

    def test_reads_no_more_than_it_is_told_to(self):
        self.text.write_text("abab " * 100 + "xyxy " * 1000)
        code, said, out = self.run_tool("--read", "500")
        self.assertEqual(code, 0, said)
        self.assertNotIn("xy", (out / "tokenizer.json").read_text())

    def test_a_vocabulary_has_room_for_the_bytes(self):
        self.text.write_text("a")
        code, said, out = self.run_tool("--vocab", "258")
        self.assertEqual(code, 2)
        self.assertIn("--vocab: 258, want at least 259", said)
        self.assertFalse(out.exists())


if __name__ == "__main__":
    unittest.main()
