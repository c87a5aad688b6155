#include "trainer/data/sample_index.h"

#include <stdexcept>
#include <string>

#include "trainer/core/errors.h"
#include "trainer/core/units.h"
#include "trainer/data/permutation.h"

namespace fsdp {

SampleIndex::SampleIndex(int64_t num_tokens, int64_t seq_len, bool shuffle, uint64_t seed,
                         std::string_view what)
    : seq_len_(seq_len), shuffle_(shuffle), seed_(seed) {
  if (seq_len < 1) {
    throw std::invalid_argument("[SampleIndex] seq_len is " + std::to_string(seq_len) +
                                ", want >= 1");
  }
  windows_ = (num_tokens - 1) / seq_len;
  if (num_tokens < 1 || windows_ < 1) {
    throw DataError("data: " + std::string(what) + ": " + Counted(num_tokens, "token") +
                    ", but one sample takes data.seq_len + 1 = " + std::to_string(seq_len + 1) +
                    ": give more data, a shorter data.seq_len or another data.valid");
  }
}

int64_t SampleIndex::TokenOffset(int64_t sample) const {
  if (sample < 0) {
    throw std::invalid_argument("[SampleIndex::TokenOffset] sample is " + std::to_string(sample));
  }
  const int64_t epoch = sample / windows_, position = sample % windows_;
  const int64_t window =
      shuffle_ ? Permutation(windows_, seed_, static_cast<uint64_t>(epoch))(position) : position;
  return window * seq_len_;
}

}  // namespace fsdp
