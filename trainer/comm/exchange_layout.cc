#include "trainer/comm/exchange_layout.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "trainer/core/philox.h"

namespace fsdp {
namespace {

std::vector<int64_t> OneBehindTheOther(int size, const std::vector<int64_t>& counts) {
  std::vector<int64_t> begins(counts.size());
  for (size_t i = 0; i < counts.size(); ++i) {
    begins[i] = i % size == 0 ? 0 : begins[i - 1] + counts[i - 1];
  }
  return begins;
}

}  // namespace

ExchangeLayout::ExchangeLayout(int size, const std::vector<int64_t>& counts)
    : ExchangeLayout(size, counts, OneBehindTheOther(size, counts)) {}

ExchangeLayout::ExchangeLayout(int size, std::vector<int64_t> counts, std::vector<int64_t> begins)
    : size_(size), counts_(std::move(counts)), begins_(std::move(begins)) {
  const size_t entries = static_cast<size_t>(size) * size;
  const auto below_zero = [](int64_t n) { return n < 0; };
  if (size < 1 || counts_.size() != entries || begins_.size() != entries ||
      std::ranges::any_of(counts_, below_zero) || std::ranges::any_of(begins_, below_zero)) {
    throw std::invalid_argument("[ExchangeLayout] counts and begins, want " +
                                std::to_string(entries) + " entries each, none below 0");
  }
  arrivals_.resize(entries);
  std::string bytes;
  for (int to = 0; to < size; ++to) {
    int64_t arrived = 0;
    for (int from = 0; from < size; ++from) {
      arrivals_[At(from, to)] = std::exchange(arrived, arrived + counts_[At(from, to)]);
    }
  }
  most_ = std::ranges::max(counts_);
  total_ = std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
  for (const std::vector<int64_t>* entry : {&counts_, &begins_}) {
    for (const int64_t n : *entry) bytes += std::to_string(n) + " ";
  }
  hash_ = HashBytes(bytes);
}

int64_t ExchangeLayout::InElements(int rank) const {
  int64_t end = 0;
  for (int to = 0; to < size_; ++to) {
    const Stretch sent = Sent(rank, to);
    if (sent.count > 0) end = std::max(end, sent.begin + sent.count);
  }
  return end;
}

int64_t ExchangeLayout::OutElements(int rank) const {
  return FromOthers(rank) + counts_[At(rank, rank)];
}

int64_t ExchangeLayout::ToOthers(int rank) const {
  int64_t sum = -counts_[At(rank, rank)];
  for (int to = 0; to < size_; ++to) sum += counts_[At(rank, to)];
  return sum;
}

int64_t ExchangeLayout::FromOthers(int rank) const {
  int64_t sum = -counts_[At(rank, rank)];
  for (int from = 0; from < size_; ++from) sum += counts_[At(from, rank)];
  return sum;
}

}  // namespace fsdp
