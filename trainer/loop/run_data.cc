#include "trainer/loop/run_data.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <ostream>
#include <span>
#include <stdexcept>
#include <utility>
#include <variant>

#include "models/shape.h"
#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/data/pairs/pair_rows.h"
#include "trainer/data/pairs/span_corruption.h"
#include "trainer/data/samples/document_store.h"
#include "trainer/data/samples/fitted_samples.h"
#include "trainer/data/samples/line_samples.h"
#include "trainer/data/text/text_source.h"
#include "trainer/data/tokenizers/tokenizer.h"
#include "trainer/data/tokens/token_source.h"
#include "trainer/loop/run_messages.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/data_source.h"

namespace fsdp {
namespace {

// Opens sources one after the other; keeps the list of their files, and their tokenizer.
class Opener {
 public:
  Opener(const Recipe& recipe, const ModelShape& shape, const OpenProgress& progress, RunData& data)
      : recipe_(recipe), shape_(shape), progress_(progress), data_(data) {}

  // Reads the source's files and adds them to `files`; null: it does neither.
  std::shared_ptr<const TokenSource> Open(const SourceRecipe& source, const std::string& key,
                                          uint64_t seed, std::vector<DataFile>* files) {
    const DataSource& row = RowOf(source);
    if (!row.tokens) throw std::invalid_argument("[Open] of what is no sequence of tokens");
    std::shared_ptr<const TokenSource> tokens = row.tokens(ToOpen(source, key, seed));
    if (source.eot) tokens = WithEot(std::move(tokens), static_cast<int32_t>(*source.eot));
    RequireEot(recipe_, key, tokens->eot().has_value(), recipe_.data.WantsEot(),
               tokens->Describe());
    if (files != nullptr) {
      for (DataFile& file : tokens->Files()) files->push_back(std::move(file));
      if (row.tokenizer == DataSource::Tokenizer::kNeeded) DescribeTokenizer(source, *files);
    }
    CheckTokens(*tokens, static_cast<int32_t>(VocabSize(shape_)));
    return tokens;
  }

  // Its samples that stay whole, and in words what does not fit.
  std::shared_ptr<const FittedSamples> OpenWhole(const SourceRecipe& source, const std::string& key,
                                                 uint64_t seed, std::vector<DataFile>& files) {
    const DataRecipe& data = recipe_.data;
    std::shared_ptr<const SampleStore> store;
    if (RowOf(source).is_whole) {
      store = OpenLines(source, key, files);
    } else {
      store = std::make_shared<DocumentStore>(Open(source, key, seed, &files));
    }
    auto whole = std::make_shared<FittedSamples>(store, data.seq_len, data.too_long);
    for (const std::string& line : WhatIsLeftOut(store->Describe(), whole->counts(), data)) {
      progress_.Remark(recipe_, key, line);
    }
    return whole;
  }

  // OpenWhole() for an encoder and a decoder.
  PairRows::Fitted OpenPairs(const SourceRecipe& source, const std::string& key,
                             std::vector<DataFile>& files) {
    const DataRecipe& data = recipe_.data;
    PairRows::Fitted fitted =
        PairRows::Fit(OpenLines(source, key, files), Lengths(), data.too_long);
    if (fitted.longer > 0) {
      progress_.Remark(recipe_, key,
                       "data.too_long: " + std::to_string(fitted.longer) + " of the pairs of " +
                           fitted.store->Describe() +
                           " do not fit: " + (data.too_long == TooLong::kCut ? "cut" : "dropped"));
    }
    return fitted;
  }

  PairLengths Lengths() const {
    const DataRecipe& data = recipe_.data;
    return {data.seq_len, data.TargetLength(), static_cast<int32_t>(VocabSize(shape_))};
  }

  // The tokens that stand in the places of `count` spans. Throws ConfigError where there are too
  // few.
  std::vector<int32_t> Sentinels(const SourceRecipe& source, const std::string& key,
                                 int64_t count) {
    std::vector<int32_t> sentinels;
    const std::shared_ptr<const Tokenizer> tokenizer = TokenizerFor(source, key);
    for (int64_t i = 0; i < count; ++i) {
      const std::string name = "<extra_id_" + std::to_string(i) + ">";
      if (tokenizer != nullptr && source.tokenizer == "bytes") {
        sentinels.push_back(ByteSentinel(i, VocabSize(shape_)));
      } else if (const auto id = tokenizer ? tokenizer->IdOf(name) : std::nullopt) {
        sentinels.push_back(*id);
      } else {
        const std::string who = tokenizer ? source.tokenizer + " has no token `" + name + "`"
                                          : "nobody says which tokens are sentinels";
        throw ConfigError(recipe_.Mistake(
            key + ".tokenizer", who + ": a sample loses " + Counted(count, "span") +
                                    ", in whose places `<extra_id_0>` and so on stand. Raise "
                                    "data.mean_span, or name another tokenizer"));
      }
    }
    return sentinels;
  }

  // Opens a source without its tokens where they would have to be made first: then it checks files
  // and tokenizer alone.
  void Check(const SourceRecipe& source, const std::string& key, uint64_t seed) {
    if (recipe_.data.objective == DataRecipe::Objective::kSpanCorruption) {
      Sentinels(source, key, LongestText(recipe_.data.spans(), recipe_.data.seq_len)->spans);
    }
    const DataSource& row = RowOf(source);
    if (row.is_whole) {
      const SourceToOpen open = ToOpen(source, key, 0);
      row.lines(open);
      CheckFormats(ExpandLinePaths(source.paths, open.Where("paths")));
    } else if (!row.look || !row.look(ToOpen(source, key, seed))) {
      Open(source, key, seed, nullptr);
    }
  }

 private:
  SourceToOpen ToOpen(const SourceRecipe& source, const std::string& key, uint64_t seed) {
    return {recipe_,
            source,
            key,
            seed,
            static_cast<int32_t>(VocabSize(shape_)),
            TokenizerFor(source, key),
            progress_};
  }

  // The same text in other tokens is other data.
  void DescribeTokenizer(const SourceRecipe& source, std::vector<DataFile>& files) const {
    if (source.tokenizer == "bytes") return;
    DataFile file = DescribeFile(FileContents(source.tokenizer));
    file.hash = data_.tokenizer->hash();
    files.push_back(std::move(file));
  }

  std::shared_ptr<const SampleFile> OpenLines(const SourceRecipe& source, const std::string& key,
                                              std::vector<DataFile>& files) {
    const SourceToOpen open = ToOpen(source, key, 0);
    const DataSource::Lines lines = RowOf(source).lines(open);
    ExpandLinePaths(source.paths, open.Where("paths"));
    LineOptions options;
    options.files = source.paths;
    options.tokenizer = source.tokenizer;
    options.allow_invalid_text = recipe_.data.allow_invalid_text;
    options.keep = {progress_.say, progress_.stop, recipe_.run.timeout_s};
    auto samples = OpenLineSamples(open.TokenCache(), *lines.encoder, options);
    if (!samples->read_as().empty()) {
      progress_.Remark(recipe_, key, samples->Describe() + ": " + samples->read_as());
    }
    for (const DataFile& file : samples->inputs()) files.push_back(file);
    DescribeTokenizer(source, files);
    if (lines.file) files.push_back(*lines.file);
    return samples;
  }

  // One for the run: the recipe has seen to it that all sources name the same.
  std::shared_ptr<const Tokenizer> TokenizerFor(const SourceRecipe& recipe,
                                                const std::string& key) {
    if (TokenizerOf(recipe) == nullptr) return nullptr;
    try {
      if (!data_.tokenizer) data_.tokenizer = OpenTokenizer(recipe.tokenizer);
    } catch (const DataError& error) {
      std::string why = error.what();
      if (const std::string twice = "tokenizer: "; why.starts_with(twice))
        why.erase(0, twice.size());
      throw DataError(recipe_.Mistake(key + ".tokenizer", why));
    }
    const int64_t size = data_.tokenizer->vocab_size();
    if (const int64_t vocab = VocabSize(shape_); size > vocab) {
      throw ConfigError(
          recipe_.Mistake(key + ".tokenizer", recipe.tokenizer + " has " + std::to_string(size) +
                                                  " tokens, but " + WhyFewer(vocab, size)));
    }
    return data_.tokenizer;
  }

  // Where the model's vocabulary of `vocab` comes from, and how it gets a row for each of `size`
  // tokens.
  std::string WhyFewer(int64_t vocab, int64_t size) const {
    const ModelRecipe& model = recipe_.model;
    if (model.init_from) {
      return "the table of " + *model.init_from + " has " + std::to_string(vocab) +
             " rows: name the tokenizer that it was trained with, or give it more rows first (in "
             "transformers: model.resize_token_embeddings(" +
             std::to_string(size) + "))";
    }
    return "model.vocab_size is " + std::to_string(vocab) +
           ": set model.vocab_size: " + std::to_string(RoundedVocabulary(model, size));
  }

  const Recipe& recipe_;
  const ModelShape& shape_;
  const OpenProgress& progress_;
  RunData& data_;
};

}  // namespace

Recipe WithSteps(const Recipe& recipe, const RunData& data) {
  if (!recipe.train.epochs) return recipe;
  const RowSource& samples = data.train->rows();
  double all = 0;
  for (int64_t source = 0; source < std::ssize(recipe.data.TrainSources()); ++source) {
    all += static_cast<double>(samples.Rows(source));
  }
  const auto batch = static_cast<double>(recipe.train.global_batch_size);
  const double steps = std::ceil(*recipe.train.epochs * all / batch);
  if (steps > std::numeric_limits<int32_t>::max()) {
    throw ConfigError(recipe.Mistake(
        "train.epochs",
        "more than 2147483647 steps of " + std::to_string(recipe.train.global_batch_size) +
            " of the " + std::to_string(static_cast<int64_t>(all)) + " samples that an epoch has"));
  }
  Recipe with = recipe;
  with.train.steps = static_cast<int64_t>(steps);
  with.train.epochs.reset();
  char note[96];
  std::snprintf(note, sizeof(note), "train.steps: %lld, which are train.epochs: %g",
                static_cast<long long>(with.train.steps), *recipe.train.epochs);
  with.notes.emplace_back(note);
  return with;
}

uint64_t RunData::Hash() const {
  std::string text;
  for (const auto* list : {&files.train, &files.valid}) {
    for (const DataFile& file : *list) {
      text += std::to_string(file.bytes) + " " + std::to_string(file.hash) + "\n";
    }
    text += "\n";
  }
  return HashBytes(text);
}

OpenProgress ProgressFor(const Job& job) {
  OpenProgress progress;
  if (job.console != nullptr) {
    progress.say = [&job](const std::string& line) {
      *job.console << Printable(line) << std::endl;
    };
    if (job.rank == 0) progress.remark = progress.say;
  }
  progress.stop = job.stop_requested;
  return progress;
}

namespace {

// Inputs and targets for an encoder and a decoder: texts that lose spans, or pairs.
RowLoaders OpenPairs(const RunToOpen& run, Opener& opener) {
  const DataRecipe& data = run.recipe.data;
  const PairLengths lengths = opener.Lengths();
  const auto shuffles = [&](const std::string* valid) { return !valid && data.shuffle; };
  const auto seed = [&](const std::string* valid) { return valid ? 0 : run.seed; };
  if (data.objective == DataRecipe::Objective::kSpanCorruption) {
    using Part = SpanRows::Source;
    const SpanLengths text = *LongestText(data.spans(), data.seq_len);
    std::vector<int32_t> sentinels;  // The run has one tokenizer.
    return OpenRows<Part>(
        run, {.open =
                  [&](const KeyedSource& keyed, size_t, std::vector<DataFile>& files) {
                    auto tokens = opener.Open(*keyed.source, keyed.key, run.seed, &files);
                    sentinels = opener.Sentinels(*keyed.source, keyed.key, text.spans);
                    const int32_t eot = *tokens->eot();
                    return Part{std::move(tokens), keyed.source->weight, eot};
                  },
              .hold_out =
                  [](const Part& all, double share) {
                    const TrainAndValid parts = SplitSource(all.tokens, share);
                    return std::pair(Part{parts.train, all.weight, all.eot},
                                     Part{parts.valid, all.weight, all.eot});
                  },
              .rows =
                  [&](std::vector<Part> parts, const std::string* valid) {
                    return std::make_shared<SpanRows>(std::move(parts), lengths, text, sentinels,
                                                      shuffles(valid), seed(valid));
                  }});
  }
  using Part = PairRows::Source;
  return OpenRows<Part>(
      run,
      {.open =
           [&](const KeyedSource& keyed, size_t, std::vector<DataFile>& files) {
             return Part{opener.OpenPairs(*keyed.source, keyed.key, files), keyed.source->weight};
           },
       .hold_out =
           [](const Part& all, double share) {
             PairRows::Parts parts = PairRows::HoldOut(all.pairs, share);
             return std::pair(Part{std::move(parts.train), all.weight},
                              Part{std::move(parts.valid), all.weight});
           },
       .rows =
           [&](std::vector<Part> parts, const std::string* valid) {
             return std::make_shared<PairRows>(std::move(parts), lengths, shuffles(valid),
                                               seed(valid));
           }});
}

// Sequences of tokens, which lie end to end or stay whole.
RowLoaders OpenTokens(const RunToOpen& run, const ModelShape& shape, Opener& opener,
                      std::shared_ptr<const Samples>& samples) {
  const Recipe& recipe = run.recipe;
  const bool windows = recipe.data.packing == Packing::kWindows;
  LoaderOptions options;
  options.seq_len = recipe.data.seq_len;
  options.global_batch_size = recipe.train.global_batch_size;
  options.micro_batch_size = recipe.train.micro_batch_size;
  options.data_ranks = run.data_ranks;
  options.vocab_size = static_cast<int32_t>(VocabSize(shape));
  options.documents = recipe.data.documents;
  options.packing = recipe.data.packing;
  struct Part {
    WeightedSource all;
    std::shared_ptr<const FittedSamples> whole = nullptr;  // Null with windows.
  };
  const auto open = [&](const KeyedSource& keyed, size_t index, std::vector<DataFile>& files) {
    const SourceRecipe& source = *keyed.source;
    const uint64_t own = SeedOf(recipe, keyed, index, run.seed);
    if (windows) return Part{{opener.Open(source, keyed.key, own, &files), source.weight}};
    const auto whole = opener.OpenWhole(source, keyed.key, own, files);
    return Part{{nullptr, source.weight, whole}, whole};
  };
  const auto hold_out = [&](const Part& part, double share) {
    const double weight = part.all.weight;
    if (windows) {
      const TrainAndValid parts = SplitSource(part.all.source, share);
      return std::pair(Part{{parts.train, weight}}, Part{{parts.valid, weight}});
    }
    const FittedSamples::Parts parts = part.whole->HoldOut(share);
    return std::pair(Part{{nullptr, weight, parts.train}}, Part{{nullptr, weight, parts.valid}});
  };
  const auto rows = [&](std::vector<Part> parts, const std::string* valid) {
    WeightedSources sources;
    for (Part& part : parts) sources.push_back(std::move(part.all));
    const bool trains = valid == nullptr;
    auto all = std::make_shared<const Samples>(
        std::move(sources), options, trains && recipe.data.shuffle, trains ? run.seed : 0);
    if (trains) samples = all;
    return all;
  };
  return OpenRows<Part>(run, {open, hold_out, rows});
}

RunData OpenLoaders(const Recipe& recipe, const ModelShape& shape, int data_ranks, uint64_t seed,
                    const ValidRecipe& held_out, const OpenProgress& progress) {
  RunData data;
  const RunToOpen run{recipe, data_ranks, seed, held_out, progress, data.files};
  Opener opener(recipe, shape, progress, data);
  RowLoaders loaders;
  if (shape.family().Decoder(shape)) {
    loaders = OpenTokens(run, shape, opener, data.samples);
  } else if (recipe.data.objective != DataRecipe::Objective::kCausal) {
    loaders = OpenPairs(run, opener);
  } else {
    const DataSource& main = MainRowOf(recipe.data);
    if (!main.rows) throw std::invalid_argument("[OpenData] a model that is fed no tokens");
    loaders = main.rows(run, *MakeModel(shape));
  }
  data.train = std::move(loaders.train);
  data.classes = std::move(loaders.classes);
  for (auto& [name, loader] : loaders.valid) data.valid.push_back({name, std::move(loader)});
  return data;
}

}  // namespace

RunData OpenData(const Recipe& recipe, const ModelShape& shape, int data_ranks, uint64_t seed,
                 const ValidRecipe& held_out, const OpenProgress& progress) {
  RunData data = OpenLoaders(recipe, shape, data_ranks, seed, held_out, progress);
  if (recipe.data.threads == 1) return data;
  const auto threads = std::make_shared<RowThreads>(static_cast<int>(recipe.data.threads));
  data.train->FillWith(threads);
  for (const RunData::Valid& valid : data.valid) valid.loader->FillWith(threads);
  return data;
}

namespace {

// Empty below twice the tokenizer's size: a padded vocabulary is usual.
std::string WhatNeverTrains(const Recipe& recipe, int64_t vocab, const Tokenizer& tokenizer) {
  const int64_t size = tokenizer.vocab_size();
  if (vocab < 2 * size) return "";
  return recipe.Mistake(std::vector<std::string>{"model.vocab_size", "model.preset",
                                                 "model.init_from", "model.family"},
                        "the vocabulary has " + Grouped(vocab) + " rows and the tokenizer " +
                            Grouped(size) + " tokens: no text has the other " +
                            Grouped(vocab - size));
}

}  // namespace

void CheckData(const Recipe& recipe, const ModelShape& shape, const OpenProgress& progress) {
  const auto seed = static_cast<uint64_t>(recipe.run.seed);
  const std::vector<KeyedSource> sources = KeyedSources(recipe.data);
  if (MainRowOf(recipe.data).checks_by_opening) {
    const auto has_files = [](const KeyedSource& keyed) { return !keyed.source->paths.empty(); };
    if (std::none_of(sources.begin(), sources.end(), has_files)) return;
    OpenData(recipe, shape, /*data_ranks=*/1, seed, recipe.data.valid, progress);
    return;
  }
  const bool made = recipe.data.objective != DataRecipe::Objective::kCausal;
  if (!shape.family().Decoder(shape) && !made) return;
  RunData data;
  Opener opener(recipe, shape, progress, data);
  for (const KeyedSource& keyed : sources) {
    opener.Check(*keyed.source, keyed.key, seed);
  }
  if (!data.tokenizer || !progress.remark) return;
  const std::string unused = WhatNeverTrains(recipe, VocabSize(shape), *data.tokenizer);
  if (!unused.empty()) progress.remark(unused);
}

}  // namespace fsdp
