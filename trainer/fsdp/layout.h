// Where every parameter lies: units, flat parameters, offsets, shards. A pure function of names,
// shapes, wrapping and F, so ranks agree on it without talking, and a checkpoint can be read at any
// F.
//
// Unit (arXiv 2304.11277, section 3.2.1): what is gathered, freed and reduced together. Its
// parameters lie end to end in flat parameters: one for those that train, one for the frozen, and
// of each kind one for every choice of dtypes.
// Offsets count elements and are the same for every dtype: each parameter starts at a multiple of
// 64 (a cache line of any dtype), each shard is a multiple of 256 (so a norm's chunk of 256 never
// straddles two ranks). Padding is zero in parameters, gradients and state, by construction.
#ifndef FSDP_TRAIN_TRAINER_FSDP_LAYOUT_H_
#define FSDP_TRAIN_TRAINER_FSDP_LAYOUT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/fsdp/options.h"

namespace fsdp {

constexpr int64_t kParameterAlignment = 64;  // Elements.
constexpr int64_t kShardAlignment = 256;     // Elements.

// What a flat parameter is kept, computed and summed in: five choices, none implied by another.
// fp32 where nothing else is said.
struct DTypes {
  DType master = DType::kFloat32;   // What the optimizer updates and a checkpoint holds.
  DType state = DType::kFloat32;    // Of the optimizer.
  DType compute = DType::kFloat32;  // What is gathered, and seen by the model's code.
  DType grad = DType::kFloat32;     // What backward adds to, before it is reduced.
  DType reduce = DType::kFloat32;   // What of that travels.
  bool quantized = false;           // Matrices travel in blocks that share a scale.

  bool operator==(const DTypes&) const = default;
};

struct ParameterShape {
  std::string name;  // Of its Hugging Face file, or of what several tensors of it are put into.
  Shape shape;
  bool frozen = false;
  DTypes dtypes = {};
  bool shared = false;  // Other segments read it, too: it is the root's.
};

// Stretches of a model's forward pass, in order: the embedding, the blocks, the head. The
// parameters of a segment are those it alone uses; what two segments use is listed in one of them:
// as shared, or (a tied embedding) in one that is neither a block nor a unit of its own, and so
// ends up in the root.
struct SegmentShape {
  std::string name;
  bool is_block = false;
  std::vector<ParameterShape> parameters;
  bool own_unit = false;      // Not joined with others: an untied embedding. With kUnits alone.
  bool reads_shared = false;  // What several segments share.
};

struct Placement {
  std::string name;
  Shape shape;
  int64_t offset = 0;  // Elements from the start of the flat parameter.
  int64_t size() const { return shape.NumElements(); }
};

// One buffer of a unit: parameters end to end, sharded over F ranks.
struct FlatParameter {
  std::string name;
  std::vector<Placement> parameters = {};
  int64_t size = 0;        // Elements, with padding: shards * shard_size.
  int64_t shard_size = 0;  // Elements of one rank.
  bool frozen = false;     // All its parameters are: no gradient, no optimizer state.
  DTypes dtypes = {};

  int64_t ShardBegin(int shard) const { return shard * shard_size; }
};

// A block's trainable parameters and its frozen ones are flat parameters of their own (the latter
// named with ".frozen"), because only the former have gradients. The second and later ones of a
// kind, whose dtypes are others, have a number: ".2".
struct Unit {
  std::vector<int> flat_parameters;  // Indices. Not empty; those that train come first.
  int trainable = 0;                 // How many do.
};

struct Layout {
  int shards = 1;                              // F.
  std::vector<FlatParameter> flat_parameters;  // By unit.
  std::vector<Unit> units;                     // [0] is the root: all that no other unit holds.
  std::vector<int> unit_of_segment;            // Parallel to the segments.
  std::vector<bool> reads_root;                // Likewise: it reads what several share.

  int64_t NumParameters() const;  // Without padding.
  int64_t NumTrained() const;     // Of those, the ones that are not frozen.
  // Indices of the unit's flat parameters that train; empty where everything in it is frozen.
  std::span<const int> TrainableFlatParameters(int unit) const;
  // Of a unit's flat parameters, one after the other: gathered, in `compute`; and the gradients of
  // those that train, in `grad`.
  int64_t GatheredBytes(int unit) const;
  int64_t GradientBytes(int unit) const;
};

// Throws std::invalid_argument for shards < 1 or a name that occurs twice.
Layout MakeLayout(const std::vector<SegmentShape>& segments, const WrapPolicy& policy, int shards);

// Elements [begin, begin + count) of a flat parameter's shard.
struct ShardPart {
  int flat = 0;
  int64_t begin = 0, count = 0;
};
// A shard in parts of `elements`, but for the last; and those of a unit's flat parameters that
// train, one after the other.
std::vector<ShardPart> Parts(int flat, int64_t shard_size, int64_t elements);
std::vector<ShardPart> PartsOfUnit(const Layout& layout, int unit, int64_t elements);

// The part of a parameter that a shard holds: elements [begin, begin + count) of the parameter lie
// at element `at` of the shard.
struct Piece {
  const Placement* parameter = nullptr;
  int64_t begin = 0, count = 0, at = 0;
};
std::vector<Piece> PiecesOfShard(const FlatParameter& flat, int shard);
// The same of elements [begin, end) of the flat parameter.
std::vector<Piece> PiecesBetween(const FlatParameter& flat, int64_t begin, int64_t end);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_LAYOUT_H_
