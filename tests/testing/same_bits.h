// For ops that promise the same bits for any number of threads, and from run to run.
#ifndef FSDP_TRAIN_TESTS_TESTING_SAME_BITS_H_
#define FSDP_TRAIN_TESTS_TESTING_SAME_BITS_H_

#include <functional>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// The host's memory as a tensor: `data` outlives its use.
View ViewOf(std::vector<float>& data, const Shape& shape);
inline View ViewOf(std::vector<float>& data) {
  return ViewOf(data, {static_cast<int64_t>(data.size())});
}

std::vector<float> Floats(const std::vector<double>& values);

// `run` makes its calls on a cpu stream, synchronizes it and returns what came out. It is run with
// 1, 2, 3 and 5 threads, twice each; every result must equal the first, bit for bit.
void ExpectSameBits(const std::function<std::vector<float>(Stream&)>& run);

bool SameBits(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TESTING_SAME_BITS_H_
