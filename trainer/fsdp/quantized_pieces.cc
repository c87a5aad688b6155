#include "trainer/fsdp/quantized_pieces.h"

namespace fsdp {

std::vector<QuantizedPiece> QuantizedPieces(const FlatParameter& flat, int64_t begin, int64_t end,
                                            int64_t min_size) {
  std::vector<QuantizedPiece> pieces;
  for (const Piece& piece : PiecesBetween(flat, begin, end)) {
    const Placement& parameter = *piece.parameter;
    const bool quantized = parameter.shape.rank() > 1 && parameter.size() >= min_size;
    pieces.push_back({piece.at, piece.at + piece.count, piece.begin, quantized});
  }
  return pieces;
}

}  // namespace fsdp
