#include "trainer/checkpoint/state_format.h"

#include "trainer/core/check.h"

namespace fsdp {

std::string_view Name(Grid grid) {
  switch (grid) {
    case Grid::kElement:
      return "element";
    case Grid::kTensor:
      return "tensor";
    case Grid::kRows:
      return "rows";
  }
  FSDP_CHECK(false) << "grid " << static_cast<int>(grid);
}

std::optional<Grid> FindGrid(std::string_view name) {
  for (const Grid grid : {Grid::kElement, Grid::kTensor, Grid::kRows}) {
    if (Name(grid) == name) return grid;
  }
  return std::nullopt;
}

bool IsStateDType(DType dtype, Grid grid) { return FindStateDType(Name(dtype), grid).has_value(); }

std::optional<DType> FindStateDType(std::string_view name, Grid grid) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kUInt8}) {
    if (Name(dtype) == name) return dtype;
  }
  if (grid == Grid::kTensor && name == Name(DType::kInt64)) return DType::kInt64;
  return std::nullopt;
}

std::vector<StateFormat> ElementStates(const std::vector<std::string>& names, size_t flats) {
  std::vector<StateFormat> states;
  for (const std::string& name : names) {
    states.push_back({name, Grid::kElement, std::vector<DType>(flats, DType::kFloat32), {}});
  }
  return states;
}

RowPlacement DealOf(const StateFormat& state, int world) {
  RowPlacement deal{.world = world};
  for (const OwnTensor& table : state.tensors) deal.AddTable(table.shape[0]);
  return deal;
}

bool FlatHasState(const FlatParameter& flat, std::string_view state) {
  return !flat.frozen || state == "master";
}

}  // namespace fsdp
