// Tests: tests/trainer/recipe/load_test.cc
#include "trainer/recipe/forms.h"
#include "trainer/recipe/sections.h"

namespace fsdp::recipe {
namespace {

constexpr int64_t kMaxImageSide = int64_t{1} << 14;
constexpr int64_t kMaxPlanted = int64_t{1} << 31;

Section<SourceRecipe> SourceSection() {
  using R = SourceRecipe;
  return {
      Key("source", &R::source, OneOf<R::Source>(),
          "text: files, tokenised when a run first reads them. tokens: files of token ids (llm.c "
          ".bin, .npy or raw). synthetic: whatever the model asks for, tokens or not, drawn from "
          "the seed, without files. chat: .jsonl whose lines have `messages` with `role` and "
          "`content`, through a chat template. pairs: .jsonl whose lines have two fields of text, "
          "what is asked and what is to be learnt. images: images with labels, for a model that "
          "sorts them into classes. clicks: .csv with a label, columns of numbers and columns of "
          "ids, or clicks that are drawn, for a model that predicts them."),
      Key("paths", &R::paths, Paths(),
          "Files or globs, in this order; one needs no list, and ~ at its beginning is $HOME. None "
          "for synthetic and for planted clicks, at least one for all else. Of text a directory "
          "stands for its "
          "files in .txt, .text, .md, .jsonl, .gz and .zst, by name, without those of its "
          "directories. Of images: IDX files, CIFAR's binaries, either of them in .gz, too, or "
          "directories with a folder of .jpg and .png for each class; classes are numbered in the "
          "order of their names."),
      Key("tokenizer", &R::tokenizer, TokenizerName(),
          "bytes: a token for each byte of the files as they are. Otherwise a file is a document, "
          "in "
          ".jsonl a line is. For tokens: what made them, where samples are to be shown. Left out "
          "of "
          "text with model.init_from: the one beside its weights."),
      Key("column", &R::column, Text(),
          "text: the field of .jsonl that holds a document. bytes does not read it."),
      Key("dtype", &R::dtype, Nullable(OneOf<R::RawDType>()),
          "tokens: of raw files. null: every file has a header of llm.c or NumPy."),
      Key("eot", &R::eot, Nullable(Integer(0)),
          "The token that ends every document. null: the tokenizer's, or that of the tokens.json "
          "beside the files, if there is one."),
      Key("template", &R::chat_template, Nullable(Text()),
          "chat: a file with the chat template, in the language of Jinja. null: the tokenizer's "
          "own, chat_template.jinja beside it or in its tokenizer_config.json."),
      Key("train_on", &R::train_on, OneOf<TrainOn>(),
          "chat: what the loss counts. assistant: all that the assistant says, each end of turn "
          "included; a message with `weight: 0` apart. last: what it says last. all: every token. "
          "What it says is what the template's {% generation %} encloses, or else what the message "
          "adds behind the generation prompt."),
      Key("date", &R::date, Nullable(Text()),
          "chat: the day, as 2026-11-26, that the template's strftime_now is told. null: it has no "
          "strftime_now, and most templates then write a day of their own."),
      Key("prompt", &R::prompt, Text(), "pairs: the field with what is asked. No loss counts it."),
      Key("completion", &R::completion, Text(),
          "pairs: the field with what is to be learnt. It goes on where the prompt ends, and "
          "end-of-text follows it."),
      Key("labels", &R::labels, Paths(),
          "images: a file of labels for each IDX file of images, in the order of the paths."),
      Key("size", &R::size, Nullable(Integer(1, kMaxImageSide)),
          "images: pixels that the shorter side of an image is resized to, before crop `center` or "
          "`random` cuts a square of model.image_size out of it. null: model.image_size."),
      Key("crop", &R::crop, OneOf<Crop>(),
          "images: none: the whole image is resized to the model's square. center: a square from "
          "the middle. random: from anywhere. random_resized: a box of 8 to 100 % of the image, "
          "of 3 : 4 to 4 : 3, resized to the model's square. Evaluations draw nothing: they take "
          "what is in the middle."),
      Key("flip", &R::flip, Boolean(),
          "images: every other one, on average, is turned over, left for right, while training."),
      Key("mean", &R::mean, ListOf(Number({.at_least = -1e6, .at_most = 1e6})),
          "images: what is subtracted from the channels, which are bytes / 255: a number for each, "
          "or one for all."),
      Key("std", &R::std, ListOf(Number({.at_least = 1e-6, .at_most = 1e6})),
          "images: what they are divided by then."),
      Key("label", &R::label, Text(), "clicks: the column of .csv with the label, 0 or 1."),
      Key("dense", &R::dense, ListOf(Text()),
          "clicks: the columns with numbers, in the model's order; an empty cell is 0."),
      Key("categorical", &R::categorical, ListOf(Text()),
          "clicks: the columns with ids, one for each table of the model. An id is a 64-bit "
          "number, decimal or behind 0x, of which the table takes the remainder by its rows: a "
          "hash will do. Several in a cell have | between them; an empty cell has none."),
      Key("planted", &R::planted, Nullable(Integer(1, kMaxPlanted)),
          "clicks: so many are drawn, in place of paths, from a function of second and third "
          "order of the columns. An evaluation says how low a model can get."),
  };
}

}  // namespace

Type<DataRecipe> DataType() {
  using R = DataRecipe;
  const Type<SourceRecipe> source = Map(SourceSection());
  Section<SourceRecipe> weighted = SourceSection();
  weighted.Add(
      Key("weight", &SourceRecipe::weight, Number({.above = 0, .at_most = 1e9}),
          "Share of the samples that come from this source, in any unit: 3 and 1 are three samples "
          "of every four, and one. At every step, to within a sample or two."));
  Section<SourceRecipe> named = SourceSection();
  named.Add(Key("name", &SourceRecipe::name, Text(),
                "What metrics.jsonl calls this one's evaluations; no two alike.")
                .Required());
  const auto held_out = Map<HeldOut>({
      Key("fraction", &HeldOut::fraction, Number({.above = 0, .below = 1}),
          "Share of the tokens of each source of data.train, at their end, that is never trained "
          "on. With data.packing `samples` or `none`: the documents that begin there."),
  });
  return Map<R>({
      Key("train", &R::train, TrainSources(source, Map(weighted)),
          "What to train on: one source, or a list of sources that are mixed by weight.")
          .Required(),
      Key("valid", &R::valid, ValidSources(held_out, source, Map(named)),
          "What to evaluate on: the last part of data.train, a source of its own, a list of named "
          "sources that are evaluated one by one, or null for nothing."),
      Key("seq_len", &R::seq_len, Integer(1, kMaxPositions),
          "Tokens of a sequence; at most the model's max_position_embeddings.")
          .Elsewhere({"sequence_length", "max_seq_len", "block_size"}),
      Key("objective", &R::objective, OneOf<R::Objective>(),
          "causal: a token's target is the next one. For models with an encoder and a decoder: "
          "seq2seq: of `pairs`, the one's input and the other's target, both ended by the "
          "end-of-text token and padded; the fields are `input` and `target` where nobody names "
          "them. span_corruption: of text and tokens, inputs lose spans, in whose places sentinels "
          "stand, and targets are what they lost; as much text as fills seq_len. Sentinels are the "
          "tokenizer's <extra_id_0>, <extra_id_1>, ...; for bytes the vocabulary's last ids, from "
          "the end."),
      Key("target_len", &R::target_len, Nullable(Integer(1, kMaxPositions)),
          "seq2seq, span_corruption: tokens of a target. null: seq_len; of span_corruption as many "
          "as spans take, 114 for 512."),
      Key("noise_density", &R::noise_density, Number({.above = 0, .below = 1}),
          "span_corruption: the share of a text's tokens that is lost."),
      Key("mean_span", &R::mean_span, Number({.at_least = 1, .at_most = 1e6}),
          "span_corruption: tokens of a span, on average."),
      Key("shuffle", &R::shuffle, Boolean(),
          "Sequences in an order drawn from the seed, anew each epoch; false: as they lie."),
      Key("cache", &R::cache, Nullable(Text()),
          "Where a host keeps text that it has tokenised, for later runs too. null: "
          "fsdp-train/tokens in $XDG_CACHE_HOME or ~/.cache."),
      Key("documents", &R::documents, Boolean(),
          "Documents end at the end-of-text token: positions begin again behind it, attention does "
          "not look back across it, and the token behind it is nobody's target. false: a sequence "
          "is one text. It belongs to packing `windows`: the others always do this."),
      Key("packing", &R::packing, OneOf<Packing>(),
          "windows: a sequence is seq_len tokens, wherever documents begin. samples: as many whole "
          "documents, conversations or pairs as fit share a sequence, each with positions and "
          "attention of its own; what is left of it counts for nothing. none: a sequence is one of "
          "them. Both need an end-of-text token, but for chat. Left out with chat or pairs: "
          "samples."),
      Key("too_long", &R::too_long, OneOf<TooLong>(),
          "A document, conversation or pair of more than seq_len tokens, with packing `samples` or "
          "`none`. error: the "
          "run ends before it begins. cut: its first seq_len tokens. drop: it is left out. How "
          "many were is said."),
      Key("threads", &R::threads, Integer(1, 1024),
          "CPU threads of a rank, beside run.threads, that make the rows of a batch while the step "
          "before it is computed: that decode images. They change no bit."),
      Key("allow_invalid_text", &R::allow_invalid_text, Boolean(),
          "Go on where more than 0.1 % of the places of a text file (its characters, as a reader "
          "shows them) are no UTF-8: each of those is read as U+FFFD; the tokenizer bytes keeps "
          "the "
          "bytes. false: that is an error."),
      Key("allow_changed", &R::allow_changed, Boolean(),
          "Resume though the files of data.train are not those that the run was trained on; what "
          "differs is said and recorded. false: that is an error. Files of up to 1 GiB are "
          "compared "
          "byte for byte by a hash, larger ones by their size and 256 stretches of 4 KiB."),
  });
}

}  // namespace fsdp::recipe
