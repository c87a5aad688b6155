// A small reverse-mode tape. One a micro-batch, no global state. It keeps parameter handles, never
// their addresses: a unit's memory comes and goes between forward and backward.
//
// Activations live until the last node that saved them has run. All of a tape's work is on one
// stream, so memory given back may be handed out at once.
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

#include "trainer/autograd/kv_cache.h"
#include "trainer/autograd/recompute.h"
#include "trainer/autograd/segment.h"
#include "trainer/autograd/table_vectors.h"
#include "trainer/autograd/var.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/runtime/allocator.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

class Tape {
 public:
  // Without `record`, nothing is saved and Backward() has nothing to do: evaluation; with it, it is
  // a training step's. `activations`: the dtype of what a model's first layer makes, and so of all
  // that follows from it.
  Tape(Stream& stream, Allocator& allocator, SegmentHooks& hooks, bool record, Recompute recompute,
       DType activations = DType::kFloat32);
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  Stream& stream() const { return stream_; }
  bool recording() const { return record_; }
  // Whether it is a training step's, whose layers take a batch's own statistics; and whether they
  // add those to the running ones: in forward, not where a segment is run again.
  bool training() const { return training_; }
  bool writes_buffers() const { return training_ && !again_; }
  DType activations() const { return activations_; }

  SegmentHooks& hooks() { return hooks_; }  // Whose micro-batches are one to a batch norm.

  // For generation, on a tape that does not record: attention sees what the cache has, too, and
  // puts what the batch has into it, at its positions.
  void Use(KvCache* cache) { cache_ = cache; }
  KvCache* cache() const { return cache_; }

  // Whose kernels attention takes on CUDA, where it may choose; and whether rows may hold several
  // documents, which attention keeps apart.
  void AttendWith(AttentionBackend backend, bool documents) {
    attention_ = backend;
    documents_ = documents;
  }
  AttentionBackend attention() const { return attention_; }
  bool documents() const { return documents_; }

  // Where the micro-batch's ids are looked up. Null: the model has no tables.
  void LookUpIn(TableVectors* tables) { tables_ = tables; }
  TableVectors* tables() const { return tables_; }

  // [1], fp32: what the gradients of the loss are multiplied by, where the loss is not.
  void ScaleGradients(const ConstView& scale) { loss_scale_ = scale; }
  const std::optional<ConstView>& loss_scale() const { return loss_scale_; }

  // For ops. ------------------------------------------------------------------------------------
  TensorPtr New(const Shape& shape, DType dtype);
  Var NewVar(const Shape& shape, DType dtype);
  SavedPtr NewSaved(const Shape& shape, DType dtype);
  // `node` runs in Backward(), after the nodes pushed later, and is then destroyed with what it
  // saved. No-op unless recording.
  void Push(std::function<void()> node);
  // The values are cheap to make again: under kSelective they are dropped at the end of the
  // segment, and when one of them is needed, `remake` fills new tensors for all of them, in this
  // order. It must not own any of `values`.
  void Cheap(const std::vector<SavedPtr>& values,
             std::function<void(const std::vector<View>&)> remake);

  // make() in forward; where the segment is run again, what the same call of its forward has made.
  TensorPtr Once(const std::function<TensorPtr()>& make);

  // Gradients. Add() takes the tensor over: it must not be used afterwards. What is added up has
  // one dtype, which is the sum's.
  void Add(const std::shared_ptr<TensorPtr>& grad, TensorPtr tensor);
  // The summed gradient, which the caller now owns alone or shares with others.
  static TensorPtr Take(const std::shared_ptr<TensorPtr>& grad);
  // `tensor` itself if nobody else holds it, else null: whether it may be written to.
  static bool Owned(const TensorPtr& tensor) { return tensor.use_count() == 1; }

  // For models. ---------------------------------------------------------------------------------
  // Runs `body` as segment `index`. Gradients that reach an input inside are summed first and then
  // added outside, input by input, whether the segment is run again (`recomputable` under kFull) or
  // not: so both ways give the same bits. An input without a place for its gradient gets none.
  // FSDP_CHECKs that somebody has written every input, and that what several segments read says so.
  using Body = std::function<Var(Tape& tape, std::span<const Var> inputs)>;
  Var Segment(int index, const std::vector<Var>& inputs, bool recomputable, const Body& body);
  // The same of one input, or of none: an empty Var.
  using BodyOfOne = std::function<Var(Tape& tape, const Var& input)>;
  Var Segment(int index, const Var& input, bool recomputable, const BodyOfOne& body);

  // Runs all nodes, last first.
  void Backward();

  // For who follows the schedule: of what backward needs of a segment, which is its input and what
  // was saved in it, but for its output. (What a norm keeps of a row stays.)

  // Enqueues one, of as many elements of a dtype.
  using CopyTensor = std::function<void(Stream& stream, View from, View to)>;
  // Takes memory of the place and enqueues the copies to it.
  void CopyToHost(int segment, Stream& stream, MemoryPlace place, const CopyTensor& copy);
  // Gives the device's memory back. The tape's stream has waited for the copies.
  void DropFromDevice(int segment);
  // Takes memory of the device, which may still be in use by what the tape's stream has, and
  // enqueues the copy to it. The host's is given back.
  void CopyToDevice(int segment, Stream& stream, const CopyTensor& copy);

 private:
  // Of a segment; `host` is there from CopyToHost() to CopyToDevice().
  struct Kept {
    std::weak_ptr<Saved> saved;
    TensorPtr host;
  };

  // Of a segment that is run for itself, without recomputation in it. `again`: after its forward.
  Tape(const Tape& outer, bool record, bool again);

  // The inputs with places of their own for their gradients; and what reached those, outside.
  using Gradients = std::vector<std::shared_ptr<TensorPtr>>;
  static std::vector<Var> Inside(std::span<const Var> inputs);
  static Gradients GradientsOf(std::span<const Var> inputs);
  void AddOutside(const Gradients& outside, const Gradients& inside);
  // What of a segment's inputs leaves with it.
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
  TableVectors* tables_ = nullptr;
  std::optional<ConstView> loss_scale_;
  std::vector<std::function<void()>> nodes_;
  using Made = std::deque<TensorPtr>;  // By Once(), in order, for the segment's recompute.
  std::shared_ptr<Made> made_;
  std::vector<std::weak_ptr<Saved>> cheap_;  // Of the segment that is being recorded.
  std::vector<Kept> recorded_;               // Likewise.
  std::map<int, std::vector<Kept>> kept_;    // By segment.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_AUTOGRAD_TAPE_H_
