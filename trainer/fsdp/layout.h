// The layout of all parameters: units, flat parameters, offsets, shards. A pure function of names,
// shapes, wrapping and F, so ranks agree on the layout without talking, and a checkpoint can be
// read at any F.
//
// A unit (arXiv 2304.11277, section 3.2.1) is gathered, freed and reduced together. Its parameters
// lie end to end in flat parameters: one for those that train and one for the frozen, each split
// again by choice of dtypes.
// Offsets count elements and are the same for every dtype: each parameter starts at a multiple of
// 64 (a cache line of any dtype), each shard is a multiple of 256 (so a norm's chunk of 256 never
// straddles two ranks). A matrix that may travel in blocks of 64, 128 or 256, or whose optimizer
// state is in blocks, starts at a multiple of 256, so that its blocks are the same in every layout.
// A frozen weight may be kept as records of many elements: then offsets count bytes, and a shard
// has whole records. Padding is zero in parameters, gradients and state, by construction.
#ifndef FSDP_TRAIN_TRAINER_FSDP_LAYOUT_H_
#define FSDP_TRAIN_TRAINER_FSDP_LAYOUT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/fsdp/options.h"
#include "trainer/ops/weight_code.h"

namespace fsdp {

constexpr int64_t kParameterAlignment = 64;  // Elements.
constexpr int64_t kShardAlignment = 256;     // Elements.

// The dtypes in which a flat parameter is kept, computed and summed: five choices, none implied by
// another. fp32 by default. The last two say how elements travel, and how they are updated.
struct DTypes {
  DType master = DType::kFloat32;   // The optimizer updates it, a checkpoint holds it.
  DType state = DType::kFloat32;    // The optimizer's. kUInt8: codes (ops/state_codes.h).
  DType compute = DType::kFloat32;  // Gathered, and seen by the model's code.
  DType grad = DType::kFloat32;     // Backward adds to it, before the reduction.
  DType reduce = DType::kFloat32;   // The gradient as it travels.
  bool quantized = false;           // Matrices travel in blocks that share a scale.
  bool whole = false;               // Updated matrix by matrix (matrix_layout.h).
  // Frozen weights that are kept and gathered as records (ops/weight_codes.h): elements of the flat
  // parameter are their bytes, and dtypes are uint8.
  WeightCode code = WeightCode::kNone;

  bool operator==(const DTypes&) const = default;
};

struct ParameterShape {
  std::string name;  // From the Hugging Face file, or a name for several of its tensors in one.
  Shape shape;
  bool frozen = false;
  DTypes dtypes = {};
  bool shared = false;      // Other segments read it, too: it belongs to the root.
  int64_t coded_bytes = 0;  // With a code.
};

// A stretch of a model's forward pass: the embedding, a block, the head. A segment lists the
// parameters that it alone uses. A parameter of two segments is listed in one of them: as shared,
// or (a tied embedding) in a segment that is neither a block nor a unit of its own and so ends up
// in the root.
struct SegmentShape {
  std::string name;
  bool is_block = false;
  std::vector<ParameterShape> parameters;
  bool own_unit = false;      // Not joined with others, such as an untied embedding. With kUnits
                              // alone.
  bool reads_shared = false;  // Reads parameters that several segments share.
};

struct Placement {
  std::string name;
  Shape shape;
  int64_t offset = 0;       // Elements from the start of the flat parameter.
  int64_t coded_bytes = 0;  // With a code: of the parameter's records.

  int64_t parameters() const { return shape.NumElements(); }
  // Elements of the flat parameter.
  int64_t size() const { return coded_bytes > 0 ? coded_bytes : parameters(); }
};

// One buffer of a unit: parameters end to end, sharded over F ranks.
struct FlatParameter {
  std::string name;
  std::vector<Placement> parameters = {};
  int64_t size = 0;        // Elements, with padding: shards * shard_size.
  int64_t shard_size = 0;  // Elements of one rank's shard.
  bool frozen = false;     // All its parameters are frozen: no gradient, no optimizer state.
  DTypes dtypes = {};
  // The model has coded weights, and this is frozen, coded or not: part of the base that such a run
  // is made of. Checkpoints do not hold it.
  bool of_base = false;

  int64_t ShardBegin(int shard) const { return shard * shard_size; }
  bool HasRecords() const { return dtypes.code != WeightCode::kNone; }
  bool HasCodes() const { return !frozen && dtypes.state == DType::kUInt8; }
};

// A block's trainable parameters and its frozen ones are flat parameters of their own (the latter
// named with ".frozen"): only the former have gradients, and a common shard would divide them
// unevenly among ranks. The second and later ones of a kind, with other dtypes, have a number:
// ".2".
struct Unit {
  std::vector<int> flat_parameters;  // Indices. Not empty; those that train come first.
  int trainable = 0;                 // The number that train.
};

struct Layout {
  int shards = 1;                              // F.
  std::vector<FlatParameter> flat_parameters;  // By unit.
  std::vector<Unit> units;                     // [0] is the root: all that no other unit holds.
  std::vector<int> unit_of_segment;            // Parallel to the segments.
  std::vector<bool> reads_root;                // Parallel to the segments: reads shared parameters.

  int64_t NumParameters() const;  // Without padding.
  int64_t NumTrained() const;     // Those that are not frozen.
  // Indices of the unit's flat parameters that train; empty where everything in it is frozen.
  std::span<const int> TrainableFlatParameters(int unit) const;
  // Bytes of a unit's flat parameters, one after the other: gathered, in `compute`; and the
  // gradients of those that train, in `grad`.
  int64_t GatheredBytes(int unit) const;
  int64_t GradientBytes(int unit) const;
};

// Elements that a shard is a multiple of.
int64_t ShardAlignment(const DTypes& dtypes);

// Throws std::invalid_argument for shards < 1 or a name that occurs twice.
Layout MakeLayout(const std::vector<SegmentShape>& segments, const WrapPolicy& policy, int shards);

// Elements [begin, begin + count) of a flat parameter's shard.
struct ShardPart {
  int flat = 0;
  int64_t begin = 0, count = 0;
  bool momentum = false;  // It is of momentum alone, which is updated first.
};
// A shard in parts of `elements`, the last one shorter. PartsOfUnit() has the parts of all of a
// unit's flat parameters that train, one after the other; then those of the momentum of flat
// parameters with DTypes::whole.
std::vector<ShardPart> Parts(int flat, int64_t shard_size, int64_t elements);
std::vector<ShardPart> PartsOfUnit(const Layout& layout, int unit, int64_t elements);

// The part of a parameter that a shard holds: elements [begin, begin + count) of the parameter lie
// at element `at` of the shard.
struct Piece {
  const Placement* parameter = nullptr;
  int64_t begin = 0, count = 0, at = 0;
};
std::vector<Piece> PiecesOfShard(const FlatParameter& flat, int shard);
// The pieces of elements [begin, end) of the flat parameter.
std::vector<Piece> PiecesBetween(const FlatParameter& flat, int64_t begin, int64_t end);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_LAYOUT_H_
