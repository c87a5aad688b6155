// Inputs for fuzz targets without a fuzzer: seeds, changed at random, the same ones every time. A
// target is a plain function that takes bytes, as libFuzzer calls it (LLVMFuzzerTestOneInput).
#ifndef FSDP_TRAIN_TESTS_FUZZ_MUTATOR_H_
#define FSDP_TRAIN_TESTS_FUZZ_MUTATOR_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/everything.h"

namespace fsdp {

// Number of inputs: FUZZ_INPUTS, or `all`. A run has a quarter of them, and a sixteenth under
// AddressSanitizer, where each takes sixteen times as long; each part has inputs of its own.
inline int FuzzInputs(int all) {
  if (const char* text = std::getenv("FUZZ_INPUTS")) return std::atoi(text);
  if (testing::Everything()) return all;
#ifdef __SANITIZE_ADDRESS__
  return all / 16;
#else
  return all / 4;
#endif
}

class Mutator {
 public:
  // `dictionary`: pieces of the format. Inputs have at most `max_bytes`, or a seed's length if that
  // is more. Needs at least one seed.
  Mutator(uint64_t seed, std::vector<std::string> seeds, std::vector<std::string> dictionary,
          size_t max_bytes)
      : random_(seed + 1000 * testing::Part(180)),
        seeds_(std::move(seeds)),
        dictionary_(std::move(dictionary)),
        max_bytes_(max_bytes) {}

  // A seed with one change, or with up to six.
  std::string Next() {
    std::string text = seeds_[Below(seeds_.size())];
    for (size_t changes = Below(2) == 0 ? 1 : 1 + Below(6); changes > 0; --changes) Change(text);
    if (text.size() > std::max(max_bytes_, seeds_[0].size())) text.resize(max_bytes_);
    return text;
  }

 private:
  size_t Below(size_t n) { return static_cast<size_t>(random_() % n); }
  size_t Place(const std::string& text) { return Below(text.size() + 1); }
  // A part of a text, short more often than long.
  std::pair<size_t, size_t> Part(const std::string& text) {
    const size_t at = Place(text), longest = text.size() - at;
    const size_t scale = Below(3) == 0 ? longest : std::min<size_t>(longest, 16);
    return {at, Below(scale + 1)};
  }

  void Change(std::string& text) {
    constexpr uint8_t kTelling[] = {0, 1, 0x7f, 0x80, 0xff, '"', '{', '[', '0', '9', '-', '\n'};
    const auto [at, count] = Part(text);
    switch (Below(9)) {
      case 0:  // One bit.
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << Below(8)));
        break;
      case 1:  // One byte.
        if (at < text.size()) text[at] = static_cast<char>(random_());
        break;
      case 2:
        if (at < text.size()) text[at] = static_cast<char>(kTelling[Below(std::size(kTelling))]);
        break;
      case 3:
        text.erase(at, count);
        break;
      case 4:  // Cut short.
        if (Below(4) == 0) text.resize(at);
        break;
      case 5:  // Again.
        text.insert(Place(text), text.substr(at, count));
        break;
      case 6: {  // A part of another seed.
        const std::string& other = seeds_[Below(seeds_.size())];
        const auto [from, length] = Part(other);
        text.replace(at, count, other, from, length);
        break;
      }
      case 7:
        if (!dictionary_.empty()) {
          text.replace(at, Below(2) * count, dictionary_[Below(dictionary_.size())]);
        }
        break;
      default: {  // A number, where there is one.
        const size_t digit = text.find_first_of("0123456789", at);
        if (digit == std::string::npos) break;
        const size_t end = text.find_first_not_of("0123456789", digit);
        constexpr const char* kNumbers[] = {"0",
                                            "1",
                                            "2",
                                            "-1",
                                            "255",
                                            "256",
                                            "65536",
                                            "4294967296",
                                            "9223372036854775807",
                                            "18446744073709551615",
                                            "1e308",
                                            "0.5"};
        text.replace(digit, end == std::string::npos ? end : end - digit,
                     kNumbers[Below(std::size(kNumbers))]);
      }
    }
  }

  std::mt19937_64 random_;
  const std::vector<std::string> seeds_, dictionary_;
  const size_t max_bytes_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_FUZZ_MUTATOR_H_
