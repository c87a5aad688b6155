// The places of a quantised shard's blocks in the bytes that travel: a pure function of pieces and
// form. The ops of quantize.h read it as a table in device memory.
//   - Blocks are counted from each parameter's first element. A piece that begins inside a block
//     has a short first block. The last block ends with the piece.
//   - A quantised piece is packed as its scales (fp32, one per block), then its codes: a byte per
//     element, or in kInt4 half a byte, the low one where the parameter counts an even element. A
//     raw piece is packed as its elements.
//   - Scales, codes and raw elements each begin at a multiple of kQuantizedAlignment bytes and are
//     padded with zeros up to the next. Codes keep the place in their block relative to these
//     multiples: a piece that begins inside a block has zeros before its first code.
//   - Elements outside all pieces do not travel. They arrive as zeros.
// Tests: tests/trainer/ops/quantized_layout_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_QUANTIZED_LAYOUT_H_
#define FSDP_TRAIN_TRAINER_OPS_QUANTIZED_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/quantized_form.h"
#include "trainer/ops/quantized_row.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// A parameter's stretch in a shard: elements [begin, end).
struct QuantizedPiece {
  int64_t begin = 0, end = 0;
  int64_t element = 0;  // The index of `begin` in its parameter.
  bool quantized = true;
};

struct QuantizedOptions {
  QuantizedForm form = QuantizedForm::kInt8;
  int block = 256;               // Elements: 64, 128 or 256.
  DType raw = DType::kBFloat16;  // The dtype of raw pieces as they travel: fp32, bf16 or fp16.
};

struct QuantizedSizes {
  QuantizedOptions options;
  int64_t n = 0;          // Elements.
  int64_t quantized = 0;  // Elements that travel quantised.
  int64_t raw = 0;        // Elements that travel raw.
  int64_t bytes = 0;      // Packed: a multiple of kQuantizedAlignment.
  int64_t units = 0;
};

struct QuantizedLayout {
  QuantizedSizes sizes;
  std::vector<QuantizedRow> rows;  // For all elements [0, n), in packed order.
};

// The layout of a shard of n elements, padded with zeros to `at_least_bytes` or more. Throws
// std::invalid_argument unless the options are those above and the pieces are ascending, apart
// (touching is fine) and inside [0, n).
QuantizedLayout LayOutQuantized(const std::vector<QuantizedPiece>& pieces, int64_t n,
                                const QuantizedOptions& options, int64_t at_least_bytes = 0);

// Elements [begin, begin + n) of a tensor. The pieces count from `begin`.
struct QuantizedPart {
  int64_t begin = 0, n = 0;
  std::vector<QuantizedPiece> pieces;
};

// The layout of a tensor's parts, packed in this order, each padded to the bytes of the largest
// part and to `at_least_bytes`. Together the parts are all of the tensor, from element 0. The bytes
// of a part are those that LayOutQuantized() gives it alone.
QuantizedLayout LayOutQuantizedParts(const std::vector<QuantizedPart>& parts,
                                     const QuantizedOptions& options, int64_t at_least_bytes = 0);

// The same for shards of n elements each. `order`: the order of packing, a permutation of the
// shards' numbers; empty: as they are. Shard r has elements [r n, (r + 1) n).
QuantizedLayout LayOutQuantizedShards(const std::vector<std::vector<QuantizedPiece>>& shards,
                                      int64_t n, const QuantizedOptions& options,
                                      const std::vector<int64_t>& order = {});

// The form in which ops take a layout.
struct QuantizedTable {
  QuantizedSizes sizes;
  ConstView rows;  // uint8, written by WriteQuantizedRows() of the layout with these sizes.
};
template <typename Visit>
void ForEachAddress(QuantizedTable& table, const Visit& visit) {
  visit(table.rows);
}

Shape QuantizedRowsShape(size_t rows);
// table: uint8 [bytes of the rows].
void WriteQuantizedRows(Stream& stream, const std::vector<QuantizedRow>& rows, View table);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_QUANTIZED_LAYOUT_H_
