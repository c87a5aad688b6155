// Who sends how much to whom in an all-to-all of uneven counts: fixed by a layout that all ranks
// know, so nothing is agreed on at run time.
// Tests: tests/trainer/comm/communicator_suite_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_EXCHANGE_LAYOUT_H_
#define FSDP_TRAIN_TRAINER_COMM_EXCHANGE_LAYOUT_H_

#include <cstdint>
#include <vector>

namespace fsdp {

// Elements of a tensor.
struct Stretch {
  int64_t begin = 0, count = 0;
};

class ExchangeLayout {
 public:
  // counts, begins: [size, size], by sender, then receiver. Rank r has counts[r, s] elements for s,
  // from element begins[r, s] of what it sends; stretches for different ranks may be the same
  // memory. Arriving elements lie one behind the other, by sender. Throws std::invalid_argument for
  // another number of entries, or one below 0.
  ExchangeLayout(int size, std::vector<int64_t> counts, std::vector<int64_t> begins);
  // With begins[r, s] behind all that r has for earlier ranks.
  ExchangeLayout(int size, const std::vector<int64_t>& counts);

  int size() const { return size_; }
  Stretch Sent(int from, int to) const { return {begins_[At(from, to)], counts_[At(from, to)]}; }
  Stretch Arrived(int to, int from) const {
    return {arrivals_[At(from, to)], counts_[At(from, to)]};
  }
  int64_t InElements(int rank) const;   // The least elements of what the rank sends from,
  int64_t OutElements(int rank) const;  // and of where it receives.
  int64_t ToOthers(int rank) const;     // Elements that other ranks take from it.
  int64_t FromOthers(int rank) const;
  int64_t most() const { return most_; }    // The largest count.
  int64_t total() const { return total_; }  // The sum of all counts.
  uint64_t hash() const { return hash_; }   // The same for equal layouts alone.

 private:
  int64_t At(int from, int to) const { return static_cast<int64_t>(from) * size_ + to; }

  int size_;
  std::vector<int64_t> counts_, begins_, arrivals_;
  int64_t most_ = 0, total_ = 0;
  uint64_t hash_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_EXCHANGE_LAYOUT_H_
