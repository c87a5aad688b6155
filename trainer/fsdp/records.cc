#include "trainer/fsdp/records.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "trainer/ops/weight_codes.h"

namespace fsdp {
namespace {

constexpr int64_t kAtOnce = 16;  // Records.

}  // namespace

int64_t BlocksOf(const ParameterSlice& slice) {
  return (slice.shape.NumElements() + kWeightBlock - 1) / kWeightBlock;
}

RecordSource RecordsOf(FillParameter read) {
  RecordSource source;
  source.is_whole = [](const ParameterSlice&) { return false; };
  source.fill = [read = std::move(read)](const Parameter& parameter, const ParameterSlice& slice,
                                         int64_t first, std::span<uint8_t> records,
                                         std::span<float> scales) {
    const WeightCode code = parameter.code();
    const int64_t record_bytes = RecordBytes(code), n = slice.shape.NumElements();
    std::vector<float> values;
    const int64_t all = std::ssize(records) / record_bytes;
    for (int64_t at = 0; at < all; at += kAtOnce) {
      const int64_t begin = (first + at) * kWeightRecord;
      const int64_t end = (first + std::min(at + kAtOnce, all)) * kWeightRecord;
      values.resize(static_cast<size_t>(std::min(end, n) - begin));
      read(parameter, slice.begin + begin, values);
      const auto of_these =
          scales.empty() ? scales : scales.subspan(static_cast<size_t>(at * kRecordBlocks));
      EncodeRecords(code, values, records.data() + at * record_bytes, of_these);
    }
  };
  return source;
}

uint64_t HashOfRecord(const ParameterSlice& slice, int64_t index, std::span<const uint8_t> record,
                      std::span<const float> scales) {
  uint64_t hash = XXH64(slice.name.data(), slice.name.size(), static_cast<uint64_t>(index));
  hash = XXH64(record.data(), record.size(), hash);
  return scales.empty() ? hash : XXH64(scales.data(), scales.size_bytes(), hash);
}

uint64_t HashOfValues(const Parameter& parameter, int64_t begin, std::span<const float> values) {
  uint64_t sum = 0;
  for (const SlicePiece& piece : SlicePieces(parameter, begin, std::ssize(values))) {
    const uint64_t name = XXH64(piece.slice->name.data(), piece.slice->name.size(), 0);
    for (int64_t i = 0; i < piece.count; ++i) {
      const float& value = values[static_cast<size_t>(piece.at + i)];
      sum += XXH64(&value, sizeof(value), name + static_cast<uint64_t>(piece.begin + i));
    }
  }
  return sum;
}

}  // namespace fsdp
