#include "trainer/data/clicks/click_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/core/units.h"
#include "trainer/data/clicks/click_store.h"
#include "trainer/data/permutation.h"

namespace fsdp {
namespace {

std::vector<double> WeightsOf(const std::vector<ClickSource>& sources) {
  std::vector<double> weights;
  for (const ClickSource& source : sources) weights.push_back(source.weight);
  return weights;
}

const BatchSpec& Checked(const BatchSpec& spec) {
  if (!IsOfClicks(spec)) throw std::invalid_argument("[ClickRows] a model of something else");
  return spec;
}

}  // namespace

ClickSource ClickRows::Whole(std::shared_ptr<const ClickStore> store) {
  ClickSource all;
  all.clicks.resize(static_cast<size_t>(store->size()));
  std::iota(all.clicks.begin(), all.clicks.end(), 0);
  all.store = std::move(store);
  return all;
}

ClickRows::Parts ClickRows::HoldOut(const ClickSource& all, double fraction) {
  const auto n = std::ssize(all.clicks);
  const auto held = static_cast<int64_t>(std::floor(static_cast<double>(n) * fraction));
  if (held == 0 || held == n) {
    throw DataError("data: " + all.store->Describe() + ": " + Counted(n, "row") +
                    " cannot be held out by data.valid.fraction: nothing would be left on one "
                    "side");
  }
  Parts parts{{all.store, {}, all.weight}, {all.store, {}, all.weight}};
  const Permutation order(n, HashBytes("data.valid.fraction"), /*tweak=*/0);
  for (int64_t i = 0; i < n; ++i) {
    (order(i) < n - held ? parts.train : parts.valid)
        .clicks.push_back(all.clicks[static_cast<size_t>(i)]);
  }
  return parts;
}

ClickRows::ClickRows(const BatchSpec& spec, std::vector<ClickSource> sources, bool shuffle,
                     uint64_t seed)
    : spec_(Checked(spec)),
      columns_(spec.inputs[kDense].sample[0]),
      slots_(spec.inputs[kIds].sample[0]),
      sources_(std::move(sources)),
      mixture_(WeightsOf(sources_), seed),
      shuffle_(shuffle),
      seed_(seed) {}

void ClickRows::CheckViews(const Batch& out, int64_t rows) const {
  RequireBatch("ClickRows", spec_, rows, out);
}

ShownSample ClickRows::Show(int64_t sample, const Batch& row) const {
  const ClickStore& store = *sources_[static_cast<size_t>(mixture_(sample).source)].store;
  const std::vector<std::string> names = store.Names();
  const auto text = [](float value) {
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%.7g", static_cast<double>(value));
    return std::string(digits);
  };
  ShownSample shown;
  shown.facts.emplace_back("label", text(row.inputs[kClick].As<float>()[0]));
  auto name = names.begin();
  const auto* const dense = row.inputs[kDense].As<float>();
  for (int64_t i = 0; i < columns_; ++i) shown.facts.emplace_back(*name++, text(dense[i]));
  const auto* slot = row.inputs[kIds].As<int32_t>();
  for (const int64_t bag : store.columns().bags) {
    std::string ids;
    for (int64_t i = 0; i < bag; ++i, slot += 2) {
      const uint64_t id = ReadId(std::span<const int32_t, 2>(slot, 2));
      if (id != kNoId) ids += (ids.empty() ? "" : "|") + std::to_string(id);
    }
    shown.facts.emplace_back(*name++, ids);
  }
  return shown;
}

void ClickRows::Fill(int64_t sample, int64_t row, const Batch& out) const {
  static thread_local std::vector<float> dense;
  static thread_local std::vector<int32_t> ids;
  dense.assign(static_cast<size_t>(columns_), 0);
  ids.assign(static_cast<size_t>(2 * slots_), -1);
  float label = 0;
  if (sample != kNoSample) {
    const Mixture::Place place = mixture_(sample);
    const auto k = static_cast<size_t>(place.source);
    const ClickSource& source = sources_[k];
    const auto n = std::ssize(source.clicks);
    const int64_t epoch = place.sample / n, at = place.sample % n;
    // The first source's order is that of the seed itself, the others' are unrelated to it.
    const uint64_t order = k == 0 ? seed_ : HashBytes("data.mixture.source", seed_ + k);
    const int64_t which = shuffle_ ? Permutation(n, order, static_cast<uint64_t>(epoch))(at) : at;
    label = source.store->Read(source.clicks[static_cast<size_t>(which)], dense, ids);
  }
  const auto put = [&](ClickInput input, const auto* values, int64_t count) {
    using T = std::remove_cvref_t<decltype(*values)>;
    if (out.inputs[input].data == nullptr) return;
    std::copy_n(values, count, out.inputs[input].As<T>() + row * count);
  };
  const float weight = sample == kNoSample ? 0 : 1;
  put(kDense, dense.data(), columns_);
  put(kIds, ids.data(), 2 * slots_);
  put(kClick, &label, 1);
  put(kClickWeight, &weight, 1);
}

}  // namespace fsdp
