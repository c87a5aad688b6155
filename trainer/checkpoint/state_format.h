// How a checkpoint keeps a state: in which dtype, and what one value of it stands for.
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
#include "trainer/fsdp/row_deal.h"

namespace fsdp {

enum class Grid : uint8_t {
  kElement,  // A value an element of the flat parameter: weights, moments.
  kTensor,   // Tensors of their own: factors of a parameter, its scales, running statistics.
  // Tables [rows, ...] whose rows are dealt over the ranks (fsdp/row_deal.h), in their order: each
  // rank writes its rows of each, which in files follow those of the rank before.
  kRows,
};

std::string_view Name(Grid grid);  // "element", "tensor", "rows".
std::optional<Grid> FindGrid(std::string_view name);

// What state is kept in: fp32, bf16, fp16, uint8; tensors of their own int64, too.
bool IsStateDType(DType dtype, Grid grid);
std::optional<DType> FindStateDType(std::string_view name, Grid grid);

// The state, of kTensor, whose tensors are the model's buffers, by their names, without an owner.
inline constexpr char kBuffersState[] = "buffers";

// Those of kRows: embedding tables, and what their updates keep of a row, both without owners.
inline constexpr char kRowsState[] = "rows", kRowSumsState[] = "row_sums";

inline bool HasOwnTensors(Grid grid) { return grid == Grid::kTensor || grid == Grid::kRows; }

// A tensor of no flat parameter. Of kTensor, it has one value in the whole job, so it means the
// same at any world: what ranks hold apart (statistics of their own batches) they make one before a
// save.
struct OwnTensor {
  std::string name;   // Of its state's tensors, this one's.
  std::string owner;  // The parameter that it belongs to; empty: the whole model.
  DType dtype = DType::kFloat32;
  Shape shape;  // At least one element.
};

struct StateFormat {
  std::string name;  // "master", "m", ...; no '/' in it.
  Grid grid = Grid::kElement;
  std::vector<DType> dtypes;       // By flat parameter; of tensors of their own: none.
  std::vector<OwnTensor> tensors;  // Where HasOwnTensors().
};

// How the rows of a state of kRows are dealt over a world.
RowDeal DealOf(const StateFormat& state, int world);

// fp32 per element: all that version 1 knew.
std::vector<StateFormat> ElementStates(const std::vector<std::string>& names, size_t flats);

bool FlatHasState(const FlatParameter& flat, std::string_view state);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_STATE_FORMAT_H_
