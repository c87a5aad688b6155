#include "trainer/core/philox.h"

#include <cmath>
#include <numbers>

namespace fsdp {

PhiloxCounter Philox(PhiloxCounter c, PhiloxKey k) {
  // Multipliers and Weyl increments of the paper's reference implementation (Random123, philox.h).
  constexpr uint32_t kM0 = 0xD2511F53u, kM1 = 0xCD9E8D57u;
  constexpr uint32_t kW0 = 0x9E3779B9u, kW1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{kM0} * c[0], p1 = uint64_t{kM1} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k = {k[0] + kW0, k[1] + kW1};
  }
  return c;
}

namespace {

uint64_t Mix(uint64_t h) {
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}

}  // namespace

uint64_t HashBytes(std::string_view bytes, uint64_t seed) {
  uint64_t h = 0xcbf29ce484222325u ^ Mix(seed);  // Unmixed, a seed of 3 would make "a" of "b".
  for (const unsigned char b : bytes) h = (h ^ b) * 0x100000001b3u;
  return Mix(h);
}

RandomStream::RandomStream(uint64_t seed, std::string_view name, uint64_t salt)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
      stream_(HashBytes(name, salt)) {}

PhiloxCounter RandomStream::Block(uint64_t block) const {
  return Philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                 static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                key_);
}

uint32_t RandomStream::Bits(uint64_t index) const { return Block(index / 4)[index % 4]; }

float RandomStream::Uniform(uint64_t index) const {
  return (static_cast<float>(Bits(index) >> 9) + 0.5f) * 0x1p-23f;
}

uint64_t RandomStream::Below(uint64_t index, uint64_t n) const {
  const PhiloxCounter c = Block(index);
  const uint64_t bits = uint64_t{c[0]} << 32 | c[1];
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * n) >> 64);
}

float RandomStream::Normal(uint64_t index) const {
  const PhiloxCounter c = Block(index / 2);
  const double u = ((uint64_t{c[0]} << 21 ^ c[1] >> 11) + 0.5) * 0x1p-53;
  const double angle = 2 * std::numbers::pi * ((uint64_t{c[2]} << 21 ^ c[3] >> 11) * 0x1p-53);
  const double radius = std::sqrt(-2 * std::log(u));
  return static_cast<float>(radius * (index % 2 ? std::sin(angle) : std::cos(angle)));
}

}  // namespace fsdp
