#include "trainer/data/loader.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

namespace fsdp {
namespace {

void CheckView(const char* name, const View& view, DType dtype, const LoaderOptions& options) {
  const Shape want = {options.micro_batch_size, options.seq_len};
  if (view.dtype != dtype || view.shape != want || view.data == nullptr) {
    throw std::invalid_argument("[MicroBatch] " + std::string(name) + " is " +
                                std::string(Name(view.dtype)) + view.shape.ToString() + ", want " +
                                std::string(Name(dtype)) + want.ToString() + " in memory");
  }
}

void CheckBatchViews(const Batch& out, const LoaderOptions& options) {
  CheckView("tokens", out.tokens, DType::kInt32, options);
  CheckView("targets", out.targets, DType::kInt32, options);
  CheckView("weights", out.weights, DType::kFloat32, options);
  CheckView("positions", out.positions, DType::kInt32, options);
}

// `offset` of the window's first token, or kNoSample.
void FillRow(const TokenSource& source, const LoaderOptions& options, int64_t offset, int64_t row,
             const Batch& out) {
  const size_t n = static_cast<size_t>(options.seq_len);
  const int64_t begin = row * options.seq_len;
  const std::span tokens(out.tokens.As<int32_t>() + begin, n);
  const std::span targets(out.targets.As<int32_t>() + begin, n);
  const std::span weights(out.weights.As<float>() + begin, n);
  const std::span positions(out.positions.As<int32_t>() + begin, n);
  std::iota(positions.begin(), positions.end(), 0);
  std::fill(weights.begin(), weights.end(), offset == kNoSample ? 0.0f : 1.0f);
  if (offset == kNoSample) {
    std::fill(tokens.begin(), tokens.end(), 0);
    std::fill(targets.begin(), targets.end(), 0);
    return;
  }
  source.Read(offset, tokens);
  source.Read(offset + 1, targets);
  internal::CheckVocabulary(source, offset, tokens, options.vocab_size);
  internal::CheckVocabulary(source, offset + 1, targets, options.vocab_size);
}

void CheckStep(int64_t step) {
  if (step < 1) {
    throw std::invalid_argument("[TrainLoader] step is " + std::to_string(step) +
                                ", the first is 1");
  }
}

}  // namespace

Deal::Deal(const LoaderOptions& options) : options_(options) {
  if (options.seq_len < 1 || options.global_batch_size < 1 || options.micro_batch_size < 1 ||
      options.data_ranks < 1 || options.vocab_size < 1) {
    throw std::invalid_argument("[Deal] want all >= 1: seq_len " + std::to_string(options.seq_len) +
                                ", global_batch_size " + std::to_string(options.global_batch_size) +
                                ", micro_batch_size " + std::to_string(options.micro_batch_size) +
                                ", data_ranks " + std::to_string(options.data_ranks) +
                                ", vocab_size " + std::to_string(options.vocab_size));
  }
}

int64_t Deal::MicroBatches() const {
  const int64_t at_once = options_.micro_batch_size * options_.data_ranks;
  return (options_.global_batch_size + at_once - 1) / at_once;
}

int64_t Deal::PlaceOf(int64_t micro_index, int64_t data_rank, int64_t row) const {
  if (micro_index < 0 || micro_index >= MicroBatches() || data_rank < 0 ||
      data_rank >= options_.data_ranks || row < 0 || row >= options_.micro_batch_size) {
    throw std::invalid_argument(
        "[Deal::PlaceOf] row " + std::to_string(row) + " of " +
        std::to_string(options_.micro_batch_size) + ", micro-batch " + std::to_string(micro_index) +
        " of " + std::to_string(MicroBatches()) + ", data rank " + std::to_string(data_rank) +
        " of " + std::to_string(options_.data_ranks));
  }
  return (micro_index * options_.data_ranks + data_rank) * options_.micro_batch_size + row;
}

TrainLoader::TrainLoader(std::shared_ptr<const TokenSource> source, const LoaderOptions& options,
                         bool shuffle, uint64_t seed)
    : deal_(options),
      source_(std::move(source)),
      index_(source_->size(), options.seq_len, shuffle, seed, source_->Describe()) {}

int64_t TrainLoader::SampleOf(int64_t step, int64_t micro_index, int64_t data_rank,
                              int64_t row) const {
  CheckStep(step);
  const int64_t place = deal_.PlaceOf(micro_index, data_rank, row);
  const int64_t global = deal_.options().global_batch_size;
  return place < global ? (step - 1) * global + place : kNoSample;
}

void TrainLoader::MicroBatch(int64_t step, int64_t micro_index, int64_t data_rank,
                             const Batch& out) const {
  CheckBatchViews(out, deal_.options());
  for (int64_t row = 0; row < deal_.options().micro_batch_size; ++row) {
    const int64_t sample = SampleOf(step, micro_index, data_rank, row);
    const int64_t offset = sample == kNoSample ? kNoSample : index_.TokenOffset(sample);
    FillRow(*source_, deal_.options(), offset, row, out);
  }
}

int64_t TrainLoader::TargetsOfStep(int64_t step) const {
  CheckStep(step);
  return deal_.options().global_batch_size * deal_.options().seq_len;
}

EvalLoader::EvalLoader(std::shared_ptr<const TokenSource> source, const LoaderOptions& options,
                       int64_t batches)
    : deal_(options),
      source_(std::move(source)),
      index_(source_->size(), options.seq_len, /*shuffle=*/false, /*seed=*/0, source_->Describe()) {
  if (batches < 1) {
    throw std::invalid_argument("[EvalLoader] " + std::to_string(batches) + " batches, want >= 1");
  }
  const int64_t all = (index_.Windows() - 1) / options.global_batch_size + 1;
  samples_ = batches >= all ? index_.Windows() : batches * options.global_batch_size;
}

int64_t EvalLoader::Batches() const {
  return (samples_ - 1) / deal_.options().global_batch_size + 1;
}

void EvalLoader::CheckBatch(int64_t batch) const {
  if (batch < 0 || batch >= Batches()) {
    throw std::invalid_argument("[EvalLoader] batch " + std::to_string(batch) + " of " +
                                std::to_string(Batches()));
  }
}

int64_t EvalLoader::SampleOf(int64_t batch, int64_t micro_index, int64_t data_rank,
                             int64_t row) const {
  CheckBatch(batch);
  const int64_t place = deal_.PlaceOf(micro_index, data_rank, row);
  const int64_t global = deal_.options().global_batch_size;
  const int64_t sample = batch * global + place;
  return place < global && sample < samples_ ? sample : kNoSample;
}

void EvalLoader::MicroBatch(int64_t batch, int64_t micro_index, int64_t data_rank,
                            const Batch& out) const {
  CheckBatchViews(out, deal_.options());
  for (int64_t row = 0; row < deal_.options().micro_batch_size; ++row) {
    const int64_t sample = SampleOf(batch, micro_index, data_rank, row);
    const int64_t offset = sample == kNoSample ? kNoSample : index_.TokenOffset(sample);
    FillRow(*source_, deal_.options(), offset, row, out);
  }
}

int64_t EvalLoader::TargetsOfBatch(int64_t batch) const {
  CheckBatch(batch);
  const int64_t global = deal_.options().global_batch_size;
  return std::min(global, samples_ - batch * global) * deal_.options().seq_len;
}

}  // namespace fsdp
