// Tests: tests/trainer/recipe/load_test.cc
#include "models/field.h"
#include "trainer/recipe/containers.h"
#include "trainer/recipe/data_source.h"
#include "trainer/recipe/sections.h"

namespace fsdp::recipe {
namespace {

Section<SourceRecipe> SourceSection() {
  using R = SourceRecipe;
  std::vector<std::string> names;
  std::string descriptions;
  for (const DataSource* row : DataSources()) {
    names.emplace_back(row->name);
    descriptions += (descriptions.empty() ? "" : " ") + names.back() + ": ";
    descriptions += row->description;
  }
  Section<R> section = {
      Key("source", &R::source, OneOfTexts(names), descriptions.c_str()),
      Key("paths", &R::paths, Paths(),
          "Files or globs, read in this order. A single one needs no list. "
          "synthetic and planted clicks take none, every other source at least one. For text, a "
          "directory means the files directly in it but for hidden ones, sorted by name, and JSON "
          "is recognised by what a file holds. For images: IDX files, CIFAR's binary files, either "
          "also in .gz, or "
          "directories with one folder of .jpg and .png per class; classes are numbered in the "
          "order of the folders' names."),
      Key("tokenizer", &R::tokenizer, TokenizerName(),
          "bytes: one token per byte of the text. Otherwise a tokenizer.json, a SentencePiece "
          ".model, or a directory with one; each file is a document, in JSON each object. For "
          "tokens: the tokenizer that made the files, needed to show samples. Left out for text "
          "with "
          "model.init_from: the tokenizer beside those weights."),
  };
  for (const DataSource* row : DataSources()) {
    for (const SourceKey& key : row->keys) section.fields.push_back(key.field);
  }
  return section;
}

}  // namespace

Type<DataRecipe> DataType() {
  using R = DataRecipe;
  const Type<SourceRecipe> source = Map(SourceSection());
  Section<SourceRecipe> weighted = SourceSection();
  weighted.Add(
      Key("weight", &SourceRecipe::weight, Number({.above = 0, .at_most = 1e9}),
          "Share of the samples that come from this source, relative to the other weights: 3 and "
          "1 give three samples of every four and one. The share holds at every step to within a "
          "sample or two."));
  Section<SourceRecipe> named = SourceSection();
  named.Add(
      Key("name", &SourceRecipe::name, Text(), "The set's name in metrics.jsonl; each name once.")
          .Required());
  const auto held_out = Map<HeldOut>({
      Key("fraction", &HeldOut::fraction, Number({.above = 0, .below = 1}),
          "Share of the tokens of each source of data.train, at its end, that is never trained "
          "on. With data.packing `samples` or `none`: the documents that begin there."),
  });
  return Map<R>({
      Key("train", &R::train, TrainSources(source, Map(weighted)),
          "The training data: one source, or a list of sources that are mixed by weight.")
          .Required(),
      Key("valid", &R::valid, ValidSources(held_out, source, Map(named)),
          "The evaluation data: the last part of data.train, a source of its own, a list of "
          "named sources that are evaluated one by one, or null for nothing. A source has the "
          "same keys as in data.train."),
      Key("seq_len", &R::seq_len, Integer(1, kMaxPositions),
          "Tokens of a sequence; at most the model's max_position_embeddings."),
      Key("objective", &R::objective, OneOf<R::Objective>(),
          "causal: each token's target is the next token. The other two are for models with an "
          "encoder and a decoder. seq2seq: `pairs`, one field as input and the other as target, "
          "both ended by the end-of-text token and padded; the default fields are `input` and "
          "`target`. span_corruption: from text and tokens; spans of the input are replaced by "
          "sentinels, the target is the removed text, and an input takes as much text as fills "
          "seq_len. Sentinels are the tokenizer's <extra_id_0>, <extra_id_1>, ...; with bytes, "
          "the last ids of the vocabulary, counted down."),
      Key("target_len", &R::target_len, Nullable(Integer(1, kMaxPositions)),
          "seq2seq, span_corruption: tokens of a target. null: for seq2seq seq_len; for "
          "span_corruption the length that the spans need, 114 for a seq_len of 512."),
      Key("noise_density", &R::noise_density, Number({.above = 0, .below = 1}),
          "span_corruption: the share of a text's tokens that is removed."),
      Key("mean_span", &R::mean_span, Number({.at_least = 1, .at_most = 1e6}),
          "span_corruption: average tokens of a span."),
      Key("shuffle", &R::shuffle, Boolean(),
          "true: sequences in an order drawn from the seed, anew each epoch. false: in the order "
          "of the files."),
      Key("cache", &R::cache, Nullable(Path()),
          "Where a host keeps text that it has tokenised, for later runs as well. null: "
          "fsdp-train/tokens in $XDG_CACHE_HOME or ~/.cache."),
      Key("documents", &R::documents, Boolean(),
          "true: documents are kept apart. Positions begin again after an end-of-text token, "
          "attention does not cross it, and the token after it is no target. false: a sequence "
          "is one text. For packing `windows`; the other packings always keep documents apart."),
      Key("packing", &R::packing, OneOf<Packing>(),
          "windows: a sequence is seq_len tokens, wherever documents begin. samples: a sequence "
          "holds as many whole documents, conversations or pairs as fit, each with its own "
          "positions and attention; the rest is padding. none: a sequence holds one of them. "
          "samples and none need an end-of-text token, except for chat. Left out with chat or "
          "pairs: samples."),
      Key("too_long", &R::too_long, OneOf<TooLong>(),
          "A document, conversation or pair of more than seq_len tokens, with packing `samples` "
          "or `none`. error: the run ends before it begins. cut: only its first seq_len tokens "
          "count. drop: it is left out. cut and drop report how many there were."),
      Key("threads", &R::threads, Integer(1, 1024),
          "CPU threads of a rank, beside run.threads, that prepare the next batch (decode "
          "images, for example) while a step is computed. They change no bit."),
      Key("allow_invalid_text", &R::allow_invalid_text, Boolean(),
          "true: accept text files of which more than 0.1 % of the characters are not UTF-8. "
          "Each invalid one is read as U+FFFD; the tokenizer bytes keeps the bytes. false: such "
          "a file is an error."),
      Key("allow_changed", &R::allow_changed, Boolean(),
          "true: resume even though the files of data.train have changed; the differences are "
          "printed and recorded. false: a change is an error. Files of up to 1 GiB are compared "
          "by a hash of all bytes, larger ones by their size and 256 stretches of 4 KiB."),
  });
}

}  // namespace fsdp::recipe
