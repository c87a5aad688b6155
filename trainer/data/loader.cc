#include "trainer/data/loader.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/data/check_row.h"
#include "trainer/data/tokens/token_batch.h"

namespace fsdp {
namespace {

void CheckView(const char* name, const View& view, DType dtype, const Shape& want) {
  if (view.dtype != dtype || view.shape != want || view.data == nullptr) {
    throw std::invalid_argument("[MicroBatch] " + std::string(name) + " is " +
                                std::string(Name(view.dtype)) + view.shape.ToString() + ", want " +
                                std::string(Name(dtype)) + want.ToString() + " in memory");
  }
}

void CheckKeys(const View& keys, int64_t rows) {
  const Shape want = {rows, 2};
  if (keys.dtype != DType::kInt32 || keys.shape != want || keys.data == nullptr) {
    throw std::invalid_argument("[MicroBatch] sample_keys is " + std::string(Name(keys.dtype)) +
                                keys.shape.ToString() + ", want int32" + want.ToString() +
                                " in memory");
  }
}

// The key of a place that is left over is 0: nobody draws for it.
void FillKey(uint64_t seed, int64_t sample, int64_t row, const Batch& out) {
  const std::string_view bytes(reinterpret_cast<const char*>(&sample), sizeof(sample));
  const uint64_t key = sample == kNoSample ? 0 : HashBytes(bytes, seed);
  int32_t* words = out.sample_keys.As<int32_t>() + 2 * row;
  words[0] = static_cast<int32_t>(static_cast<uint32_t>(key));
  words[1] = static_cast<int32_t>(static_cast<uint32_t>(key >> 32));
}

// Restarts positions behind each eot and takes the weight off the target of each.
void MarkDocuments(std::span<const int32_t> tokens, int32_t eot, std::span<int32_t> positions,
                   std::span<float> weights) {
  int32_t position = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    positions[i] = position++;
    if (tokens[i] != eot) continue;
    weights[i] = 0;
    position = 0;
  }
}

std::vector<double> WeightsOf(const WeightedSources& sources) {
  std::vector<double> weights;
  for (const WeightedSource& source : sources) weights.push_back(source.weight);
  return weights;
}

void CheckStep(int64_t step) {
  if (step < 1) {
    throw std::invalid_argument("[TrainLoader] step is " + std::to_string(step) +
                                ", the first is 1");
  }
}

}  // namespace

BatchPlan::BatchPlan(const BatchPlanOptions& options) : options_(options) {
  if (options.global_batch_size < 1 || options.micro_batch_size < 1 || options.data_ranks < 1) {
    throw std::invalid_argument("[BatchPlan] want all >= 1: global_batch_size " +
                                std::to_string(options.global_batch_size) + ", micro_batch_size " +
                                std::to_string(options.micro_batch_size) + ", data_ranks " +
                                std::to_string(options.data_ranks));
  }
}

int64_t BatchPlan::MicroBatches() const {
  const int64_t at_once = options_.micro_batch_size * options_.data_ranks;
  return (options_.global_batch_size + at_once - 1) / at_once;
}

int64_t BatchPlan::PlaceOf(int64_t micro_index, int64_t data_rank, int64_t row) const {
  if (micro_index < 0 || micro_index >= MicroBatches() || data_rank < 0 ||
      data_rank >= options_.data_ranks || row < 0 || row >= options_.micro_batch_size) {
    throw std::invalid_argument(
        "[BatchPlan::PlaceOf] row " + std::to_string(row) + " of " +
        std::to_string(options_.micro_batch_size) + ", micro-batch " + std::to_string(micro_index) +
        " of " + std::to_string(MicroBatches()) + ", data rank " + std::to_string(data_rank) +
        " of " + std::to_string(options_.data_ranks));
  }
  return (micro_index * options_.data_ranks + data_rank) * options_.micro_batch_size + row;
}

Samples::Samples(WeightedSources sources, const LoaderOptions& options, bool shuffle, uint64_t seed)
    : options_(options), sources_(std::move(sources)), mixture_(WeightsOf(sources_), seed) {
  if (options.seq_len < 1 || options.vocab_size < 1) {
    throw std::invalid_argument("[Samples] want both >= 1: seq_len " +
                                std::to_string(options.seq_len) + ", vocab_size " +
                                std::to_string(options.vocab_size));
  }
  if (options.documents && !windows()) {
    throw std::invalid_argument("[Samples] `documents` is of windows alone");
  }
  for (uint64_t k = 0; k < sources_.size(); ++k) {
    const WeightedSource& weighted = sources_[k];
    if ((weighted.source != nullptr) != windows() || (weighted.whole == nullptr) != windows()) {
      throw std::invalid_argument("[Samples] windows want a TokenSource, whole samples theirs");
    }
    const uint64_t order = k == 0 ? seed : HashBytes("data.mixture.source", seed + k);
    if (!windows()) {
      packed_.emplace_back(*weighted.whole, options.seq_len, options.packing, shuffle, order);
      continue;
    }
    const TokenSource& source = *weighted.source;
    if (options.documents && !source.eot()) {
      throw std::invalid_argument("[Samples] documents, but no end-of-text token in " +
                                  source.Describe());
    }
    indexes_.emplace_back(source.size(), options.seq_len, shuffle, order, source.Describe());
  }
}

int64_t Samples::Rows(int64_t source) const {
  const auto k = static_cast<size_t>(source);
  return windows() ? indexes_.at(k).Windows() : packed_.at(k).Rows();
}

int64_t Samples::Tokens(int64_t source) const {
  return windows() ? Rows(source) * options_.seq_len
                   : packed_.at(static_cast<size_t>(source)).Tokens();
}

int64_t Samples::WholeSamples(int64_t source) const {
  return windows() ? 0 : sources_.at(static_cast<size_t>(source)).whole->size();
}

Samples::Place Samples::PlaceOf(int64_t sample) const {
  const Mixture::Place place = mixture_(sample);
  return {place.source, indexes_[static_cast<size_t>(place.source)].TokenOffset(place.sample)};
}

struct Samples::RowViews {
  std::span<int32_t> tokens, targets;
  std::span<float> weights;
  std::span<int32_t> positions;
};

void Samples::CheckViews(const Batch& batch, int64_t rows) const {
  const TokenBatch out(batch);
  const Shape want = {rows, options_.seq_len};
  CheckView("tokens", out.tokens, DType::kInt32, want);
  CheckView("targets", out.targets, DType::kInt32, want);
  CheckView("weights", out.weights, DType::kFloat32, want);
  CheckView("positions", out.positions, DType::kInt32, want);
  if (out.lengths.data != nullptr) {
    CheckView("lengths", out.lengths, DType::kInt32, Shape{rows});
  }
}

void Samples::Derive(const Batch& out) const { OrderTokens(TokenBatch(out)); }

void Samples::Fill(int64_t sample, int64_t row, const Batch& batch) const {
  const TokenBatch out(batch);
  const size_t n = static_cast<size_t>(options_.seq_len);
  const int64_t begin = row * options_.seq_len;
  const RowViews views = {{out.tokens.As<int32_t>() + begin, n},
                          {out.targets.As<int32_t>() + begin, n},
                          {out.weights.As<float>() + begin, n},
                          {out.positions.As<int32_t>() + begin, n}};
  if (sample != kNoSample) {
    if (windows()) FillWindow(sample, views);
    SetLength(out, row, windows() ? options_.seq_len : FillSample(sample, views));
    return;
  }
  SetLength(out, row, 0);
  std::iota(views.positions.begin(), views.positions.end(), 0);
  std::fill(views.weights.begin(), views.weights.end(), 0.0f);
  std::fill(views.tokens.begin(), views.tokens.end(), 0);
  std::fill(views.targets.begin(), views.targets.end(), 0);
}

void Samples::FillWindow(int64_t sample, const RowViews& row) const {
  const auto& [tokens, targets, weights, positions] = row;
  std::iota(positions.begin(), positions.end(), 0);
  std::fill(weights.begin(), weights.end(), 1.0f);
  const auto [which, offset] = PlaceOf(sample);
  const TokenSource& source = *sources_[static_cast<size_t>(which)].source;
  source.Read(offset, tokens);
  std::copy(tokens.begin() + 1, tokens.end(), targets.begin());
  source.Read(offset + options_.seq_len, targets.last(1));
  if (options_.documents) MarkDocuments(tokens, *source.eot(), positions, weights);
  const auto place = [&, offset = offset](int64_t token) {
    TokenPlace there = PlaceIn(source, offset + token);
    there.sample = "sample " + std::to_string(sample);
    return there;
  };
  CheckRow({tokens, targets, weights, positions}, {options_.vocab_size}, std::cref(place));
}

int64_t Samples::FillSample(int64_t sample, const RowViews& row) const {
  const auto [which, number] = mixture_(sample);
  const SampleSource& source = *sources_[static_cast<size_t>(which)].whole;
  const auto samples = packed_[static_cast<size_t>(which)].SamplesOf(number);
  size_t at = 0;
  for (const int32_t i : samples) {
    const auto n = static_cast<size_t>(source.Length(i));
    const auto tokens = row.tokens.subspan(at, n), targets = row.targets.subspan(at, n);
    const auto positions = row.positions.subspan(at, n);
    source.Read(i, tokens, row.weights.subspan(at, n));
    std::copy(tokens.begin() + 1, tokens.end(), targets.begin());
    targets.back() = 0;
    std::iota(positions.begin(), positions.end(), 0);
    at += n;
  }
  std::fill(row.tokens.begin() + static_cast<int64_t>(at), row.tokens.end(), 0);
  std::fill(row.targets.begin() + static_cast<int64_t>(at), row.targets.end(), 0);
  std::fill(row.weights.begin() + static_cast<int64_t>(at), row.weights.end(), 0.0f);
  std::fill(row.positions.begin() + static_cast<int64_t>(at), row.positions.end(), 0);
  const auto place = [&, samples = samples](int64_t token) {
    auto i = samples.begin();
    for (; token >= source.Length(*i); ++i) token -= source.Length(*i);
    TokenPlace there = source.PlaceOf(*i, token);
    there.sample = "sample " + std::to_string(sample);
    return there;
  };
  CheckRow({row.tokens, row.targets, row.weights, row.positions}, {options_.vocab_size},
           std::cref(place));
  return static_cast<int64_t>(at);
}

int64_t Samples::OfSamples(int64_t begin, int64_t end, bool targets) const {
  int64_t sum = 0;
  for (int64_t row = begin; row < end; ++row) {
    const auto [which, packed] = mixture_(row);
    const SampleSource& source = *sources_[static_cast<size_t>(which)].whole;
    for (const int32_t i : packed_[static_cast<size_t>(which)].SamplesOf(packed)) {
      sum += targets ? source.Targets(i) : source.Length(i);
    }
  }
  return sum;
}

int64_t Samples::InputTokens(int64_t begin, int64_t end) const {
  return windows() ? (end - begin) * options_.seq_len : OfSamples(begin, end, /*targets=*/false);
}

int64_t Samples::Targets(int64_t begin, int64_t end) const {
  if (!windows()) return OfSamples(begin, end, /*targets=*/true);
  int64_t targets = (end - begin) * options_.seq_len;
  if (!options_.documents) return targets;
  for (int64_t sample = begin; sample < end; ++sample) {
    const auto [which, offset] = PlaceOf(sample);
    const TokenSource& source = *sources_[static_cast<size_t>(which)].source;
    targets -= source.Count(offset, options_.seq_len, *source.eot());
  }
  return targets;
}

ShownSample Samples::Show(int64_t sample, const Batch& row) const {
  const TokenBatch of(row);
  const auto* const tokens = of.tokens.As<int32_t>();
  const auto* const positions = of.positions.As<int32_t>();
  const auto* const weights = of.weights.As<float>();
  ShownSample shown;
  int64_t places = options_.seq_len;  // Padding lies behind.
  if (windows()) {
    const auto [which, offset] = PlaceOf(sample);
    shown.where = sources_[static_cast<size_t>(which)].source->Where(offset);
  } else {
    const auto [which, number] = mixture_(sample);
    const SampleSource& source = *sources_[static_cast<size_t>(which)].whole;
    const auto samples = packed_[static_cast<size_t>(which)].SamplesOf(number);
    shown.where = source.PlaceOf(samples.front(), 0).where;
    places = 0;
    for (const int32_t i : samples) places += source.Length(i);
  }
  ShownSample::Tokens& text = shown.tokens.emplace_back();
  text = {"text", {tokens, tokens + places}, {positions, positions + places}, {false}};
  for (int64_t i = 0; i + 1 < places; ++i) text.is_target.push_back(weights[i] != 0);
  if (windows()) {  // The last target is no input.
    const bool counts = weights[places - 1] != 0;
    text.ids.push_back(of.targets.As<int32_t>()[places - 1]);
    text.positions.push_back(counts ? positions[places - 1] + 1 : 0);
    text.is_target.push_back(counts);
  }
  return shown;
}

Tally Samples::Count(int64_t source) const {
  Tally tally = {{"samples", Rows(source)}, {"tokens", Tokens(source)}};
  const SampleSource* const whole = sources_.at(static_cast<size_t>(source)).whole.get();
  if (whole == nullptr) return tally;
  for (auto& number : whole->Count()) tally.push_back(std::move(number));
  return tally;
}

std::string Samples::WhyNoTargets(const std::string& of) const {
  return windows()
             ? "all tokens of " + of + " end a document, so it has no targets: is data.*.eot right?"
             : of + " has no token that is a target";
}

namespace {

// All rows of a batch; `sample_of` a row. `threads` may be null.
template <typename SampleOf>
void FillBatch(const RowSource& source, int64_t rows, uint64_t seed, const SampleOf& sample_of,
               RowThreads* threads, const Batch& out) {
  source.CheckViews(out, rows);
  CheckKeys(out.sample_keys, rows);
  const auto fill = [&](int64_t row) {
    const int64_t sample = sample_of(row);
    FillKey(seed, sample, row, out);
    source.Fill(sample, row, out);
  };
  if (threads != nullptr) {
    threads->Fill(rows, std::cref(fill));
  } else {
    for (int64_t row = 0; row < rows; ++row) fill(row);
  }
  source.Derive(out);
}

}  // namespace

TrainLoader::TrainLoader(std::shared_ptr<const RowSource> rows, const BatchPlanOptions& options,
                         uint64_t seed)
    : plan_(options), rows_(std::move(rows)), seed_(seed) {}

TrainLoader::TrainLoader(WeightedSources sources, const LoaderOptions& options, bool shuffle,
                         uint64_t seed)
    : TrainLoader(std::make_shared<Samples>(std::move(sources), options, shuffle, seed),
                  options.batch_plan(), seed) {}

int64_t TrainLoader::SampleOf(int64_t step, int64_t micro_index, int64_t data_rank,
                              int64_t row) const {
  CheckStep(step);
  const int64_t place = plan_.PlaceOf(micro_index, data_rank, row);
  const int64_t global = plan_.options().global_batch_size;
  return place < global ? (step - 1) * global + place : kNoSample;
}

void TrainLoader::MicroBatch(int64_t step, int64_t micro_index, int64_t data_rank,
                             const Batch& out) const {
  const auto sample_of = [&](int64_t row) { return SampleOf(step, micro_index, data_rank, row); };
  FillBatch(*rows_, plan_.options().micro_batch_size, seed_, sample_of, threads_.get(), out);
}

int64_t TrainLoader::TargetsOfStep(int64_t step) const {
  CheckStep(step);
  const int64_t global = plan_.options().global_batch_size;
  const int64_t targets = rows_->Targets((step - 1) * global, step * global);
  if (targets == 0) {
    throw DataError("data: " + rows_->WhyNoTargets("step " + std::to_string(step)));
  }
  return targets;
}

int64_t TrainLoader::InputTokensOfStep(int64_t step) const {
  CheckStep(step);
  const int64_t global = plan_.options().global_batch_size;
  return rows_->InputTokens((step - 1) * global, step * global);
}

EvalLoader::EvalLoader(std::shared_ptr<const RowSource> source, const BatchPlanOptions& options,
                       int64_t batches)
    : plan_(options), rows_(std::move(source)) {
  if (batches < 1) {
    throw std::invalid_argument("[EvalLoader] " + std::to_string(batches) + " batches, want >= 1");
  }
  std::vector<int64_t> rows;
  for (int64_t k = 0; k < rows_->sources(); ++k) rows.push_back(rows_->Rows(k));
  constexpr int64_t kMost = int64_t{1} << 61;
  const int64_t global = options.global_batch_size;
  count_ = rows_->mixture().Longest(rows, batches > kMost / global ? kMost : batches * global);
  if (count_ < 1) {
    throw DataError("data: " + rows_->Describe() +
                    ": too little for one sample of the mixture: give more data, a shorter "
                    "data.seq_len or another data.valid");
  }
}

EvalLoader::EvalLoader(WeightedSources sources, const LoaderOptions& options, int64_t batches)
    : EvalLoader(
          std::make_shared<Samples>(std::move(sources), options, /*shuffle=*/false, /*seed=*/0),
          options.batch_plan(), batches) {}

int64_t EvalLoader::Batches() const { return (count_ - 1) / plan_.options().global_batch_size + 1; }

void EvalLoader::CheckBatch(int64_t batch) const {
  if (batch < 0 || batch >= Batches()) {
    throw std::invalid_argument("[EvalLoader] batch " + std::to_string(batch) + " of " +
                                std::to_string(Batches()));
  }
}

int64_t EvalLoader::SampleOf(int64_t batch, int64_t micro_index, int64_t data_rank,
                             int64_t row) const {
  CheckBatch(batch);
  const int64_t place = plan_.PlaceOf(micro_index, data_rank, row);
  const int64_t global = plan_.options().global_batch_size;
  const int64_t sample = batch * global + place;
  return place < global && sample < count_ ? sample : kNoSample;
}

void EvalLoader::MicroBatch(int64_t batch, int64_t micro_index, int64_t data_rank,
                            const Batch& out) const {
  const auto sample_of = [&](int64_t row) { return SampleOf(batch, micro_index, data_rank, row); };
  FillBatch(*rows_, plan_.options().micro_batch_size, /*seed=*/0, sample_of, threads_.get(), out);
}

int64_t EvalLoader::TargetsOfBatch(int64_t batch) const {
  CheckBatch(batch);
  const int64_t global = plan_.options().global_batch_size;
  return rows_->Targets(batch * global, std::min(count_, (batch + 1) * global));
}

}  // namespace fsdp
