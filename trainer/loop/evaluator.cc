#include "trainer/loop/evaluator.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/data/check_row.h"
#include "trainer/data/pairs/pair_batch.h"
#include "trainer/data/tokens/token_batch.h"
#include "trainer/fsdp/executor.h"
#include "trainer/generate/sampler.h"
#include "trainer/loop/run_data.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

// Row 0: the tokens, then zeros, which causal attention never sees from where we look.
void FillPrompt(std::span<const int32_t> tokens, int64_t vocab, const Batch& whole) {
  const TokenBatch batch(whole);
  const int64_t seq = batch.tokens.shape[1];
  for (int64_t i = 0; i < batch.tokens.NumElements(); ++i) {
    batch.tokens.As<int32_t>()[i] =
        i < static_cast<int64_t>(tokens.size()) ? tokens[static_cast<size_t>(i)] : 0;
    batch.targets.As<int32_t>()[i] = 0;
    batch.weights.As<float>()[i] = 0;
    batch.positions.As<int32_t>()[i] = static_cast<int32_t>(i % seq);
  }
  for (int64_t row = 0; row < batch.tokens.shape[0]; ++row) {
    SetLength(batch, row, row == 0 ? std::ssize(tokens) : 0);
  }
  std::fill_n(batch.sample_keys.As<int32_t>(), batch.sample_keys.NumElements(), 0);
  const auto n = static_cast<size_t>(seq);
  CheckRow(
      {.tokens = {batch.tokens.As<int32_t>(), n}, .positions = {batch.positions.As<int32_t>(), n}},
      {static_cast<int32_t>(vocab)},
      [](int64_t token) { return TokenPlace{"eval.sample, token " + std::to_string(token)}; });
}

// A model of an encoder and a decoder makes a target of a text.
bool Encodes(const Recipe& recipe) {
  return recipe.data.objective != DataRecipe::Objective::kCausal;
}

// With bytes the recipe's own end of a target is no token of the tokenizer.
std::optional<int32_t> EndOf(const Recipe& recipe, const Tokenizer& tokenizer) {
  const std::optional<int64_t>& own = recipe.data.TrainSources()[0].eot;
  return Encodes(recipe) && own ? std::optional(static_cast<int32_t>(*own)) : tokenizer.eot();
}

std::string PieceOf(const Tokenizer& tokenizer, int32_t id) {
  return std::string(id < tokenizer.vocab_size() ? tokenizer.Piece(id) : "");
}

std::vector<int32_t> PromptOf(const Recipe& recipe, const Tokenizer& tokenizer) {
  std::vector<int32_t> prompt = tokenizer.Encode(recipe.eval.sample->prompt);
  if (!Encodes(recipe)) {
    if (tokenizer.bos()) prompt.insert(prompt.begin(), *tokenizer.bos());
    return prompt;
  }
  // Cut and ended as the inputs of training are.
  const std::optional<int32_t> eot = EndOf(recipe, tokenizer);
  const auto room = static_cast<size_t>(recipe.data.seq_len - (eot ? 1 : 0));
  prompt.resize(std::min(prompt.size(), room));
  if (eot) prompt.push_back(*eot);
  return prompt;
}

// Row 0: an input, and the target so far; the other rows are empty.
void FillPair(std::span<const int32_t> input, std::span<const int32_t> target, int64_t vocab,
              const Batch& whole) {
  for (int64_t r = 0; r < whole.rows(); ++r) {
    const PairRow row = RowOf(whole, r);
    if (r == 0) {
      std::ranges::copy(input, row.input.begin());
      std::ranges::copy(target, row.target.begin());
    }
    FinishRow(row, r == 0 ? std::ssize(input) : 1, r == 0 ? std::ssize(target) : 0);
    if (r > 0) row.input[0] = kPadToken;
    CheckRow(
        {.tokens = row.input, .positions = {}}, {static_cast<int32_t>(vocab)},
        [](int64_t token) { return TokenPlace{"eval.sample, token " + std::to_string(token)}; });
  }
  const View positions = PairBatch(whole).decoder.positions;
  for (int64_t i = 0; i < positions.NumElements(); ++i) {
    positions.As<int32_t>()[i] = static_cast<int32_t>(i % positions.shape[1]);
  }
  std::fill_n(whole.sample_keys.As<int32_t>(), whole.sample_keys.NumElements(), 0);
}

}  // namespace

Evaluator::Evaluator(const Recipe& recipe, uint64_t seed, const RunData& data, DataWatch& loads,
                     Session& session, Recorder& recorder)
    : recipe_(recipe),
      seed_(seed),
      data_(data),
      loads_(loads),
      session_(session),
      recorder_(recorder) {}

bool Evaluator::IsDue(int64_t step) const {
  const int64_t every = recipe_.eval.every;
  return !data_.valid.empty() && every > 0 && (step % every == 0 || step == recipe_.train.steps);
}

std::optional<double> Evaluator::Run(int64_t step, const MayBegin& may_begin) {
  const double begin = recorder_.Pause();
  double sum = 0, evaluated = begin;
  std::vector<EvalRecord> records;
  const auto go_on = [&](bool whole) -> std::optional<double> {
    recorder_.Continue({step, evaluated - begin, recorder_.Now() - evaluated, 0});
    if (!whole) return std::nullopt;
    return sum / static_cast<double>(data_.valid.size());
  };
  for (const RunData::Valid& valid : data_.valid) {
    const std::optional<EvalMeans> means =
        MeansOf(session_, *valid.loader, may_begin, nullptr, &loads_);
    evaluated = recorder_.Now();
    const std::string at = "evaluation " + std::to_string(step) + " " + valid.name;
    const bool failed = (!means || !std::isfinite(means->loss)) && loads_.HasFailed(at);
    if (!means || failed) return go_on(false);
    sum += means->loss;
    records.push_back({step, means->loss, valid.name, session_.eval_metric(), means->second});
  }
  std::optional<std::vector<SampleRecord>> samples(std::in_place);
  if (session_.options().generate) samples = Draw(step, may_begin);
  if (!samples) return go_on(false);
  for (const EvalRecord& record : records) recorder_.Write(record);
  for (const SampleRecord& record : *samples) recorder_.Write(record);
  return go_on(true);
}

std::optional<EvalMeans> MeansOf(Session& session, const EvalLoader& loader,
                                 const MayBegin& may_begin,
                                 const std::function<void(int64_t batch)>& progress,
                                 DataWatch* loads) {
  const int rank = session.executor().mesh().data_coordinate();
  const auto wave = static_cast<double>(session.WaveTargets());
  EvalMeans sums;
  std::optional<int64_t> last;
  const auto take = [&] {
    if (!last) return;
    const StepScalars scalars = session.executor().Result(*last);
    sums.loss += static_cast<double>(scalars.loss) * wave;
    sums.second += static_cast<double>(scalars.second_sum());
  };
  for (int64_t b = 0; b < loader.Batches(); ++b) {
    if (b > 0 && progress) progress(b);
    for (int64_t m = 0; m < loader.MicroBatches(); ++m) {
      if (may_begin && !may_begin()) return std::nullopt;
      const auto load = [&loader, loads, b, m, rank](int, const Batch& batch) {
        const auto read = [&] { loader.MicroBatch(b, m, rank, batch); };
        loads != nullptr ? loads->Load(batch, read) : read();
      };
      session.Eval(static_cast<float>(1 / wave), load);
      take();
      last = session.executor().steps() - 1;
    }
  }
  take();
  const auto targets = static_cast<double>(loader.Targets());
  return EvalMeans{sums.loss / targets, sums.second / targets};
}

std::optional<std::vector<SampleRecord>> Evaluator::Draw(int64_t step, const MayBegin& may_begin) {
  const SampleRecipe& sample = *recipe_.eval.sample;
  const Tokenizer& tokenizer = *data_.tokenizer;
  const bool encodes = Encodes(recipe_);
  const std::optional<int32_t> eot = EndOf(recipe_, tokenizer);
  GenerateOptions options;
  options.max_tokens = sample.max_tokens;
  options.sampling.temperature = sample.temperature;
  options.seed = seed_;
  options.stream = "sample";
  options.first = static_cast<uint64_t>(step);
  const int64_t vocab = session_.outputs();
  options.vocab =
      static_cast<int32_t>(encodes ? vocab : std::min<int64_t>(vocab, tokenizer.vocab_size()));
  options.never = tokenizer.Lacks(options.vocab);
  if (eot) {
    options.eos = {*eot};
    std::erase(options.never, *eot);  // With bytes it is the recipe's alone.
  }
  if (encodes) options.max_tokens = std::min(options.max_tokens, recipe_.data.TargetLength());
  std::vector<int32_t> prompt = PromptOf(recipe_, tokenizer);
  // The tokenizer has left nothing of the text.
  if (prompt.empty()) return std::vector<SampleRecord>{};
  bool stopped = false;
  options.ends = [&](size_t, std::span<const int32_t>) { return stopped; };
  std::vector<float> no_scores;  // Empty until a sample is cut off.
  const size_t inputs = encodes ? prompt.size() : 0;
  const auto window =
      encodes ? static_cast<int64_t>(inputs) + options.max_tokens : recipe_.data.seq_len;
  SlidingWindow model(window, vocab, [&](std::span<const int32_t> tokens) {
    stopped = stopped || (may_begin && !may_begin());
    if (stopped) {
      no_scores.resize(static_cast<size_t>(vocab));
      return std::span<const float>(no_scores);
    }
    const auto fill = [copy = std::vector<int32_t>(tokens.begin(), tokens.end()), vocab, inputs](
                          int, const Batch& batch) {
      const std::span<const int32_t> all = copy;
      inputs > 0 ? FillPair(all.first(inputs), all.subspan(inputs), vocab, batch)
                 : FillPrompt(all, vocab, batch);
    };
    const auto column = static_cast<int64_t>(tokens.size() - inputs) - (encodes ? 0 : 1);
    return session_.Logits(column, fill);
  });
  const Continuation c = Generate(model, {std::move(prompt)}, options)[0];
  if (stopped) return std::nullopt;
  std::string text;
  for (const int32_t id : c.tokens) text += PieceOf(tokenizer, id);
  if (c.end == Continuation::End::kEndOfText) text += PieceOf(tokenizer, *eot);
  return std::vector{SampleRecord{step, sample.prompt, text}};
}

}  // namespace fsdp
