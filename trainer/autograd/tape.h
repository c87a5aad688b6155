// A small reverse-mode tape: one for each micro-batch, no global state. It keeps handles of
// parameters, never their addresses, because a unit's memory comes and goes between forward and
// backward.
//
// Activations live until the last node that saved them has run. A tape enqueues all its work on one
// stream, so memory that is given back may be handed out at once.
#ifndef FSDP_TRAIN_TRAINER_AUTOGRAD_TAPE_H_
#define FSDP_TRAIN_TRAINER_AUTOGRAD_TAPE_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "trainer/autograd/activation_options.h"
#include "trainer/autograd/balance_options.h"
#include "trainer/autograd/kv_cache.h"
#include "trainer/autograd/segment.h"
#include "trainer/autograd/table_vectors.h"
#include "trainer/autograd/var.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/ops/convolution_shape.h"
#include "trainer/runtime/allocator.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

class Tape {
 public:
  // `record`: the tape is a training step's. Without it nothing is saved and Backward() does
  // nothing: an evaluation. `activations`: the dtype that a model's first layer computes, which
  // later layers keep.
  Tape(Stream& stream, Allocator& allocator, SegmentHooks& hooks, bool record, Recompute recompute,
       DType activations = DType::kFloat32);
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  Stream& stream() const { return stream_; }
  bool recording() const { return record_; }
  // training(): this tape is a training step's, so layers use the batch's own statistics.
  // writes_buffers(): layers also add these statistics to the running ones. They do so in forward,
  // and not when a segment is run again.
  bool training() const { return training_; }
  bool writes_buffers() const { return training_ && !again_; }
  // This is a segment that is run again, whose output nobody reads.
  bool again() const { return again_; }
  DType activations() const { return activations_; }

  SegmentHooks& hooks() { return hooks_; }  // batch_ranks(): for batch norms.

  // For generation, on a tape that does not record: attention also sees the cache's keys and
  // values, and writes those of the batch into the cache, at their positions.
  void Use(KvCache* cache) { cache_ = cache; }
  KvCache* cache() const { return cache_; }

  // `backend`: the kernels that attention uses on CUDA, where it may choose. `documents`: rows may
  // hold several documents, which attention keeps apart.
  void AttendWith(AttentionBackend backend, bool documents) {
    attention_ = backend;
    documents_ = documents;
  }
  AttentionBackend attention() const { return attention_; }
  bool documents() const { return documents_; }

  // The kernels that convolutions use on CUDA. Null: our own. The tape keeps the address.
  void ConvolveWith(const ConvolutionBackend* backend) { convolution_ = backend; }
  ConvolutionBackend convolution() const {
    return convolution_ == nullptr ? ConvolutionBackend() : *convolution_;
  }

  // How mixtures of experts keep their loads even. Null: not at all. The tape keeps the address.
  void BalanceWith(const BalanceOptions* options) { balance_ = options; }
  BalanceOptions balance() const { return balance_ == nullptr ? BalanceOptions() : *balance_; }

  // Batch::sample_keys, for the dropout of adapters (nn/lora.h), whose layers see no batch.
  void DropAdaptersBy(const View& sample_keys) { adapter_keys_ = sample_keys; }
  const View& adapter_keys() const { return adapter_keys_; }

  // Looks up the micro-batch's ids in these tables. Null: the model has no tables.
  void LookUpIn(TableVectors* tables) { tables_ = tables; }
  TableVectors* tables() const { return tables_; }

  // scale: [1], fp32. Multiplies the gradients of the loss, and not the loss itself.
  void ScaleGradients(const ConstView& scale) { loss_scale_ = scale; }
  const std::optional<ConstView>& loss_scale() const { return loss_scale_; }

  // For ops. ------------------------------------------------------------------------------------
  TensorPtr New(const Shape& shape, DType dtype);
  Var NewVar(const Shape& shape, DType dtype);
  SavedPtr NewSaved(const Shape& shape, DType dtype);
  // `node` runs in Backward(), after the nodes pushed later, and is then destroyed with the values
  // that it saved. No-op unless recording.
  void Push(std::function<void()> node);
  // Declares `values` cheap to make again. Under kSelective they are dropped at the end of the
  // segment. When one of them is needed, `remake` fills new tensors for all of them, in this order.
  // It must not own any of `values`.
  void Cheap(const std::vector<SavedPtr>& values,
             std::function<void(const std::vector<View>&)> remake);

  // For a value that later segments read, too. Share() is called in the segment that makes it:
  // its end neither drops nor offloads the value. Keep() is called in the last that reads it: it
  // is offloaded with that segment.
  void Share(const SavedPtr& value);
  void Keep(const SavedPtr& value);

  // Returns make() in forward. Where the segment is run again, returns what the same call made in
  // forward.
  TensorPtr Once(const std::function<TensorPtr()>& make);

  // Gradients. Add() takes the tensor over: the caller must not use it afterwards. All gradients of
  // one sum have one dtype, which is the sum's.
  void Add(const std::shared_ptr<TensorPtr>& grad, TensorPtr tensor);
  // The summed gradient, which the caller now owns alone or shares with others.
  static TensorPtr Take(const std::shared_ptr<TensorPtr>& grad);
  // Whether `tensor` may be written to: nobody else holds it.
  static bool Owned(const TensorPtr& tensor) { return tensor.use_count() == 1; }

  // For models. ---------------------------------------------------------------------------------
  // Runs `body` as segment `index`. Gradients that reach an input inside the segment are summed
  // there first, then added outside, input by input. This holds whether or not the segment is run
  // again (`recomputable` under kFull), so both ways give the same bits. An input without a place
  // for its gradient gets none. FSDP_CHECKs that every input has been written, and that an input of
  // several segments says so (Var::last_reader).
  using Body = std::function<Var(Tape& tape, std::span<const Var> inputs)>;
  Var Segment(int index, const std::vector<Var>& inputs, bool recomputable, const Body& body);
  // The same for one input, or for none: an empty Var.
  using BodyOfOne = std::function<Var(Tape& tape, const Var& input)>;
  Var Segment(int index, const Var& input, bool recomputable, const BodyOfOne& body);

  // Runs all nodes, last first.
  void Backward();

  // For activation offload. Backward needs a segment's input and the values saved in it, but not
  // its output. These calls move them. (The row statistics that a norm keeps stay.)

  // Enqueues one copy between views of the same dtype and number of elements.
  using CopyTensor = std::function<void(Stream& stream, View from, View to)>;
  // Allocates in `place`, and enqueues the copies to it.
  void CopyToHost(int segment, Stream& stream, MemoryPlace place, const CopyTensor& copy);
  // Gives the device's memory back. The tape's stream must have waited for the copies.
  void DropFromDevice(int segment);
  // Allocates on the device, possibly memory that enqueued work of the tape's stream still uses,
  // and enqueues the copies to it. Gives the host's memory back.
  void CopyToDevice(int segment, Stream& stream, const CopyTensor& copy);

 private:
  // A kept value of a segment. `host` exists from CopyToHost() to CopyToDevice().
  struct Kept {
    std::weak_ptr<Saved> saved;
    TensorPtr host;
  };

  // The tape of a segment that is run for itself, without recomputation in it. `again`: after its
  // forward.
  Tape(const Tape& outer, bool record, bool again);

  // The inputs, with places of their own for their gradients; and adding these gradients outside.
  using Gradients = std::vector<std::shared_ptr<TensorPtr>>;
  static std::vector<Var> Inside(std::span<const Var> inputs);
  static Gradients GradientsOf(std::span<const Var> inputs);
  void AddOutside(const Gradients& outside, const Gradients& inside);
  // Lists the inputs that are offloaded with the segment.
  static void KeepInputs(int segment, std::span<const Var> inputs, std::vector<Kept>& kept);

  void DropCheap();

  Stream& stream_;
  Allocator& allocator_;
  SegmentHooks& hooks_;
  const bool record_;
  bool training_, again_ = false;
  const Recompute recompute_;
  const DType activations_;
  KvCache* cache_ = nullptr;
  AttentionBackend attention_ = AttentionBackend::kOwn;
  bool documents_ = true;
  const ConvolutionBackend* convolution_ = nullptr;
  const BalanceOptions* balance_ = nullptr;
  TableVectors* tables_ = nullptr;
  View adapter_keys_ = {};
  std::optional<ConstView> loss_scale_;
  std::vector<std::function<void()>> nodes_;
  using Made = std::deque<TensorPtr>;  // Results of Once(), in order, for the segment's recompute.
  std::shared_ptr<Made> made_;
  std::vector<std::weak_ptr<Saved>> cheap_;  // Values of the segment that is being recorded.
  std::vector<Kept> recorded_;               // Values of the segment that is being recorded.
  std::map<int, std::vector<Kept>> kept_;    // By segment.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_AUTOGRAD_TAPE_H_
