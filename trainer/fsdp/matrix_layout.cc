#include "trainer/fsdp/matrix_layout.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "trainer/core/philox.h"
#include "trainer/nn/model.h"

namespace fsdp {
namespace {

// The first shard that holds some of the matrix, and the last: few of many.
std::pair<int, int> Holders(const WholeMatrix& matrix, int64_t shard_size) {
  const int64_t last = matrix.begin + (matrix.rows - 1) * matrix.pitch + matrix.width - 1;
  return {static_cast<int>(matrix.begin / shard_size), static_cast<int>(last / shard_size)};
}

}  // namespace

DType MatrixDType(const Layout& layout, std::optional<DType> chosen) {
  const bool narrow = std::ranges::any_of(layout.flat_parameters, [](const FlatParameter& flat) {
    return flat.dtypes.whole && flat.dtypes.compute != DType::kFloat32;
  });
  return chosen.value_or(narrow ? DType::kBFloat16 : DType::kFloat32);
}

int64_t WholeMatrix::Before(int64_t end) const {
  const int64_t at = std::max<int64_t>(0, end - begin);
  const int64_t row = std::min(rows, at / pitch);
  return row * width + (row < rows ? std::min(width, at % pitch) : 0);
}

double WholeMatrix::Work() const {
  const auto m = static_cast<double>(std::min(rows, width));
  const auto n = static_cast<double>(std::max(rows, width));
  return m * m * (3 * n + m);
}

MatrixLayout::MatrixLayout(const Model& model, const Layout& layout, int world)
    : shards_(layout.shards), world_(world), of_unit_(layout.units.size()) {
  const bool rows_are_outputs = model.linear_layout() == WeightLayout::kOutIn;
  std::map<std::string, const Parameter*> parameters;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* p : segment.parameters) parameters[p->name()] = p;
  }
  for (const FlatParameter& flat : layout.flat_parameters) shard_sizes_.push_back(flat.shard_size);
  for (int u = 0; u < std::ssize(layout.units); ++u) {
    for (const int f : layout.TrainableFlatParameters(u)) {
      const FlatParameter& flat = layout.flat_parameters[f];
      if (!flat.dtypes.whole) continue;
      for (const Placement& p : flat.parameters) {
        for (const ParameterSlice& slice : parameters.at(p.name)->slices()) {
          const int64_t pitch = slice.shape[1], width = pitch / slice.side_by_side;
          for (int i = 0; i < slice.side_by_side; ++i) {
            of_unit_[u].push_back(static_cast<int>(matrices_.size()));
            matrices_.push_back({.name = slice.name,
                                 .parameter = p.name,
                                 .part = i,
                                 .outputs = rows_are_outputs ? slice.rows : width,
                                 .inputs = rows_are_outputs ? width : slice.rows,
                                 .rows = slice.rows,
                                 .width = width,
                                 .begin = p.offset + slice.begin + i * width,
                                 .pitch = pitch,
                                 .flat = f,
                                 .unit = u});
          }
        }
      }
    }
  }
  Deal();
}

void MatrixLayout::Deal() {
  std::vector<int> order(matrices_.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](int i) { return matrices_[i].Work(); });
  std::vector<double> work(world_);
  std::vector<int64_t> held(shards_);
  for (const int i : order) {
    WholeMatrix& matrix = matrices_[i];
    const auto [first, last] = Holders(matrix, shard_sizes_[matrix.flat]);
    std::ranges::fill(held, 0);
    for (int shard = first; shard <= last; ++shard) held[shard] = PieceOf(i, shard).count;
    for (int rank = 1; rank < world_; ++rank) {
      const auto key = [&](int r) { return std::pair(work[r], -held[r % shards_]); };
      if (key(rank) < key(matrix.owner)) matrix.owner = rank;
    }
    work[matrix.owner] += matrix.Work();
  }
}

uint64_t MatrixLayout::OwnersHash() const {
  std::string text;
  for (const WholeMatrix& matrix : matrices_) {
    text += matrix.name + " " + std::to_string(matrix.begin) + " " + std::to_string(matrix.owner) +
            "\n";
  }
  return HashBytes(text);
}

MatrixPiece MatrixLayout::PieceOf(int matrix, int shard) const {
  const WholeMatrix& of = matrices_[matrix];
  const int64_t begin = shard * shard_sizes_[of.flat];
  const int64_t first = of.Before(begin);
  return {
      .matrix = matrix, .first = first, .count = of.Before(begin + shard_sizes_[of.flat]) - first};
}

std::vector<int> MatrixLayout::OwnersIn(int unit) const {
  std::set<int> owners;
  for (const int i : of_unit_[unit]) owners.insert(matrices_[i].owner);
  return {owners.begin(), owners.end()};
}

std::vector<MatrixPiece> MatrixLayout::Held(int unit, int rank) const {
  std::vector<MatrixPiece> pieces;
  int64_t packed = 0;
  for (const int owner : OwnersIn(unit)) {
    for (const int i : of_unit_[unit]) {
      if (matrices_[i].owner != owner) continue;
      MatrixPiece piece = PieceOf(i, rank % shards_);
      if (piece.count == 0) continue;
      piece.packed = std::exchange(packed, packed + piece.count);
      pieces.push_back(piece);
    }
  }
  return pieces;
}

std::vector<MatrixPiece> MatrixLayout::Owned(int unit, int rank) const {
  std::vector<int> owned;
  for (const int i : of_unit_[unit]) {
    if (matrices_[i].owner == rank) owned.push_back(i);
  }
  std::vector<MatrixPiece> pieces;
  int64_t packed = 0;
  for (int shard = 0; !owned.empty() && shard < shards_; ++shard) {
    for (const int i : owned) {
      MatrixPiece piece = PieceOf(i, shard);
      if (piece.count == 0) continue;
      piece.packed = std::exchange(packed, packed + piece.count);
      pieces.push_back(piece);
    }
  }
  return pieces;
}

int64_t MatrixLayout::MostHeld() const {
  int64_t most = 0;
  for (const std::vector<int>& unit : of_unit_) {
    std::vector<int64_t> held(shards_);
    for (const int i : unit) {
      const auto [first, last] = Holders(matrices_[i], shard_sizes_[matrices_[i].flat]);
      for (int shard = first; shard <= last; ++shard) {
        most = std::max(most, held[shard] += PieceOf(i, shard).count);
      }
    }
  }
  return most;
}

int64_t MatrixLayout::MostOwned() const {
  int64_t most = 0;
  for (const std::vector<int>& unit : of_unit_) {
    std::map<int, int64_t> owned;
    for (const int i : unit) {
      most = std::max(most, owned[matrices_[i].owner] += matrices_[i].size());
    }
  }
  return most;
}

int64_t MatrixLayout::MostOwnedOutputs() const {
  std::vector<int64_t> outputs(world_);
  for (const WholeMatrix& matrix : matrices_) outputs[matrix.owner] += matrix.outputs;
  return std::ranges::max(outputs);
}

// Rank `shard` of a copy and an owner exchange one stretch: it is one behind the other on both
// sides, since both pack by matrix inside it.
ExchangeLayout MatrixLayout::Exchange(int unit, bool back) const {
  const std::vector<int> owners = OwnersIn(unit);
  std::vector<std::vector<int64_t>> stretch(shards_, std::vector<int64_t>(owners.size()));
  for (const int i : of_unit_[unit]) {
    const auto o = std::ranges::lower_bound(owners, matrices_[i].owner) - owners.begin();
    const auto [first, last] = Holders(matrices_[i], shard_sizes_[matrices_[i].flat]);
    for (int shard = first; shard <= last; ++shard) stretch[shard][o] += PieceOf(i, shard).count;
  }
  std::vector<ExchangeLayout::Pair> pairs;
  for (size_t o = 0; back && o < owners.size(); ++o) {
    int64_t begin = 0;
    for (int rank = 0; rank < world_; ++rank) {
      const int shard = rank % shards_;
      if (shard == 0) begin = 0;
      const int64_t count = stretch[shard][o];
      if (count == 0) continue;
      pairs.push_back({owners[o], rank, begin, count});
      begin += count;
    }
  }
  for (int rank = 0; !back && rank < world_; ++rank) {
    int64_t held = 0;
    for (size_t o = 0; o < owners.size(); ++o) {
      const int64_t count = stretch[rank % shards_][o];
      const bool own_copy = rank / shards_ == owners[o] / shards_;
      if (count > 0 && own_copy) pairs.push_back({rank, owners[o], held, count});
      held += count;
    }
  }
  return {world_, pairs};
}

}  // namespace fsdp
