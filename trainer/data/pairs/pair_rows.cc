#include "trainer/data/pairs/pair_rows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/core/units.h"
#include "trainer/data/check_row.h"
#include "trainer/data/derived_inputs.h"
#include "trainer/data/permutation.h"

namespace fsdp {
namespace {

template <typename Source>
std::vector<double> WeightsOf(const std::vector<Source>& sources) {
  std::vector<double> weights;
  for (const Source& source : sources) weights.push_back(source.weight);
  return weights;
}

// The first source's order is that of `seed` itself, the others' are unrelated to it.
uint64_t OrderOf(uint64_t seed, size_t source) {
  return source == 0 ? seed : HashBytes("data.mixture.source", seed + source);
}

// Memory of a thread: a step allocates nothing.
std::span<int32_t> Scratch(int64_t n) {
  static thread_local std::vector<int32_t> memory;
  if (std::ssize(memory) < n) memory.resize(static_cast<size_t>(n));
  return {memory.data(), static_cast<size_t>(n)};
}

TokenPlace InSample(TokenPlace place, int64_t sample) {
  place.sample = "sample " + std::to_string(sample);
  return place;
}

}  // namespace

PairRowSource::PairRowSource(const PairLengths& lengths, const std::vector<double>& weights,
                             uint64_t seed)
    : lengths_(lengths),
      spec_(PairInputs(lengths.input, lengths.target, lengths.vocab_size)),
      mixture_(weights, seed) {}

void PairRowSource::CheckViews(const Batch& out, int64_t rows) const {
  RequireBatch("PairRows", spec_, rows, out);
}

void PairRowSource::Fill(int64_t sample, int64_t row, const Batch& out) const {
  if (sample == kNoSample) return FinishRow(RowOf(out, row), 0, 0);
  FillRow(sample, RowOf(out, row));
}

void PairRowSource::Derive(const Batch& out) const { DeriveInputs(spec_, out); }

ShownSample PairRowSource::Show(int64_t sample, const Batch& row) const {
  const PairRow filled = RowOf(row, 0);
  const auto part = [](const char* name, std::span<const int32_t> ids, bool is_target) {
    ShownSample::Tokens tokens{name, {ids.begin(), ids.end()}, {}, {}};
    tokens.positions.resize(ids.size());
    std::iota(tokens.positions.begin(), tokens.positions.end(), 0);
    tokens.is_target.assign(ids.size(), is_target);
    return tokens;
  };
  const auto targets = std::count(filled.weights.begin(), filled.weights.end(), 1.0f);
  return {Where(sample),
          {part("input", filled.input.first(static_cast<size_t>(filled.length)), false),
           part("target", filled.target.first(static_cast<size_t>(targets)), true)},
          {}};
}

SpanRows::SpanRows(std::vector<Source> sources, const PairLengths& lengths,
                   const SpanLengths& spans, std::vector<int32_t> sentinels, bool shuffle,
                   uint64_t seed)
    : PairRowSource(lengths, WeightsOf(sources), seed),
      sources_(std::move(sources)),
      spans_(spans),
      sentinels_(std::move(sentinels)),
      seed_(seed) {
  if (spans.input() > lengths.input || spans.target() > lengths.target ||
      spans.spans > std::ssize(sentinels_)) {
    throw std::invalid_argument("[SpanRows] a text's spans do not fit");
  }
  for (size_t k = 0; k < sources_.size(); ++k) {
    const TokenSource& tokens = *sources_[k].tokens;
    if (tokens.size() < spans.length + 1) {
      throw DataError("data: " + tokens.Describe() + ": " + Counted(tokens.size(), "token") +
                      ", but one sample takes " + std::to_string(spans.length + 1) +
                      ": give more data, a shorter data.seq_len or another data.valid");
    }
    indexes_.emplace_back(tokens.size(), spans.length, shuffle, OrderOf(seed, k),
                          tokens.Describe());
  }
}

void SpanRows::FillRow(int64_t sample, const PairRow& row) const {
  const Mixture::Place place = mixture()(sample);
  const Source& source = sources_[static_cast<size_t>(place.source)];
  const int64_t offset = indexes_[static_cast<size_t>(place.source)].TokenOffset(place.sample);
  const std::span<int32_t> text = Scratch(spans_.length);
  source.tokens->Read(offset, text);
  CheckRow({.tokens = text}, {lengths_.vocab_size}, [&](int64_t token) {
    return InSample(PlaceIn(*source.tokens, offset + token), sample);
  });
  CorruptSpans(text, spans_, sentinels_, source.eot, seed_, sample, row);
}

std::string SpanRows::Where(int64_t sample) const {
  const Mixture::Place place = mixture()(sample);
  const auto k = static_cast<size_t>(place.source);
  return sources_[k].tokens->Where(indexes_[k].TokenOffset(place.sample));
}

PairRows::Fitted PairRows::Fit(std::shared_ptr<const SampleStore> store, const PairLengths& lengths,
                               TooLong too_long) {
  Fitted fitted;
  fitted.cuts = too_long == TooLong::kCut;
  for (int64_t i = 0; i < store->size(); ++i) {
    const int64_t length = store->Length(i), target = store->Targets(i, length);
    fitted.longest_input = std::max(fitted.longest_input, length - target);
    fitted.longest_target = std::max(fitted.longest_target, target);
    const bool input_fits = length - target <= lengths.input, fits = target <= lengths.target;
    if (!input_fits || !fits) {
      if (too_long == TooLong::kError) {
        throw DataError("data: " + store->Where(i) + ": " +
                        (input_fits ? "a target of " : "an input of ") +
                        Counted(input_fits ? target : length - target, "token") + ", more than " +
                        (input_fits ? "data.target_len = " + std::to_string(lengths.target)
                                    : "data.seq_len = " + std::to_string(lengths.input)) +
                        ": raise it, or let data.too_long be cut or drop");
      }
      ++fitted.longer;
      if (too_long == TooLong::kDrop) continue;
    }
    fitted.samples.push_back(static_cast<int32_t>(i));
  }
  if (fitted.samples.empty()) {
    throw DataError("data: " + store->Describe() +
                    ": no pair is left that fits data.seq_len = " + std::to_string(lengths.input) +
                    " and data.target_len = " + std::to_string(lengths.target));
  }
  fitted.store = std::move(store);
  return fitted;
}

PairRows::Parts PairRows::HoldOut(const Fitted& all, double fraction) {
  const SampleStore& store = *all.store;
  const auto tokens = static_cast<double>(store.Begin(store.size()));
  const auto first = static_cast<int64_t>(tokens - std::floor(tokens * fraction));
  const auto cut = std::find_if(all.samples.begin(), all.samples.end(),
                                [&](int32_t sample) { return store.Begin(sample) >= first; });
  if (cut == all.samples.begin() || cut == all.samples.end()) {
    throw DataError(
        "data: " + store.Describe() + ": " + Counted(std::ssize(all.samples), "pair") +
        " cannot be held out by data.valid.fraction: nothing would be left on one side");
  }
  Parts parts{all, all};
  parts.train.samples.assign(all.samples.begin(), cut);
  parts.valid.samples.assign(cut, all.samples.end());
  return parts;
}

PairRows::PairRows(std::vector<Source> sources, const PairLengths& lengths, bool shuffle,
                   uint64_t seed)
    : PairRowSource(lengths, WeightsOf(sources), seed),
      sources_(std::move(sources)),
      shuffle_(shuffle),
      seed_(seed) {}

Tally PairRows::Count(int64_t source) const {
  const Fitted& pairs = sources_.at(static_cast<size_t>(source)).pairs;
  return {{"samples", Rows(source)},
          {pairs.store->Noun() + "s", pairs.store->size()},
          {"longest input", pairs.longest_input},
          {"longest target", pairs.longest_target},
          {"cut", pairs.cuts ? pairs.longer : 0},
          {"dropped", pairs.cuts ? 0 : pairs.longer}};
}

PairRows::Place PairRows::PlaceOf(int64_t sample) const {
  const Mixture::Place place = mixture()(sample);
  const auto k = static_cast<size_t>(place.source);
  const Fitted& pairs = sources_[k].pairs;
  const auto n = std::ssize(pairs.samples);
  const int64_t epoch = place.sample / n, at = place.sample % n;
  const int64_t which =
      shuffle_ ? Permutation(n, OrderOf(seed_, k), static_cast<uint64_t>(epoch))(at) : at;
  const int64_t i = pairs.samples[static_cast<size_t>(which)];
  const int64_t length = pairs.store->Length(i), target = pairs.store->Targets(i, length);
  return {*pairs.store, i, length - target, target};
}

int64_t PairRows::Targets(int64_t begin, int64_t end) const {
  int64_t targets = 0;
  for (int64_t sample = begin; sample < end; ++sample) {
    targets += std::min(PlaceOf(sample).target, lengths_.target);
  }
  return targets;
}

int64_t PairRows::InputTokens(int64_t begin, int64_t end) const {
  int64_t tokens = 0;
  for (int64_t sample = begin; sample < end; ++sample) {
    const Place place = PlaceOf(sample);
    tokens += std::min(place.input, lengths_.input) + std::min(place.target, lengths_.target);
  }
  return tokens;
}

std::string PairRows::Where(int64_t sample) const {
  const Place place = PlaceOf(sample);
  return place.store.Where(place.sample);
}

void PairRows::FillRow(int64_t sample, const PairRow& row) const {
  const Place place = PlaceOf(sample);
  const int64_t length = place.input + place.target;
  static thread_local std::vector<float> weights;
  if (std::ssize(weights) < length) weights.resize(static_cast<size_t>(length));
  const std::span<int32_t> tokens = Scratch(length);
  place.store.Read(place.sample, tokens, {weights.data(), tokens.size()});
  CheckRow({.tokens = tokens}, {lengths_.vocab_size}, [&](int64_t token) {
    return InSample(place.store.PlaceOf(place.sample, token), sample);
  });
  // A sample that is cut keeps its end-of-text token.
  const auto take = [&](int64_t from, int64_t count, std::span<int32_t> out) {
    const int64_t n = std::min(count, std::ssize(out));
    std::copy_n(tokens.begin() + from, n, out.begin());
    out[static_cast<size_t>(n - 1)] = tokens[static_cast<size_t>(from + count - 1)];
    return n;
  };
  const int64_t input = take(0, place.input, row.input);
  FinishRow(row, input, take(place.input, place.target, row.target));
}

}  // namespace fsdp
