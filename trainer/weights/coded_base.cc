#include "trainer/weights/coded_base.h"

#include <algorithm>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/hex.h"
#include "trainer/fsdp/records.h"
#include "trainer/nn/model.h"
#include "trainer/ops/weight_codes.h"

namespace fsdp {
namespace {

constexpr int64_t kAtOnce = 16;  // Records that are read at a time: 1 MiB of values.

// Calls `body(record, count)` for records [first, first + count) of a slice, a few at a time.
template <typename Body>
void InParts(int64_t first, int64_t count, const Body& body) {
  for (int64_t at = first; at < first + count; at += kAtOnce) {
    body(at, std::min(kAtOnce, first + count - at));
  }
}

}  // namespace

void RequireBase(const CheckpointMeta::Base& of_checkpoint, const CheckpointMeta::Base& found,
                 const std::string& checkpoint) {
  if (of_checkpoint.hash == found.hash) return;
  throw CheckpointError(checkpoint + ": its run's frozen weights are those of " +
                        of_checkpoint.files + ", with the hash " + ToHex(of_checkpoint.hash) +
                        ", and those of " + found.files + " have " + ToHex(found.hash) +
                        ": model.init_from must hold the same weights as then");
}

CodedBase::CodedBase(FillParameter plain, RecordSource records, const Model& model)
    : plain_(std::move(plain)), source_(std::move(records)) {
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* p : segment.parameters) {
      if (p->trainable()) continue;
      p->code() == WeightCode::kNone ? ReadPlain(*p) : ReadRecords(*p);
    }
  }
}

void CodedBase::ReadPlain(const Parameter& parameter) {
  std::vector<float> values;
  const int64_t n = parameter.shape().NumElements();
  for (int64_t begin = 0; begin < n; begin += kAtOnce * kWeightRecord) {
    values.resize(static_cast<size_t>(std::min(kAtOnce * kWeightRecord, n - begin)));
    plain_(parameter, begin, values);
    hash_ += HashOfValues(parameter, begin, values);
  }
}

void CodedBase::ReadRecords(const Parameter& parameter) {
  std::vector<uint8_t> bytes;
  std::vector<float> scales;
  const auto record_bytes = static_cast<size_t>(RecordBytes(parameter.code()));
  for (const ParameterSlice& slice : parameter.slices()) {
    const bool nested = parameter.code() == WeightCode::kNf4Nested && !source_.is_whole(slice);
    const int64_t blocks = BlocksOf(slice);
    const int64_t size = CodedBytes(parameter.code(), slice.shape.NumElements());
    double sum = 0;
    InParts(0, size / RecordBytes(parameter.code()), [&](int64_t first, int64_t count) {
      bytes.resize(static_cast<size_t>(count) * record_bytes);
      scales.resize(static_cast<size_t>(nested ? count * kRecordBlocks : 0));
      source_.fill(parameter, slice, first, bytes, scales);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t used = std::min(kRecordBlocks, blocks - (first + i) * kRecordBlocks);
        const auto own = std::span<const float>(scales).subspan(
            static_cast<size_t>(nested ? i * kRecordBlocks : 0),
            static_cast<size_t>(nested ? used : 0));
        sum += SumScales(own);
        hash_ += HashOfRecord(slice, first + i,
                              std::span<const uint8_t>(bytes).subspan(
                                  static_cast<size_t>(i) * record_bytes, record_bytes),
                              own);
      }
    });
    if (nested) means_[slice.name] = static_cast<float>(sum / static_cast<double>(blocks));
  }
}

void CodedBase::Records(const Parameter& parameter, const ParameterSlice& slice, int64_t first,
                        std::span<uint8_t> records) const {
  const auto mean = means_.find(slice.name);
  const int64_t record_bytes = RecordBytes(parameter.code());
  std::vector<float> scales;
  InParts(0, std::ssize(records) / record_bytes, [&](int64_t at, int64_t count) {
    const auto part = records.subspan(static_cast<size_t>(at * record_bytes),
                                      static_cast<size_t>(count * record_bytes));
    scales.resize(static_cast<size_t>(mean == means_.end() ? 0 : count * kRecordBlocks));
    source_.fill(parameter, slice, first + at, part, scales);
    if (scales.empty()) return;
    const int64_t used =
        std::min(count * kRecordBlocks, BlocksOf(slice) - (first + at) * kRecordBlocks);
    EncodeScales(mean->second, std::span(scales).first(static_cast<size_t>(used)), part.data());
  });
}

void CodedBase::Fill(const Parameter& parameter, int64_t begin, std::span<float> values) const {
  if (parameter.code() == WeightCode::kNone) return plain_(parameter, begin, values);
  const int64_t record_bytes = RecordBytes(parameter.code());
  std::vector<uint8_t> records;
  std::vector<float> decoded;
  for (const SlicePiece& piece : SlicePieces(parameter, begin, std::ssize(values))) {
    const int64_t n = piece.slice->shape.NumElements(), end = piece.begin + piece.count;
    const int64_t first = piece.begin / kWeightRecord;
    const int64_t last = (end + kWeightRecord - 1) / kWeightRecord;
    InParts(first, last - first, [&](int64_t record, int64_t count) {
      const int64_t from = record * kWeightRecord;
      records.resize(static_cast<size_t>(count * record_bytes));
      decoded.resize(static_cast<size_t>(std::min(count * kWeightRecord, n - from)));
      Records(parameter, *piece.slice, record, records);
      DecodeRecords(parameter.code(), records.data(), decoded);
      const int64_t to = std::min(end, from + std::ssize(decoded));
      const int64_t at = std::max(piece.begin, from);
      std::copy(decoded.begin() + (at - from), decoded.begin() + (to - from),
                values.begin() + (piece.at + at - piece.begin));
    });
  }
}

}  // namespace fsdp
