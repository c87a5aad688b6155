// Options of a rank's executor: those of the recipe's section `fsdp`, and the job's.
// Tests: tests/trainer/fsdp/executor_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_OPTIONS_H_
#define FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/autograd/activation_options.h"
#include "trainer/autograd/balance_options.h"
#include "trainer/core/dtype.h"
#include "trainer/fsdp/options.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/ops/convolution_shape.h"

namespace fsdp {

class Moves;
class Parameter;
struct ModelSegment;
enum class Resource;
struct DTypes;
struct StorageRow;

// The dtypes in which a parameter is kept, computed and summed. Depends only on what all ranks
// know.
using DTypeRule = std::function<DTypes(const Parameter&)>;

// Whether a trainable parameter of the segment is updated matrix by matrix (DTypes::whole).
using WholeRule = std::function<bool(const ModelSegment&, const Parameter&)>;
// The dtype of the optimizer's state for what a glob matches; empty: as without it.
struct StateChoice {
  std::string match;
  std::optional<DType> dtype;
};

// Options that determine the step's schedule and memory, for one rank of a job.
struct ExecutorOptions : FsdpOptions {
  Recompute recompute = Recompute::kNone;
  ActivationOffload activation_offload = ActivationOffload::kNone;
  DTypeRule dtypes = nullptr;           // Null: from mixed_precision and state_dtype.
  DType state_dtype = DType::kFloat32;  // The optimizer's, except for parameters kept in fp32.
                                        // kUInt8: codes, for parameters that can have them.
  // By the name of a parameter's first slice: the first that matches counts, before state_dtype.
  std::vector<StateChoice> state_choices = {};
  WholeRule whole = nullptr;  // Such parameters have flat parameters of their own.
  // Second moments of tensors by rows and columns (factor_layout.h), those that `whole` names;
  // nothing is updated matrix by matrix then.
  bool factored = false;

  int64_t micro_batch_size = 1;                         // Rows of a micro-batch.
  int64_t sample_length = 1;                            // Argument of Model::Inputs().
  bool documents = true;                                // Rows of a batch may have several.
  AttentionBackend attention = AttentionBackend::kOwn;  // On a CUDA device.
  ConvolutionBackend convolution = {};                  // The same.
  int micro_batches = 1;                                // Per training step.
  float max_norm = 0;                                   // Clipping; 0 = off.
  bool batch_norm_sync = false;                         // Over all ranks' micro-batches.
  BalanceOptions balance = {};                          // Routers of a mixture.
  int threads = 1;                                      // The compute stream's.
  std::optional<int64_t> memory_limit = {};             // Most bytes of device memory.
  int64_t spill_part = int64_t{1} << 19;                // Elements that go to a disk at once.
  int inside = 0;       // Neighbours on a host that reduce together first: see Mesh's inside_size.
  bool poison = false;  // Fills freed gather slots with NaN.
  bool averages = false;  // Evaluations are given weights of their own, in fp32 (Step::weights).
  // For tests of other places and forms, may be null.
  std::function<void(Resource what, int flat, StorageRow& row)> change_storage = nullptr;
  std::function<void(Moves& moves)> add_moves = nullptr;

  // Recipes refuse it: memory of a caching allocator stays on the device.
  bool OffloadsFromCache() const {
    return buffers == Buffers::kCaching &&
           (cpu_offload.optimizer || activation_offload != ActivationOffload::kNone);
  }
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_OPTIONS_H_
