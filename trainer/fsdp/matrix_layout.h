// The matrices that are updated whole, who owns each of them, and what ranks send each other for
// that. A pure function of model, layout and ranks, the same on every rank.
//
// A matrix is the weight of one linear layer: a slice of a parameter with DTypes::whole (q, k, v of
// one parameter are three), or one of several side by side in its rows. An owner, one rank of the
// world, computes the update of a matrix from all of its elements. Matrices are dealt out in order
// of their FLOPs, the largest first, each to the rank that has least so far; of several such ranks
// to the one that holds most of the matrix, and then to the first.
// Tests: tests/trainer/fsdp/matrix_layout_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_MATRIX_LAYOUT_H_
#define FSDP_TRAIN_TRAINER_FSDP_MATRIX_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/comm/exchange_layout.h"
#include "trainer/core/dtype.h"
#include "trainer/fsdp/layout.h"

namespace fsdp {

class Model;

struct WholeMatrix {
  std::string name;                 // The slice's, as in the Hugging Face file.
  std::string parameter;            // The one that has the slice.
  int part = 0;                     // Among the matrices side by side in the slice.
  int64_t outputs = 0, inputs = 0;  // The layer's.
  // [rows, width], as it lies in its flat parameter: element (r, c) is element begin + r * pitch +
  // c of that. Elements are numbered row by row.
  int64_t rows = 0, width = 0, begin = 0, pitch = 0;
  int flat = 0, unit = 0;
  int owner = 0;  // A rank's position in the mesh.

  int64_t size() const { return rows * width; }
  // Transposed, an owner computes with [width, rows]: the short side comes first.
  bool tall() const { return rows > width; }
  // The number of its elements before element `end` of the flat parameter.
  int64_t Before(int64_t end) const;
  // FLOPs of a step of Newton and Schulz's iteration, in units that all matrices share: with m <= n
  // its sides, m^2 n and m^3 for the halves of two symmetric products, 2 m^2 n for the third.
  double Work() const;
};

// A run of a matrix's elements, [first, first + count), in a shard and in what travels.
struct MatrixPiece {
  int matrix = 0;  // An index of MatrixLayout::matrices().
  int64_t first = 0, count = 0;
  int64_t packed = 0;  // Elements from the start of a packed tensor.
};

class MatrixLayout {
 public:
  // `world`: ranks, a multiple of layout.shards. Ranks are numbered by their positions in the mesh.
  MatrixLayout(const Model& model, const Layout& layout, int world);

  const std::vector<WholeMatrix>& matrices() const { return matrices_; }  // In order of the flats.
  uint64_t OwnersHash() const;

  // The unit's elements of a rank's shard, packed by owner, then by matrix. So they are sent, and
  // so results arrive.
  std::vector<MatrixPiece> Held(int unit, int rank) const;
  // The unit's matrices of an owner, packed by shard, then by matrix. So they arrive, and so
  // results are sent.
  std::vector<MatrixPiece> Owned(int unit, int rank) const;
  // Elements of the packed tensors, the most of any unit and rank.
  int64_t MostHeld() const;
  int64_t MostOwned() const;
  int64_t MostOwnedOutputs() const;  // The most of any rank, over all units.
  // Pieces from one copy of the shards, the owner's own, to the owners; and results back to all
  // copies.
  ExchangeLayout ToOwners(int unit) const { return Exchange(unit, /*back=*/false); }
  ExchangeLayout FromOwners(int unit) const { return Exchange(unit, /*back=*/true); }

 private:
  void Deal();
  MatrixPiece PieceOf(int matrix, int shard) const;
  std::vector<int> OwnersIn(int unit) const;  // Each once, in order.
  ExchangeLayout Exchange(int unit, bool back) const;

  int shards_, world_;
  std::vector<int64_t> shard_sizes_;  // By flat parameter.
  std::vector<WholeMatrix> matrices_;
  std::vector<std::vector<int>> of_unit_;  // Indices of matrices.
};

// The dtype of what travels, and of the owners' iterations. `chosen` empty: fp32 where matrices are
// computed with in fp32, else bf16.
DType MatrixDType(const Layout& layout, std::optional<DType> chosen);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_MATRIX_LAYOUT_H_
