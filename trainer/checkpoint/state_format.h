// How a checkpoint keeps a state: its dtype, and the meaning of one value.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_STATE_FORMAT_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_STATE_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/core/view.h"
#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/row_placement.h"
#include "trainer/ops/state_codes.h"

namespace fsdp {

struct Manifest;

enum class Grid : uint8_t {
  kElement,  // One value per element of the flat parameter: weights, moments.
  // One per kCodeBlock elements of flat parameters with codes (ops/state_codes.h): the absmax of
  // the codes that the kElement state without kAbsmaxSuffix has there, in uint8.
  kBlock,
  kTensor,  // Own tensors: factors of a parameter, its scales, running statistics.
  // Tables [rows, ...] whose rows are dealt over the ranks (fsdp/row_placement.h), in their order.
  // Each rank writes its rows of each table; in files they follow those of the rank before.
  kRows,
};

std::string_view Name(Grid grid);  // "element", "block", "tensor", "rows".
std::optional<Grid> FindGrid(std::string_view name);

std::string_view Name(WeightCode code);  // "nf4", "nf4_nested", "int8"; not of kNone.
std::optional<WeightCode> FindWeightCode(std::string_view name);

// The dtypes of states: fp32, bf16, fp16, uint8; own tensors also int64.
bool IsStateDType(DType dtype, Grid grid);
std::optional<DType> FindStateDType(std::string_view name, Grid grid);

// The kTensor state whose tensors are the model's buffers, by their names, without an owner.
inline constexpr char kBuffersState[] = "buffers";

// The kTensor state of the optimizer's tensors of parameters, their owners.
inline constexpr char kFactorState[] = "factor";

// The kRows states: embedding tables, and the optimizer's sum of each row, both without owners.
inline constexpr char kRowsState[] = "rows", kRowSumsState[] = "row_sums";

// The kTensor state of NorMuon (ops/row_moments.h): by matrix, a tensor of as many elements as it
// has outputs.
inline constexpr char kRowMomentsState[] = "row_v";

inline bool HasOwnTensors(Grid grid) { return grid == Grid::kTensor || grid == Grid::kRows; }

// An own tensor: one outside the flat parameters. A kTensor tensor has one value in the whole job,
// so it means the same at any world: ranks merge values that they hold apart (statistics of their
// own batches) before a save.
struct OwnTensor {
  std::string name;   // Unique among its state's tensors.
  std::string owner;  // Its parameter; empty: it belongs to the whole model.
  DType dtype = DType::kFloat32;
  Shape shape;  // At least one element.
  // Position in the mesh of the rank that writes it, by RankFileWriter; not in the manifest.
  std::optional<int> writer = {};
};

struct StateFormat {
  std::string name;  // "master", "m", ...; no '/' in it.
  Grid grid = Grid::kElement;
  std::vector<DType> dtypes;       // By flat parameter; empty for own tensors.
  std::vector<OwnTensor> tensors;  // With HasOwnTensors().
  std::vector<bool> coded{};       // kBlock: by flat parameter, whether it has codes.

  // Elements of a flat parameter for one value; own tensors have 1.
  int64_t elements_per_value() const { return grid == Grid::kBlock ? kCodeBlock : 1; }
  // Whether the state has values for the flat parameter, whose index is `u`.
  bool Has(const FlatParameter& flat, size_t u) const;
};

inline constexpr std::string_view kAbsmaxSuffix = "_absmax";
// The state whose codes the absmax belong to: "m" of "m_absmax".
std::string CodesOf(const std::string& absmax);
// The unsigned values are those of "v", the only state that is never negative.
const StateCodeTables& CodesOfState(const std::string& state);

// How the rows of a kRows state are dealt over a world.
RowPlacement DealOf(const StateFormat& state, int world);

// fp32 per element.
std::vector<StateFormat> ElementStates(const std::vector<std::string>& names, size_t flats);

// A frozen flat parameter has its masters alone, coded weights have nothing, and one that is
// updated matrix by matrix has no second moment, "v".
bool FlatHasState(const FlatParameter& flat, std::string_view state);

// ---- Conversion of a checkpoint's states for a run that keeps them in other dtypes ----

// Whether values may be read as `wanted`: unchanged, widened exactly from bf16 or fp16 to fp32, or
// rounded to nearest from fp32 to bf16. CheckpointReader::Read() also decodes and encodes codes.
bool CanConvert(DType stored, DType wanted);

// One line about the states whose dtypes in the checkpoint `there` differ from the run's, `here`:
// "master and m from fp32 to bf16, rounded to nearest; ema from bf16 to fp32, exactly". Compares by
// parameter and tensor; a state that differs in part is "some of master"; uint8 is "8bit". Empty
// where nothing differs. States that only one side has do not count.
std::string DescribeConversion(const Manifest& there, const Layout& layout,
                               const std::vector<StateFormat>& here);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_STATE_FORMAT_H_
