// Clicks with their labels, as files hold them or a function draws them.
// Tests: tests/trainer/data/clicks/csv_clicks_test.cc
// Tests: tests/trainer/data/clicks/click_rows_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_CLICKS_CLICK_STORE_H_
#define FSDP_TRAIN_TRAINER_DATA_CLICKS_CLICK_STORE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/data/data_files.h"

namespace fsdp {

// The columns of a model's clicks: so many numbers, and for each categorical column the most ids
// that a cell of it has, and the rows of its table, at least 1.
struct ClickColumns {
  int64_t dense = 0;
  std::vector<int64_t> bags, rows;

  int64_t slots() const {
    int64_t sum = 0;
    for (const int64_t bag : bags) sum += bag;
    return sum;
  }
};

// Safe for any number of threads.
class ClickStore {
 public:
  virtual ~ClickStore() = default;

  virtual int64_t size() const = 0;
  // Fills a number for each dense column and two words for each slot (click_batch.h), a column's
  // ids from its first slot on. Returns the label, 0 or 1. Throws DataError that names the place.
  virtual float Read(int64_t i, std::span<float> dense, std::span<int32_t> ids) const = 0;
  virtual std::string Describe() const = 0;         // In a few words, for messages.
  virtual std::vector<DataFile> Files() const = 0;  // The files that are read, for later runs to
                                                    // compare.
  // The columns, and their names: of the numbers, then of the ids.
  virtual const ClickColumns& columns() const = 0;
  virtual std::vector<std::string> Names() const = 0;
  // The probability of label 1, given what a model sees of click i. Empty: unknown.
  virtual std::optional<double> Probability(int64_t) const { return std::nullopt; }
};

// The inputs of a model that predicts clicks, in this order: the numbers of the dense columns, fp32
// [columns]; the ids of the categorical ones, int32 [slots, 2], the two words of a 64-bit id, the
// low one first, and kNoId in the slots without one; a label, fp32, 0 or 1; a weight.
enum ClickInput : size_t { kDense, kIds, kClick, kClickWeight };

// An absent id: -1 in both words. An id of this number is written as another one of the same row.
inline constexpr uint64_t kNoId = ~uint64_t{0};

// The inputs' specification. Both numbers are at least 1; slots: the most ids of a cell, summed
// over the categorical columns.
BatchSpec ClickInputs(int64_t columns, int64_t slots);

// Whether these are a model's inputs.
bool IsOfClicks(const BatchSpec& spec);

// An id, and as its two words.
inline uint64_t ReadId(std::span<const int32_t, 2> words) {
  return static_cast<uint32_t>(words[0]) | static_cast<uint64_t>(static_cast<uint32_t>(words[1]))
                                               << 32;
}
inline void WriteId(uint64_t id, std::span<int32_t, 2> words) {
  words[0] = static_cast<int32_t>(static_cast<uint32_t>(id));
  words[1] = static_cast<int32_t>(static_cast<uint32_t>(id >> 32));
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_CLICKS_CLICK_STORE_H_
