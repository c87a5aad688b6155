// The recipe's section fsdp, declared once: recipes, executors and schedules share this type. The
// members are the section's keys, the initialisers its defaults; ranges, meanings and documentation
// are in recipe/schema.cc. Enumerators are in the order of their names in recipe.h.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_OPTIONS_H_
#define FSDP_TRAIN_TRAINER_FSDP_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/ops/loss_scaler_options.h"

namespace fsdp {

enum class Strategy { kFullShard, kShardGradOp, kHybridShard, kHybridShardGradOp, kNoShard };
// Whether ranks shard in groups, each of which holds the same shards.
constexpr bool IsHybrid(Strategy strategy) {
  return strategy == Strategy::kHybridShard || strategy == Strategy::kHybridShardGradOp;
}
// kBranch and kExperts are kTransformerBlock for models whose blocks are residual branches, or also
// pieces of a layer's experts (BlockCut, models/family.h).
enum class AutoWrap { kTransformerBlock, kBranch, kExperts, kSize, kNone };
enum class BackwardPrefetch { kPre, kPost, kNone };
enum class Accumulation { kSharded, kUnsharded };

struct WrapPolicy {
  enum class Outside { kUnits, kRoot };

  AutoWrap policy = AutoWrap::kTransformerBlock;
  int64_t min_num_params = 100'000'000;  // kSize: consecutive blocks are joined until they have it.
  // Where the parameters outside the blocks are. kUnits: an untied embedding and an untied head are
  // units of their own. kRoot: all of them are in the root, which is whole from its gather to the
  // end of backward.
  Outside outside = Outside::kUnits;
  int64_t expert_pieces = 1;  // kExperts: units that a layer's experts are.

  bool operator==(const WrapPolicy&) const = default;
};

struct FsdpOptions {
  enum class Limiter { kDevice, kHost };
  enum class Buffers { kSlots, kCaching };

  struct MixedPrecision {
    enum class CastIn { kOptimizer, kGather };
    enum class Sum { kNccl, kExact };

    DType param_dtype = DType::kFloat32;
    DType grad_dtype = DType::kFloat32;
    DType reduce_dtype = DType::kFloat32;
    DType master_dtype = DType::kFloat32;
    DType buffer_dtype = DType::kFloat32;
    std::vector<std::string> keep_fp32 = {};  // Globs over the names of slices: see KeptInFp32().
    CastIn cast = CastIn::kOptimizer;         // Who casts the masters to param_dtype.
    std::optional<Sum> sum = {};              // Who adds up gradients of 16 bits on GPUs.
    LossScalerOptions scaler = {};

    // Whether a value that fp32 holds can overflow.
    bool ScalesLoss() const {
      constexpr DType kHalf = DType::kFloat16;
      return param_dtype == kHalf || grad_dtype == kHalf || reduce_dtype == kHalf;
    }
    bool operator==(const MixedPrecision&) const = default;
  };
  struct CpuOffload {
    bool params = false;  // With `optimizer`.
    bool optimizer = false;
    double optimizer_share = 0;  // The share of units whose updates stay on the device.
    int64_t threads = 0;         // For the host's updates; 0: as many as compute on the CPU.
    std::optional<std::string> spill = {};  // A directory for state that only the host's updates
                                            // read.
    int64_t spill_ahead = 2;                // Units read ahead of the one that is updated.
    bool operator==(const CpuOffload&) const = default;
  };

  // Fewer bits on the wire: blocks of elements that share a scale (ops/quantize.h).
  struct Quantize {
    enum class Gather { kNone, kInt8, kFp8 };
    enum class Reduce { kNone, kInt8, kInt4 };

    Gather gather = Gather::kNone;
    Reduce reduce = Reduce::kNone;
    int64_t block = 256;       // Elements: 64, 128 or 256.
    int64_t min_size = 65536;  // Parameters with fewer elements travel as they are.

    bool operator==(const Quantize&) const = default;
  };

  Strategy sharding_strategy = Strategy::kFullShard;
  std::optional<int64_t> shard_size;  // CheckWorld() (recipe/load.h) holds it against the world.
  std::optional<int64_t> reshard_after_forward;  // k.
  WrapPolicy auto_wrap;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  bool forward_prefetch = true;
  int64_t limit_all_gathers = 2;  // Gather slots; 0: one for each unit. See rate_limiter.h.
  int64_t reduce_buffers = 2;     // Gradient slots.
  int64_t communicators = 2;      // 1: gathers and reductions share the gather stream.
  Limiter limiter = Limiter::kDevice;
  Buffers buffers = Buffers::kSlots;
  Accumulation gradient_accumulation = Accumulation::kSharded;
  bool concat_gradients = false;  // With Buffers::kCaching: see schedule.h.
  // Multiprocessors of a GPU that a collective may take; 0: as many as NCCL likes. Null: by the
  // machine (loop/multiprocessors.h).
  std::optional<int64_t> collective_blocks = {};
  MixedPrecision mixed_precision;
  CpuOffload cpu_offload;
  Quantize quantize;
  bool fake_all_gather = false;  // See fake_collectives.h.
  bool fake_reduce = false;

  // The resulting weights are meaningless.
  bool fake() const { return fake_all_gather || fake_reduce; }

  bool operator==(const FsdpOptions&) const = default;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_OPTIONS_H_
