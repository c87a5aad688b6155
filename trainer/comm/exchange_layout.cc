#include "trainer/comm/exchange_layout.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "trainer/core/philox.h"

namespace fsdp {
namespace {

using Pair = ExchangeLayout::Pair;

std::vector<int64_t> OneBehindTheOther(int size, const std::vector<int64_t>& counts) {
  std::vector<int64_t> begins(counts.size());
  for (size_t i = 0; i < counts.size(); ++i) {
    begins[i] = i % size == 0 ? 0 : begins[i - 1] + counts[i - 1];
  }
  return begins;
}

std::vector<Pair> PairsOf(int size, const std::vector<int64_t>& counts,
                          const std::vector<int64_t>& begins) {
  const size_t entries = static_cast<size_t>(size) * size;
  if (size < 1 || counts.size() != entries || begins.size() != entries) {
    throw std::invalid_argument("[ExchangeLayout] counts and begins, want " +
                                std::to_string(entries) + " entries each");
  }
  std::vector<Pair> pairs;
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      const size_t i = static_cast<size_t>(from) * size + to;
      pairs.push_back({from, to, begins[i], counts[i]});
    }
  }
  return pairs;
}

}  // namespace

ExchangeLayout::ExchangeLayout(int size, const std::vector<int64_t>& counts)
    : ExchangeLayout(size, counts, OneBehindTheOther(size, counts)) {}

ExchangeLayout::ExchangeLayout(int size, const std::vector<int64_t>& counts,
                               const std::vector<int64_t>& begins)
    : ExchangeLayout(size, PairsOf(size, counts, begins)) {}

ExchangeLayout::ExchangeLayout(int size, const std::vector<Pair>& pairs)
    : size_(size), arrived_(std::max(size, 0)) {
  const auto key = [](const Pair& pair) { return std::pair(pair.from, pair.to); };
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto [from, to, begin, count] = pairs[i];
    if (from < 0 || from >= size || to < 0 || to >= size || begin < 0 || count < 0 ||
        (i > 0 && key(pairs[i - 1]) >= key(pairs[i]))) {
      throw std::invalid_argument("[ExchangeLayout] " + std::to_string(count) + " elements from " +
                                  std::to_string(begin) + " on, of rank " + std::to_string(from) +
                                  " for rank " + std::to_string(to) +
                                  ": want pairs of ranks in order, and nothing below 0");
    }
    if (count == 0) continue;
    first_.resize(from + 1, std::ssize(entries_));
    entries_.push_back({to, begin, count, std::exchange(arrived_[to], arrived_[to] + count)});
    most_ = std::max(most_, count);
    total_ += count;
  }
  first_.resize(size + 1, std::ssize(entries_));
  const auto bytes = [](const auto& values) {
    return std::string_view(reinterpret_cast<const char*>(values.data()),
                            values.size() * sizeof(values[0]));
  };
  hash_ = HashBytes(std::string(bytes(first_)) + std::string(bytes(entries_)));
}

ExchangeLayout::Entry ExchangeLayout::At(int from, int to) const {
  const std::span<const Entry> entries = From(from);
  const auto found = std::ranges::lower_bound(entries, to, {}, &Entry::to);
  return found != entries.end() && found->to == to ? *found : Entry();
}

Stretch ExchangeLayout::Sent(int from, int to) const {
  const Entry entry = At(from, to);
  return {entry.begin, entry.count};
}

Stretch ExchangeLayout::Arrived(int to, int from) const {
  const Entry entry = At(from, to);
  return {entry.arrival, entry.count};
}

int64_t ExchangeLayout::InElements(int rank) const {
  int64_t end = 0;
  for (const Entry& entry : From(rank)) end = std::max(end, entry.begin + entry.count);
  return end;
}

int64_t ExchangeLayout::ToOthers(int rank) const {
  int64_t sum = -At(rank, rank).count;
  for (const Entry& entry : From(rank)) sum += entry.count;
  return sum;
}

int64_t ExchangeLayout::FromOthers(int rank) const { return arrived_[rank] - At(rank, rank).count; }

}  // namespace fsdp
