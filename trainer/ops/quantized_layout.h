// Where the blocks of a quantised shard lie in the bytes that travel: a pure function of pieces and
// form, and its table in device memory, which the ops of quantize.h read.
//   - Blocks are counted from each parameter's first element. A piece that begins within one has a
//     short first block; the last ends with the piece.
//   - A quantised piece is packed as its scales (fp32, one a block), then its codes: a byte an
//     element, in kInt4 half a byte, the low one where the parameter counts an even element. A raw
//     piece is packed as its elements.
//   - Scales, codes and raw elements each begin at a multiple of kQuantizedAlignment bytes and are
//     padded with zeros up to the next. Codes keep their place in the block towards these: a piece
//     that begins within one has so many zeros before its first code.
//   - Elements of no piece do not travel. They arrive as zeros.
// Tests: tests/trainer/ops/quantized_layout_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_QUANTIZED_LAYOUT_H_
#define FSDP_TRAIN_TRAINER_OPS_QUANTIZED_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "trainer/ops/quantized_form.h"
#include "trainer/ops/quantized_row.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// A parameter's stretch in a shard: elements [begin, end).
struct QuantizedPiece {
  int64_t begin = 0, end = 0;
  int64_t element = 0;  // Which of its parameter's `begin` is.
  bool quantized = true;
};

struct QuantizedOptions {
  QuantizedForm form = QuantizedForm::kInt8;
  int block = 256;               // Elements: 64, 128 or 256.
  DType raw = DType::kBFloat16;  // fp32, bf16 or fp16: of raw pieces as they travel.
};

struct QuantizedSizes {
  QuantizedOptions options;
  int64_t n = 0;          // Elements.
  int64_t quantized = 0;  // Of these, and
  int64_t raw = 0;        // those that travel raw.
  int64_t bytes = 0;      // Packed: a multiple of kQuantizedAlignment.
  int64_t units = 0;
};

struct QuantizedLayout {
  QuantizedSizes sizes;
  std::vector<QuantizedRow> rows;  // Of all elements [0, n), as they are packed.
};

// The layout of a shard of n elements, padded with zeros to at least so many bytes. Throws
// std::invalid_argument unless the options are those above and the pieces ascending, apart
// (touching is fine) and inside [0, n).
QuantizedLayout LayOutQuantized(const std::vector<QuantizedPiece>& pieces, int64_t n,
                                const QuantizedOptions& options, int64_t at_least_bytes = 0);

// Elements [begin, begin + n) of a tensor, of which the pieces count from `begin`.
struct QuantizedPart {
  int64_t begin = 0, n = 0;
  std::vector<QuantizedPiece> pieces;
};

// The layout of a tensor's parts, packed in this order, each padded to the bytes of the largest and
// to `at_least_bytes`. Together the parts are all of the tensor, from element 0. Each one's bytes
// are those of LayOutQuantized() alone.
QuantizedLayout LayOutQuantizedParts(const std::vector<QuantizedPart>& parts,
                                     const QuantizedOptions& options, int64_t at_least_bytes = 0);

// The same of shards of n elements each, packed in this order, a permutation of their numbers, or
// as they are where it is empty. Shard r has elements [r n, (r + 1) n).
QuantizedLayout LayOutQuantizedShards(const std::vector<std::vector<QuantizedPiece>>& shards,
                                      int64_t n, const QuantizedOptions& options,
                                      const std::vector<int64_t>& order = {});

// What ops take.
struct QuantizedTable {
  QuantizedSizes sizes;
  ConstView rows;  // uint8, by WriteQuantizedRows() of the layout that the sizes are of.
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
