#include "trainer/weights/hf_tensors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "trainer/checkpoint/finite.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/core/errors.h"
#include "trainer/core/read_file.h"
#include "trainer/core/units.h"
#include "trainer/core/view.h"
#include "trainer/nn/model.h"
#include "trainer/ops/cpu/convert.h"

namespace fsdp {

HfTensors::HfTensors(const Model& model) : linear_layout_(model.linear_layout()) {
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* parameter : segment.parameters) {
      parameters_[parameter->name()] = parameter;
      if (parameter->is_adapter()) continue;
      for (const ParameterSlice& slice : parameter->slices()) {
        tensors_.push_back({parameter, &slice});
      }
    }
    for (const ModelBuffer* buffer : segment.buffers) {
      if (buffer->kind() != ModelBuffer::Kind::kTally) tensors_.push_back({.buffer = buffer});
    }
  }
  for (const EmbeddingTable& table : model.tables()) {
    tensors_.push_back({.table = std::make_shared<Table>(
                            Table{tables_++, table.name, Shape{table.rows, table.width}})});
  }
}

const Parameter* HfTensors::Find(const std::string& parameter) const {
  const auto it = parameters_.find(parameter);
  return it == parameters_.end() ? nullptr : it->second;
}

namespace {

constexpr int64_t kBlock = int64_t{1} << 20;  // Elements; two are held.
constexpr int64_t kPiece = int64_t{1} << 16;  // Elements converted at a time: they stay in the
                                              // cache.

// As bytes of the dtype; `buffer` holds them where they are not those of `from`.
std::span<const std::byte> Narrow(std::span<const float> from, DType dtype,
                                  const std::string& tensor, std::vector<std::byte>& buffer) {
  if (dtype == DType::kFloat32) return std::as_bytes(from);
  const auto count = static_cast<int64_t>(from.size());
  buffer.resize(static_cast<size_t>(count * SizeOf(dtype)));
  const View to(buffer.data(), dtype, Shape{count});
  if (dtype == DType::kBFloat16) {
    Convert(from.data(), count, to.As<BFloat16>());
  } else {
    Convert(from.data(), count, to.As<Float16>());
  }
  if (!FirstNotFinite(to)) return buffer;
  for (int64_t i = 0; i < count; ++i) {
    if (std::isfinite(from[i]) && std::isinf(FloatAt(to, i))) {
      throw CheckpointError("'" + tensor + "' holds " + Shortest(from[i]) +
                            ", which is too large for the dtype it is to be exported in");
    }
  }
  return buffer;  // A value that is not finite was not before.
}

void WriteBuffer(const ModelBuffer& buffer, const HfValues& values, SafetensorsWriter& writer) {
  std::vector<std::byte> bytes;
  const int64_t n = buffer.shape().NumElements(), size = SizeOf(buffer.dtype());
  for (int64_t at = 0; at < n; at += kPiece) {
    bytes.resize(static_cast<size_t>(std::min(kPiece, n - at) * size));
    const View piece(bytes.data(), buffer.dtype(), Shape{std::min(kPiece, n - at)});
    values.read_buffer(buffer, at, piece);
    writer.WriteBytes(buffer.name(), at * size, bytes);
  }
}

// Null: it is not coded.
const BnbParts* CodedOf(const HfTensors::Tensor& tensor, const HfValues& values) {
  const auto at = values.coded.find(tensor.name());
  return at == values.coded.end() ? nullptr : &at->second;
}

}  // namespace

HfValues ValuesOf(MergedWeights& weights) {
  return {[&weights](const HfTensors::Tensor& tensor, int64_t begin, std::span<float> values) {
            if (tensor.table) return weights.ReadTable(tensor.table->index, begin, values);
            weights.Read(*tensor.parameter, tensor.slice->begin + begin, values);
          },
          [&weights](const ModelBuffer& buffer, int64_t begin, const View& values) {
            weights.ReadBuffer(buffer, begin, values);
          }};
}

int64_t BytesOf(const HfTensors::Tensor& tensor, DType dtype, const HfValues& values) {
  const BnbParts* const coded = CodedOf(tensor, values);
  return coded != nullptr ? coded->bytes() : tensor.bytes(dtype);
}

void WriteHfTensors(const std::string& path, std::span<const HfTensors::Tensor> tensors,
                    DType dtype, const HfValues& values,
                    const std::function<void(int64_t bytes)>& wrote) {
  const int64_t element_bytes = SizeOf(dtype);
  std::vector<SafetensorsEntry> entries;
  for (const HfTensors::Tensor& tensor : tensors) {
    if (const BnbParts* const coded = CodedOf(tensor, values)) {
      entries.insert(entries.end(), coded->entries().begin(), coded->entries().end());
      continue;
    }
    SafetensorsEntry& entry = entries.emplace_back();
    entry = {tensor.name(), ToSafetensorsType(tensor.dtype(dtype)), {}};
    for (int i = 0; i < tensor.shape().rank(); ++i) entry.shape.push_back(tensor.shape()[i]);
  }
  SafetensorsWriter writer(path, entries, {{"format", "pt"}});
  std::array<std::vector<float>, 2> blocks;
  std::vector<std::byte> buffer;
  for (const HfTensors::Tensor& tensor : tensors) {
    if (const BnbParts* const coded = CodedOf(tensor, values)) {
      coded->Write(writer, wrote);
      continue;
    }
    const ModelBuffer* const model_buffer = tensor.buffer;
    if (model_buffer != nullptr) {
      WriteBuffer(*model_buffer, values, writer);
      wrote(model_buffer->shape().NumElements() * SizeOf(model_buffer->dtype()));
      continue;
    }
    const auto read = [&](int b, int64_t at, int64_t count) {
      blocks[b].resize(static_cast<size_t>(count));
      values.read(tensor, at, blocks[b]);
    };
    const auto write = [&, &name = tensor.name()](int b, int64_t at, int64_t count) {
      int64_t written = 0;
      for (int64_t i = 0; i < count; i += kPiece) {
        const auto piece = std::span<const float>(blocks[b]).subspan(
            static_cast<size_t>(i), static_cast<size_t>(std::min(kPiece, count - i)));
        const auto bytes = Narrow(piece, dtype, name, buffer);
        writer.WriteBytes(name, (at + i) * element_bytes, bytes);
        written += static_cast<int64_t>(bytes.size());
      }
      wrote(written);
    };
    ReadAhead(tensor.shape().NumElements(), kBlock, read, write);
  }
  writer.Finish();
}

}  // namespace fsdp
