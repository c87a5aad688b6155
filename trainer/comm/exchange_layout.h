// Who sends how much to whom in an all-to-all of uneven counts: fixed by a layout that all ranks
// know, so nothing is agreed on at run time. It takes memory for each rank, and for each pair of
// ranks that have something for each other.
// Tests: tests/trainer/comm/communicator_suite_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_EXCHANGE_LAYOUT_H_
#define FSDP_TRAIN_TRAINER_COMM_EXCHANGE_LAYOUT_H_

#include <cstdint>
#include <span>
#include <vector>

namespace fsdp {

// Elements of a tensor.
struct Stretch {
  int64_t begin = 0, count = 0;
};

class ExchangeLayout {
 public:
  // `from` has these elements for `to`, from element `begin` of what it sends.
  struct Pair {
    int from = 0, to = 0;
    int64_t begin = 0, count = 0;
  };
  // In order of `from`, then `to`, each pair once. Arriving elements lie one behind the other, by
  // sender; stretches for different ranks may be the same memory. Throws std::invalid_argument for
  // another order, a rank that is none, or a number below 0.
  ExchangeLayout(int size, const std::vector<Pair>& pairs);
  // counts, begins: [size, size], by sender, then receiver. Throws as above, and for another number
  // of entries.
  ExchangeLayout(int size, const std::vector<int64_t>& counts, const std::vector<int64_t>& begins);
  // With begins[r, s] behind all that r has for earlier ranks.
  ExchangeLayout(int size, const std::vector<int64_t>& counts);

  int size() const { return size_; }
  // Without elements where there are none.
  Stretch Sent(int from, int to) const;
  Stretch Arrived(int to, int from) const;
  int64_t InElements(int rank) const;  // The least elements of what the rank sends from,
  int64_t OutElements(int rank) const { return arrived_[rank]; }  // and of where it receives.
  int64_t ToOthers(int rank) const;  // Elements that other ranks take from it.
  int64_t FromOthers(int rank) const;
  int64_t most() const { return most_; }    // The largest count.
  int64_t total() const { return total_; }  // The sum of all counts.
  uint64_t hash() const { return hash_; }   // The same for equal layouts alone.

 private:
  struct Entry {
    int64_t to = 0, begin = 0, count = 0, arrival = 0;
  };
  std::span<const Entry> From(int rank) const {
    return std::span(entries_).subspan(first_[rank], first_[rank + 1] - first_[rank]);
  }
  Entry At(int from, int to) const;

  int size_;
  std::vector<Entry> entries_;    // In order of the pairs, none without elements.
  std::vector<int64_t> first_;    // By sender, the index of its first; the end.
  std::vector<int64_t> arrived_;  // By receiver.
  int64_t most_ = 0, total_ = 0;
  uint64_t hash_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_EXCHANGE_LAYOUT_H_
