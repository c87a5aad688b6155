#include "trainer/ops/quantized_layout.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/quantize_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

void WriteQuantizedRowsCpu(ThreadPool&, const std::vector<QuantizedRow>& rows, const View& table) {
  std::ranges::copy(rows, table.As<QuantizedRow>());
}

using Kind = QuantizedRow::Kind;

int64_t DownTo(int64_t multiple, int64_t x) { return x / multiple * multiple; }
int64_t UpTo(int64_t multiple, int64_t x) { return DownTo(multiple, x + multiple - 1); }

void CheckOptions(const Arguments& args, const QuantizedOptions& options) {
  args.CheckDType("raw", options.raw, kFloatDTypes);
  args.Require(options.block == 64 || options.block == 128 || options.block == 256,
               "block, want 64, 128 or 256");
}

// Lays rows out one behind the other.
class Packer {
 public:
  explicit Packer(const QuantizedOptions& options) { layout_.sizes.options = options; }

  void AddGap(int64_t end) {
    if (end > layout_.sizes.n) Add({.kind = Kind::kGap, .last = end - layout_.sizes.n});
  }
  void AddPiece(const QuantizedPiece& piece) {
    const int64_t n = piece.end - piece.begin;
    if (n == 0) return;
    if (!piece.quantized) {
      layout_.sizes.raw += n;
      return AddRaw(n, UpTo(kQuantizedAlignment, n * RawBytes()));
    }
    layout_.sizes.quantized += n;
    const QuantizedOptions& options = layout_.sizes.options;
    const int slots_in_byte = options.form == QuantizedForm::kInt4 ? 2 : 1;
    const int64_t aligned = kQuantizedAlignment * slots_in_byte;
    QuantizedRow row{.kind = Kind::kQuantized, .first = piece.element % options.block};
    row.last = row.first + n;
    row.stored_first = DownTo(aligned, row.first);
    row.stored_last = UpTo(aligned, row.last);
    row.blocks = (row.last + options.block - 1) / options.block;
    row.scales = layout_.sizes.bytes;
    row.data = row.scales + UpTo(kQuantizedAlignment, row.blocks * sizeof(float));
    layout_.sizes.bytes = row.data + (row.stored_last - row.stored_first) / slots_in_byte;
    Add(row);
  }
  // Zeros: a raw row without elements.
  void PadTo(int64_t bytes) {
    const int64_t more = UpTo(kQuantizedAlignment, bytes) - layout_.sizes.bytes;
    if (more > 0) AddRaw(0, more);
  }

  QuantizedLayout Take() { return std::move(layout_); }

 private:
  int64_t RawBytes() const { return SizeOf(layout_.sizes.options.raw); }

  void AddRaw(int64_t n, int64_t bytes) {
    const QuantizedRow row{.kind = Kind::kRaw,
                           .last = n,
                           .stored_last = bytes / RawBytes(),
                           .data = layout_.sizes.bytes};
    layout_.sizes.bytes += bytes;
    Add(row);
  }

  void Add(QuantizedRow row) {
    row.unit = layout_.sizes.units;
    row.element = layout_.sizes.n - row.first;
    layout_.sizes.n += row.last - row.first;
    layout_.sizes.units +=
        UpTo(kQuantizedUnit, std::max(row.last, row.stored_last)) / kQuantizedUnit;
    layout_.rows.push_back(row);
  }

  QuantizedLayout layout_;
};

}  // namespace

QuantizedLayout LayOutQuantized(const std::vector<QuantizedPiece>& pieces, int64_t n,
                                const QuantizedOptions& options, int64_t at_least_bytes) {
  const Arguments args("lay_out_quantized");
  CheckOptions(args, options);
  Packer packer(options);
  int64_t last = 0;
  for (const QuantizedPiece& piece : pieces) {
    if (piece.begin < last || piece.end < piece.begin || piece.end > n) {
      args.Fail("piece [" + std::to_string(piece.begin) + ", " + std::to_string(piece.end) +
                ") is not in order inside [" + std::to_string(last) + ", " + std::to_string(n) +
                ")");
    }
    args.Require(piece.element >= 0, "element of a piece, want >= 0");
    packer.AddGap(piece.begin);
    packer.AddPiece(piece);
    last = piece.end;
  }
  packer.AddGap(n);
  packer.PadTo(at_least_bytes);
  return packer.Take();
}

QuantizedLayout LayOutQuantizedParts(const std::vector<QuantizedPart>& parts,
                                     const QuantizedOptions& options, int64_t at_least_bytes) {
  int64_t largest = at_least_bytes;
  for (const QuantizedPart& part : parts) {
    largest = std::max(largest, LayOutQuantized(part.pieces, part.n, options).sizes.bytes);
  }
  QuantizedLayout all{.sizes = {.options = options}, .rows = {}};
  for (const QuantizedPart& part : parts) {
    const auto [sizes, rows] = LayOutQuantized(part.pieces, part.n, options, largest);
    for (QuantizedRow row : rows) {
      row.unit += all.sizes.units;
      row.element += part.begin;
      row.data += all.sizes.bytes;
      row.scales += all.sizes.bytes;
      all.rows.push_back(row);
    }
    all.sizes.n += sizes.n;
    all.sizes.quantized += sizes.quantized;
    all.sizes.raw += sizes.raw;
    all.sizes.bytes += sizes.bytes;
    all.sizes.units += sizes.units;
  }
  return all;
}

QuantizedLayout LayOutQuantizedShards(const std::vector<std::vector<QuantizedPiece>>& shards,
                                      int64_t n, const QuantizedOptions& options,
                                      const std::vector<int64_t>& order) {
  std::vector<int64_t> numbers(shards.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  Arguments("lay_out_quantized")
      .Require(order.empty() || std::ranges::is_permutation(order, numbers),
               "order, want each shard's number once");
  std::vector<QuantizedPart> parts;
  for (const int64_t number : order.empty() ? numbers : order) {
    parts.push_back({number * n, n, shards[number]});
  }
  return LayOutQuantizedParts(parts, options);
}

Shape QuantizedRowsShape(size_t rows) {
  return {static_cast<int64_t>(rows * sizeof(QuantizedRow))};
}

void WriteQuantizedRows(Stream& stream, const std::vector<QuantizedRow>& rows, View table) {
  constexpr const char* kOp = "write_quantized_rows";
  const Arguments args(kOp);
  args.Check("table", table, DType::kUInt8, QuantizedRowsShape(rows.size()));
  const Cost cost{.bytes_written = static_cast<double>(table.bytes())};
  const auto count = static_cast<int64_t>(rows.size());
  const OnGpu gpu{.launches = (count + kQuantizedRowsOfLaunch - 1) / kQuantizedRowsOfLaunch};
  DeviceKernels kernels{.cpu = OnCpu(WriteQuantizedRowsCpu, rows, table),
                        .cuda = OnCuda(WriteQuantizedRowsCuda, rows, table)};
  stream.Enqueue({kOp, {}, {table}, {{cost, gpu}}, std::move(kernels)});
}

}  // namespace fsdp
