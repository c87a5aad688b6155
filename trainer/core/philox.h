// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011): a counter and a key give four words, with no state between calls. A tensor's element
// therefore has the same value, whichever rank computes it.
#ifndef FSDP_TRAIN_TRAINER_CORE_PHILOX_H_
#define FSDP_TRAIN_TRAINER_CORE_PHILOX_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace fsdp {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

PhiloxCounter Philox(PhiloxCounter counter, PhiloxKey key);

// Numbers of one stream, addressed by index. A stream is (seed, name, salt): two streams that
// differ in any of them are unrelated. Draw one kind of number from a stream: the kinds share
// words.
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view name, uint64_t salt = 0);

  uint32_t Bits(uint64_t index) const;
  float Uniform(uint64_t index) const;               // In (0, 1): (k + 1/2) 2^-23, exact.
  uint64_t Below(uint64_t index, uint64_t n) const;  // In [0, n), n > 0; bias below n / 2^64.
  // Standard normal by Box and Muller in float64, rounded to float32. Elements 2k and 2k + 1 share
  // a counter.
  float Normal(uint64_t index) const;

 private:
  PhiloxCounter Block(uint64_t block) const;

  PhiloxKey key_;
  uint64_t stream_;
};

// FNV-1a, 64 bits, seed and result mixed by splitmix64's finaliser: names that differ in one letter
// differ everywhere, and no seed turns one name into another.
uint64_t HashBytes(std::string_view bytes, uint64_t seed = 0);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_PHILOX_H_
