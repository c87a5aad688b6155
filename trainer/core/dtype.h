#ifndef FSDP_TRAIN_TRAINER_CORE_DTYPE_H_
#define FSDP_TRAIN_TRAINER_CORE_DTYPE_H_

#include <bit>
#include <cstdint>
#include <string_view>

namespace fsdp {

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16, kInt32, kInt64, kUInt8 };

int64_t SizeOf(DType dtype);         // Bytes of one element.
std::string_view Name(DType dtype);  // "fp32", "bf16", "fp16", "int32", "int64", "uint8".

// The upper half of a float32. Rounds to nearest, ties to even; a NaN stays a (quiet) NaN.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<uint16_t>(nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

// IEEE binary16, converted by the compiler's own type: F16C instructions where there are any.
struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  explicit Float16(float value) : bits(std::bit_cast<uint16_t>(static_cast<_Float16>(value))) {}
  explicit operator float() const { return static_cast<float>(std::bit_cast<_Float16>(bits)); }
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_DTYPE_H_
