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
#include "trainer/core/cache_directory.h"
#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/data/chat/chat_template.h"
#include "trainer/data/chat/jinja/date.h"
#include "trainer/data/pairs/pair_rows.h"
#include "trainer/data/pairs/span_corruption.h"
#include "trainer/data/samples/document_store.h"
#include "trainer/data/samples/fitted_samples.h"
#include "trainer/data/samples/line_samples.h"
#include "trainer/data/synthetic/synthetic_source.h"
#include "trainer/data/text/text_cache.h"
#include "trainer/data/text/text_check.h"
#include "trainer/data/text/text_source.h"
#include "trainer/data/text/tokenize.h"
#include "trainer/data/tokenizers/open_tokenizer.h"
#include "trainer/data/tokens/token_file_source.h"
#include "trainer/data/tokens/token_source.h"
#include "trainer/loop/click_data.h"
#include "trainer/loop/drawn_data.h"
#include "trainer/loop/image_data.h"
#include "trainer/loop/pair_data.h"
#include "trainer/loop/run_words.h"
#include "trainer/nn/model.h"

namespace fsdp {
namespace {

// Opens sources one after the other; keeps the list of their files, and their tokenizer.
class Opener {
 public:
  Opener(const Recipe& recipe, const ModelShape& shape, const OpenProgress& progress, RunData& data)
      : recipe_(recipe), shape_(shape), progress_(progress), data_(data) {}

  // Reads the source's files and adds them to `files`; null: it does neither.
  std::shared_ptr<const TokenSource> Open(const SourceRecipe& recipe, const std::string& key,
                                          uint64_t seed, std::vector<DataFile>* files) {
    std::shared_ptr<const TokenSource> source = OpenFiles(recipe, key, seed);
    if (recipe.eot) source = WithEot(std::move(source), static_cast<int32_t>(*recipe.eot));
    RequireEot(source->eot().has_value(), recipe_.data.WantsEot(), key, source->Describe());
    if (files != nullptr) Describe(recipe, *source, *files);
    CheckTokens(*source, static_cast<int32_t>(VocabSize(shape_)));
    return source;
  }

  // Its samples that stay whole, and in words what does not fit.
  std::shared_ptr<const FittedSamples> OpenWhole(const SourceRecipe& recipe, const std::string& key,
                                                 uint64_t seed, std::vector<DataFile>& files) {
    const DataRecipe& data = recipe_.data;
    std::shared_ptr<const SampleStore> store;
    if (recipe.IsPerLine()) {
      store = OpenLines(recipe, key, files);
    } else {
      store = std::make_shared<DocumentStore>(Open(recipe, key, seed, &files));
    }
    auto whole = std::make_shared<FittedSamples>(store, data.seq_len, data.too_long);
    for (const std::string& line : WhatIsLeftOut(store->Describe(), whole->counts(), data)) {
      if (progress_.remark) progress_.remark(line);
    }
    return whole;
  }

  // OpenWhole() for an encoder and a decoder.
  PairRows::Fitted OpenPairs(const SourceRecipe& recipe, const std::string& key,
                             std::vector<DataFile>& files) {
    const DataRecipe& data = recipe_.data;
    PairRows::Fitted fitted =
        PairRows::Fit(OpenLines(recipe, key, files), Lengths(), data.too_long);
    if (fitted.longer > 0 && progress_.remark) {
      progress_.remark("data.too_long: " + std::to_string(fitted.longer) + " of the pairs of " +
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
  std::vector<int32_t> Sentinels(const SourceRecipe& recipe, const std::string& key,
                                 int64_t count) {
    std::vector<int32_t> sentinels;
    const std::shared_ptr<const Tokenizer> tokenizer = TokenizerFor(recipe, key);
    for (int64_t i = 0; i < count; ++i) {
      const std::string name = "<extra_id_" + std::to_string(i) + ">";
      if (tokenizer != nullptr && recipe.tokenizer == "bytes") {
        sentinels.push_back(static_cast<int32_t>(VocabSize(shape_) - 1 - i));
      } else if (const auto id = tokenizer ? tokenizer->IdOf(name) : std::nullopt) {
        sentinels.push_back(*id);
      } else {
        const std::string who = tokenizer ? recipe.tokenizer + " has no token `" + name + "`"
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
  void Check(const SourceRecipe& recipe, const std::string& key, uint64_t seed) {
    if (recipe_.data.objective == DataRecipe::Objective::kSpanCorruption) {
      Sentinels(recipe, key, LongestText(recipe_.data.spans(), recipe_.data.seq_len)->spans);
    }
    if (recipe.IsPerLine()) {
      EncoderFor(recipe, key);
      CheckFormats(ExpandLinePaths(recipe.paths, PathsOf(key)));
      return;
    }
    if (recipe.source != SourceRecipe::Source::kText || recipe.tokenizer == "bytes") {
      Open(recipe, key, seed, nullptr);
      return;
    }
    const std::shared_ptr<const Tokenizer> tokenizer = TokenizerFor(recipe, key);
    const std::vector<std::string> files = ExpandTextPaths(recipe.paths, PathsOf(key));
    CheckFormats(files);
    RequireEot(recipe.eot || tokenizer->eot(), recipe_.data.WantsEot(), key, files[0]);
  }

 private:
  void Describe(const SourceRecipe& recipe, const TokenSource& source,
                std::vector<DataFile>& files) const {
    for (DataFile& file : source.Files()) files.push_back(std::move(file));
    if (recipe.source == SourceRecipe::Source::kText) DescribeTokenizer(recipe, files);
  }

  // The same text in other tokens is other data.
  void DescribeTokenizer(const SourceRecipe& recipe, std::vector<DataFile>& files) const {
    if (recipe.tokenizer == "bytes") return;
    DataFile file = DescribeFile(FileContents(recipe.tokenizer));
    file.hash = data_.tokenizer->hash();
    files.push_back(std::move(file));
  }

  void RequireEot(bool has_one, const std::string& wants, const std::string& key,
                  const std::string& what) const {
    if (wants.empty() || has_one) return;
    throw ConfigError(recipe_.Mistake(
        key + ".eot",
        wants + " needs an end-of-text token, and " + what + " names none: give " + key + ".eot"));
  }

  // The key, for messages about a path that leads nowhere.
  std::string PathsOf(const std::string& key) const {
    std::string where = recipe_.Mistake(key + ".paths", "");
    where.resize(where.size() - 2);
    return where;
  }

  struct Encoder {
    std::shared_ptr<const LineEncoder> lines;
    std::optional<DataFile> chat_template;
  };
  Encoder EncoderFor(const SourceRecipe& recipe, const std::string& key) {
    const std::shared_ptr<const Tokenizer> tokenizer = TokenizerFor(recipe, key);
    if (recipe.source == SourceRecipe::Source::kPairs) {
      const std::optional<int32_t> eot =
          recipe.eot ? static_cast<int32_t>(*recipe.eot) : tokenizer->eot();
      RequireEot(eot.has_value(), "source `pairs`", key, recipe.tokenizer);
      const PairFields fields{recipe.prompt, recipe.completion};
      const bool apart = recipe_.data.objective == DataRecipe::Objective::kSeq2Seq;
      return {apart ? PairsApart(tokenizer, fields, *eot) : Pairs(tokenizer, fields, *eot),
              std::nullopt};
    }
    ChatOptions options;
    options.train_on = recipe.train_on;
    if (recipe.date) options.date = ParseJinjaDate(*recipe.date);
    try {
      ChatTemplate chat = ChatTemplate::Open(recipe.tokenizer, recipe.chat_template.value_or(""));
      const DataFile file{chat.name(), chat.bytes(), chat.hash()};
      return {Conversations(tokenizer, std::move(chat), options), file};
    } catch (const DataError& error) {
      throw DataError(recipe_.Mistake(key + ".template", error.what()));
    }
  }

  std::shared_ptr<const SampleFile> OpenLines(const SourceRecipe& recipe, const std::string& key,
                                              std::vector<DataFile>& files) {
    const Encoder encoder = EncoderFor(recipe, key);
    ExpandLinePaths(recipe.paths, PathsOf(key));
    LineOptions options;
    options.files = recipe.paths;
    options.tokenizer = recipe.tokenizer;
    options.allow_invalid_text = recipe_.data.allow_invalid_text;
    options.keep = {progress_.say, progress_.stop, recipe_.run.timeout_s};
    auto samples = OpenLineSamples(TokenCache(), *encoder.lines, options);
    for (const DataFile& file : samples->inputs()) files.push_back(file);
    DescribeTokenizer(recipe, files);
    if (encoder.chat_template) files.push_back(*encoder.chat_template);
    return samples;
  }

  std::string TokenCache() const { return recipe_.data.cache.value_or(CacheDirectory("tokens")); }

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
      throw ConfigError(recipe_.Mistake(
          key + ".tokenizer", recipe.tokenizer + " has " + std::to_string(size) +
                                  " tokens, but model.vocab_size is " + std::to_string(vocab)));
    }
    return data_.tokenizer;
  }

  std::shared_ptr<const TokenSource> OpenFiles(const SourceRecipe& recipe, const std::string& key,
                                               uint64_t seed) {
    const std::shared_ptr<const Tokenizer> tokenizer = TokenizerFor(recipe, key);
    const std::string where = PathsOf(key);
    switch (recipe.source) {
      case SourceRecipe::Source::kText: {
        ExpandTextPaths(recipe.paths, where);
        if (recipe.tokenizer == "bytes") return OpenBytes(recipe);
        TokenizeOptions options;
        options.files = recipe.paths;
        options.column = recipe.column;
        options.allow_invalid_text = recipe_.data.allow_invalid_text;
        if (recipe.eot) options.eot = static_cast<int32_t>(*recipe.eot);
        options.stop = progress_.stop;
        options.silence_s = recipe_.run.timeout_s;
        return OpenTextTokens(TokenCache(), tokenizer, recipe.tokenizer, std::move(options),
                              progress_.say);
      }
      case SourceRecipe::Source::kTokens: {
        ExpandPaths(recipe.paths, where);
        std::optional<TokenDType> dtype;
        if (recipe.dtype) {
          dtype = *recipe.dtype == SourceRecipe::RawDType::kUint16 ? TokenDType::kUint16
                                                                   : TokenDType::kUint32;
        }
        const auto tokens = std::make_shared<TokenFileSource>(recipe.paths, dtype);
        if (!tokens->eot() && tokenizer && tokenizer->eot()) {
          return WithEot(tokens, *tokenizer->eot());
        }
        return tokens;
      }
      case SourceRecipe::Source::kSynthetic:
        break;
      case SourceRecipe::Source::kChat:
      case SourceRecipe::Source::kPairs:
      case SourceRecipe::Source::kImages:
      case SourceRecipe::Source::kClicks:
        throw std::invalid_argument("[OpenFiles] of what is no sequence of tokens");
    }
    SyntheticOptions options;
    options.vocab_size = static_cast<int32_t>(VocabSize(shape_));
    options.seed = seed;
    return std::make_shared<SyntheticSource>(options);
  }

  std::shared_ptr<const TokenSource> OpenBytes(const SourceRecipe& recipe) {
    auto source = std::make_shared<TextSource>(recipe.paths, recipe_.data.allow_invalid_text);
    if (progress_.remark && !source->too_invalid().empty()) {
      progress_.remark("data.allow_invalid_text: " + source->too_invalid() + ": kept as bytes");
    }
    return source;
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

RunData WithLoaders(RowLoaders loaders, DataFiles files) {
  RunData data;
  data.train = std::move(loaders.train);
  for (auto& [name, loader] : loaders.valid) data.valid.push_back({name, std::move(loader)});
  data.files = std::move(files);
  return data;
}

// Rows of a model that is fed no sequences of tokens: drawn, or made for an encoder and a decoder.
RunData OpenOther(const Recipe& recipe, const ModelShape& shape, int data_ranks, uint64_t seed,
                  const ValidRecipe& held_out, const OpenProgress& progress) {
  const std::shared_ptr<Model> model = MakeModel(shape);
  const BatchSpec spec = model->Inputs(recipe.data.seq_len);
  if (ReadsClicks(recipe.data)) {
    DataFiles files;
    RowLoaders loaders =
        OpenClickData(recipe, *model, data_ranks, seed, held_out, progress.remark, files);
    return WithLoaders(std::move(loaders), std::move(files));
  }
  if (ReadsImages(recipe.data)) {
    DataFiles files;
    RowLoaders loaders = OpenImageData(recipe, spec, data_ranks, seed, held_out, files);
    return WithLoaders(std::move(loaders), std::move(files));
  }
  if (recipe.data.objective == DataRecipe::Objective::kCausal) {
    return WithLoaders(OpenDrawn(recipe, spec, data_ranks, seed, held_out), {});
  }
  RunData data;
  Opener opener(recipe, shape, progress, data);
  const PairOpeners openers{
      [&](const SourceRecipe& source, const std::string& key, std::vector<DataFile>& files) {
        return opener.Open(source, key, seed, &files);
      },
      [&](const SourceRecipe& source, const std::string& key, std::vector<DataFile>& files) {
        return opener.OpenPairs(source, key, files);
      },
      [&](const SourceRecipe& source, const std::string& key, int64_t count) {
        return opener.Sentinels(source, key, count);
      }};
  RowLoaders loaders =
      OpenPairs(recipe, opener.Lengths(), openers, data_ranks, seed, held_out, data.files);
  return WithLoaders(std::move(loaders), std::move(data.files));
}

RunData OpenLoaders(const Recipe& recipe, const ModelShape& shape, int data_ranks, uint64_t seed,
                    const ValidRecipe& held_out, const OpenProgress& progress) {
  if (!shape.family().Decoder(shape)) {
    return OpenOther(recipe, shape, data_ranks, seed, held_out, progress);
  }
  RunData data;
  Opener opener(recipe, shape, progress, data);
  const auto* apart = std::get_if<HeldOut>(&held_out);          // Never trained on.
  const auto* last = std::get_if<HeldOut>(&recipe.data.valid);  // Evaluated.
  const bool windows = recipe.data.packing == Packing::kWindows;
  WeightedSources train, tails;
  std::vector<std::pair<std::string, WeightedSources>> valid;
  for (const KeyedSource& keyed : KeyedSources(recipe.data)) {
    if (keyed.list == "data.valid") {
      const uint64_t own = seed + 1 + valid.size();
      WeightedSource& all = valid.emplace_back(keyed.source->name, WeightedSources(1)).second[0];
      if (windows) {
        all.source = opener.Open(*keyed.source, keyed.key, own, &data.files.valid);
      } else {
        all.whole = opener.OpenWhole(*keyed.source, keyed.key, own, data.files.valid);
      }
      continue;
    }
    const double weight = keyed.source->weight;
    // Synthetic sources of one list are samples of one language, but not the same one.
    const uint64_t salt = HashBytes("data.train.source", train.size());
    const uint64_t own = train.empty() ? seed : seed ^ salt;
    if (windows) {
      const auto all = opener.Open(*keyed.source, keyed.key, own, &data.files.train);
      train.push_back({apart ? SplitSource(all, apart->fraction).train : all, weight});
      if (last) tails.push_back({SplitSource(all, last->fraction).valid, weight});
      continue;
    }
    const std::shared_ptr<const FittedSamples> whole =
        opener.OpenWhole(*keyed.source, keyed.key, own, data.files.train);
    train.push_back({nullptr, weight, whole});
    if (apart) train.back().whole = whole->HoldOut(apart->fraction).train;
    if (last) tails.push_back({nullptr, weight, whole->HoldOut(last->fraction).valid});
  }
  if (last) valid.emplace_back("", std::move(tails));

  LoaderOptions options;
  options.seq_len = recipe.data.seq_len;
  options.global_batch_size = recipe.train.global_batch_size;
  options.micro_batch_size = recipe.train.micro_batch_size;
  options.data_ranks = data_ranks;
  options.vocab_size = static_cast<int32_t>(VocabSize(shape));
  options.documents = recipe.data.documents;
  options.packing = recipe.data.packing;
  data.samples =
      std::make_shared<const Samples>(std::move(train), options, recipe.data.shuffle, seed);
  data.train = std::make_unique<TrainLoader>(data.samples, options.deal(), seed);
  if (recipe.eval.every == 0) return data;
  for (auto& [name, sources] : valid) {
    data.valid.push_back(
        {name, std::make_unique<EvalLoader>(std::move(sources), options, recipe.eval.steps)});
  }
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

void CheckData(const Recipe& recipe, const ModelShape& shape) {
  const auto seed = static_cast<uint64_t>(recipe.run.seed);
  if (ReadsImages(recipe.data)) {
    OpenData(recipe, shape, /*data_ranks=*/1, seed, recipe.data.valid);
    return;
  }
  const bool made = recipe.data.objective != DataRecipe::Objective::kCausal;
  if (!shape.family().Decoder(shape) && !made) return;
  RunData data;
  const OpenProgress silent;
  Opener opener(recipe, shape, silent, data);
  for (const KeyedSource& keyed : KeyedSources(recipe.data)) {
    opener.Check(*keyed.source, keyed.key, seed);
  }
}

}  // namespace fsdp
