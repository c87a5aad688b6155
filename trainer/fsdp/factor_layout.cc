#include "trainer/fsdp/factor_layout.h"

#include <algorithm>
#include <map>

#include "trainer/nn/model.h"

namespace fsdp {
namespace {

FactoredTensor ShapeOf(const Shape& shape) {
  const int rank = shape.rank();
  FactoredTensor tensor;
  if (rank < 2) {
    tensor.columns = shape.NumElements();
    return tensor;
  }
  tensor.columns = shape[rank - 1];
  tensor.matrix_rows = shape[rank - 2];
  tensor.rows = shape.NumElements() / tensor.columns;
  return tensor;
}

}  // namespace

FactorLayout::FactorLayout(const Model& model, const Layout& layout,
                           const std::function<double(const std::string& name)>& lr_scale)
    : of_flat_(layout.flat_parameters.size()) {
  std::map<std::string, const Parameter*> parameters;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* p : segment.parameters) parameters[p->name()] = p;
  }
  for (int f = 0; f < std::ssize(layout.flat_parameters); ++f) {
    const FlatParameter& flat = layout.flat_parameters[f];
    if (flat.frozen) continue;
    for (const Placement& p : flat.parameters) {
      for (const ParameterSlice& slice : parameters.at(p.name)->slices()) {
        const auto index = static_cast<int>(tensors_.size());
        const int64_t begin = p.offset + slice.begin;
        of_flat_[f].push_back({index, begin, begin + slice.shape.NumElements()});
        Tensor& tensor = tensors_.emplace_back(Tensor{slice.name, p.name, f, ShapeOf(slice.shape)});
        tensor.shape.at = values_;
        tensor.shape.index = index;
        if (lr_scale) tensor.shape.lr_scale = lr_scale(slice.name);
        values_ += tensor.shape.values();
      }
    }
  }
}

std::vector<FactoredPiece> FactorLayout::Pieces(const Layout& layout, int flat, int shard,
                                                int64_t begin, int64_t count) const {
  const int64_t first = layout.flat_parameters[flat].ShardBegin(shard) + begin;
  std::vector<FactoredPiece> pieces;
  for (const Placed& placed : of_flat_[flat]) {
    const int64_t from = std::max(placed.begin, first), to = std::min(placed.end, first + count);
    if (from >= to) continue;
    pieces.push_back({tensors_[placed.tensor].shape, from - placed.begin, to - from, from - first});
  }
  return pieces;
}

}  // namespace fsdp
