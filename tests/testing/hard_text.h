// Text that tokenizers stumble over: several scripts, emoji, runs of white space, control
// characters, what normal forms change, bytes that are no UTF-8, words of thousands of letters,
// special tokens. tools/reference/tokenizer_fixtures.py draws the same bytes.
#ifndef FSDP_TRAIN_TESTS_TESTING_HARD_TEXT_H_
#define FSDP_TRAIN_TESTS_TESTING_HARD_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace fsdp::testing {

std::string HardText(uint64_t seed, size_t size);  // At least `size` bytes.

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_HARD_TEXT_H_
