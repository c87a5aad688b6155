// The contract of quantize.h, element by element: packed bytes and values, to the bit.
#ifndef FSDP_TRAIN_TESTS_TRAINER_OPS_QUANTIZE_MODEL_H_
#define FSDP_TRAIN_TESTS_TRAINER_OPS_QUANTIZE_MODEL_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "trainer/ops/quantized_layout.h"

namespace fsdp {

inline constexpr QuantizedForm kForms[] = {QuantizedForm::kInt8, QuantizedForm::kFp8,
                                           QuantizedForm::kInt4};
inline constexpr int kBlocks[] = {64, 128, 256};

inline double LevelsOf(QuantizedForm form) {
  return form == QuantizedForm::kInt8 ? 127 : form == QuantizedForm::kFp8 ? 448 : 7;
}

// e4m3: S EEEE MMM, bias 7, no infinity; NaN where all bits but S are 1.
inline double E4M3(int code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

inline float ModelScale(QuantizedForm form, const std::vector<float>& block) {
  float most = 0;
  for (const float x : block) {
    if (!std::isfinite(x)) return NAN;
    most = std::max(most, std::fabs(x));
  }
  // In int8 127 times a scale may overflow; then the scale is the next smaller one.
  float scale = std::max(most / static_cast<float>(LevelsOf(form)), 0x1p-94f);
  if (std::isinf(scale * static_cast<float>(LevelsOf(form)))) scale = std::nextafter(scale, 0.0f);
  return scale;
}

inline int ModelCode(QuantizedForm form, float x, float scale) {
  if (std::isnan(scale)) return 0;
  const float inverse = 1.0f / scale, quotient = x * inverse;
  if (form == QuantizedForm::kInt8) return static_cast<int>(std::nearbyint(quotient)) & 0xff;
  if (form == QuantizedForm::kInt4) return static_cast<int>(std::nearbyint(quotient)) & 0xf;
  int best = 0;
  for (int code = 0; code < 0x7f; ++code) {
    const double off = std::fabs(E4M3(code) - std::fabs(quotient));
    const double best_off = std::fabs(E4M3(best) - std::fabs(quotient));
    if (off < best_off || (off == best_off && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(quotient) ? 0x80 : 0);
}

inline float ModelValue(QuantizedForm form, int code, float scale) {
  if (form == QuantizedForm::kFp8) return static_cast<float>(E4M3(code)) * scale;
  const int levels = form == QuantizedForm::kInt8 ? 256 : 16;
  return static_cast<float>(code >= levels / 2 ? code - levels : code) * scale;
}

// A shard as it travels and as it arrives.
struct ModelShard {
  std::vector<uint8_t> packed;
  std::vector<float> values;
};

inline ModelShard QuantizeModel(const std::vector<QuantizedPiece>& pieces,
                                const QuantizedOptions& options, const std::vector<float>& x,
                                int64_t at_least_bytes = 0) {
  const auto form = options.form;
  const int slots_in_byte = form == QuantizedForm::kInt4 ? 2 : 1;
  ModelShard shard{.packed = {}, .values = std::vector<float>(x.size())};
  std::vector<uint8_t>& packed = shard.packed;
  const auto put = [&](const auto& value) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    packed.insert(packed.end(), bytes, bytes + sizeof(value));
  };
  const auto align = [&] { packed.resize((packed.size() + 31) / 32 * 32); };
  for (const QuantizedPiece& piece : pieces) {
    if (piece.begin == piece.end) continue;
    if (!piece.quantized) {
      for (int64_t i = piece.begin; i < piece.end; ++i) {
        const auto round = [&](auto rounded) {
          put(rounded);
          shard.values[i] = static_cast<float>(rounded);
        };
        if (options.raw == DType::kFloat32) round(x[i]);
        if (options.raw == DType::kBFloat16) round(BFloat16(x[i]));
        if (options.raw == DType::kFloat16) round(Float16(x[i]));
      }
      align();
      continue;
    }
    const int64_t skipped = piece.element % options.block;
    const int64_t room = skipped / (32 * slots_in_byte) * (32 * slots_in_byte);
    std::vector<int> codes(skipped - room);
    for (int64_t i = piece.begin; i < piece.end;) {
      const int64_t in_block = (piece.element + i - piece.begin) % options.block;
      const int64_t end = std::min(piece.end, i + options.block - in_block);
      const float scale = ModelScale(form, {x.begin() + i, x.begin() + end});
      put(scale);
      for (; i < end; ++i) {
        codes.push_back(ModelCode(form, x[i], scale));
        shard.values[i] = ModelValue(form, codes.back(), scale);
      }
    }
    align();
    if (slots_in_byte == 2 && codes.size() % 2 == 1) codes.push_back(0);
    for (size_t i = 0; i < codes.size(); i += slots_in_byte) {
      packed.push_back(codes[i] | (slots_in_byte == 2 ? codes[i + 1] << 4 : 0));
    }
    align();
  }
  packed.resize(std::max<size_t>(packed.size(), at_least_bytes));
  align();
  return shard;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TRAINER_OPS_QUANTIZE_MODEL_H_
