#include "trainer/checkpoint/state_format.h"

#include <cstddef>
#include <map>
#include <utility>

#include "trainer/checkpoint/manifest.h"
#include "trainer/core/check.h"

namespace fsdp {

std::string_view Name(Grid grid) {
  switch (grid) {
    case Grid::kElement:
      return "element";
    case Grid::kBlock:
      return "block";
    case Grid::kTensor:
      return "tensor";
    case Grid::kRows:
      return "rows";
  }
  FSDP_CHECK(false) << "grid " << static_cast<int>(grid);
}

std::optional<Grid> FindGrid(std::string_view name) {
  for (const Grid grid : {Grid::kElement, Grid::kBlock, Grid::kTensor, Grid::kRows}) {
    if (Name(grid) == name) return grid;
  }
  return std::nullopt;
}

std::string_view Name(WeightCode code) {
  switch (code) {
    case WeightCode::kNf4:
      return "nf4";
    case WeightCode::kNf4Nested:
      return "nf4_nested";
    case WeightCode::kInt8:
      return "int8";
    case WeightCode::kNone:
      break;
  }
  FSDP_CHECK(false) << "code " << static_cast<int>(code);
}

std::optional<WeightCode> FindWeightCode(std::string_view name) {
  for (const WeightCode code : {WeightCode::kNf4, WeightCode::kNf4Nested, WeightCode::kInt8}) {
    if (Name(code) == name) return code;
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
  if (flat.frozen) return state == "master" && !flat.of_base;
  return !flat.dtypes.whole || state != "v";
}

bool StateFormat::Has(const FlatParameter& flat, size_t u) const {
  return FlatHasState(flat, name) && (grid != Grid::kBlock || coded.at(u));
}

std::string CodesOf(const std::string& absmax) {
  FSDP_CHECK(absmax.ends_with(kAbsmaxSuffix)) << absmax;
  return absmax.substr(0, absmax.size() - kAbsmaxSuffix.size());
}

const StateCodeTables& CodesOfState(const std::string& state) {
  return state == "v" ? kUnsignedCodes : kSignedCodes;
}

namespace {

// The dtype of each thing that has one in a state: a parameter, or a tensor of its own.
std::map<std::string, DType> DTypesOf(const std::vector<FlatParameter>& flats,
                                      const StateFormat& state) {
  std::map<std::string, DType> dtypes;
  for (size_t u = 0; u < state.dtypes.size(); ++u) {
    if (!FlatHasState(flats[u], state.name)) continue;
    for (const Placement& p : flats[u].parameters) dtypes[p.name] = state.dtypes[u];
  }
  for (const OwnTensor& tensor : state.tensors) dtypes[tensor.name] = tensor.dtype;
  return dtypes;
}

// "a", "a and b", "a, b and c".
std::string Listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  return text;
}

}  // namespace

bool CanConvert(DType stored, DType wanted) {
  const bool narrow = stored == DType::kBFloat16 || stored == DType::kFloat16;
  return stored == wanted || (narrow && wanted == DType::kFloat32) ||
         (stored == DType::kFloat32 && wanted == DType::kBFloat16);
}

std::string DescribeConversion(const Manifest& there, const Layout& layout,
                               const std::vector<StateFormat>& here) {
  std::map<std::pair<DType, DType>, std::vector<std::string>> states;
  for (const StateFormat& state : here) {
    const StateFormat* stored = there.FindState(state.name);
    if (stored == nullptr || state.grid == Grid::kBlock) continue;
    const std::map<std::string, DType> from = DTypesOf(there.flat_parameters, *stored);
    const std::map<std::string, DType> to = DTypesOf(layout.flat_parameters, state);
    std::map<std::pair<DType, DType>, size_t> changed;
    for (const auto& [name, dtype] : to) {
      const auto it = from.find(name);
      if (it != from.end() && it->second != dtype) ++changed[{it->second, dtype}];
    }
    for (const auto& [change, count] : changed) {
      states[change].push_back((count == to.size() ? "" : "some of ") + state.name);
    }
  }
  std::string text;
  for (const auto& [change, names] : states) {
    const auto [from, to] = change;
    const auto named = [](DType dtype) {
      return dtype == DType::kUInt8 ? "8bit" : std::string(Name(dtype));
    };
    const bool rounds =
        SizeOf(to) < SizeOf(from) || (from == DType::kUInt8 && to != DType::kFloat32);
    text += (text.empty() ? "" : "; ") + Listed(names) + " from " + named(from) + " to " +
            named(to) + (rounds ? ", rounded to nearest" : ", exactly");
  }
  return text;
}

}  // namespace fsdp
