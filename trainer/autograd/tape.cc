#include "trainer/autograd/tape.h"

#include <utility>

#include "trainer/core/check.h"
#include "trainer/ops/elementwise.h"

namespace fsdp {

struct Saved::Recipe {
  struct Value {
    std::weak_ptr<Saved> saved;
    Shape shape;
    DType dtype;
  };
  Tape& tape;
  std::vector<Value> values;
  std::function<void(const std::vector<View>&)> remake;
};

const View& Saved::Get() {
  if (tensor_ == nullptr) {
    FSDP_CHECK(recipe_ != nullptr) << "a value is used after it was dropped";
    std::vector<TensorPtr> tensors;  // Those nobody wants any more go when this returns.
    std::vector<View> views;
    for (const auto& [saved, shape, dtype] : recipe_->values) {
      const SavedPtr value = saved.lock();
      tensors.push_back(recipe_->tape.New(shape, dtype));
      views.push_back(tensors.back()->view());
      if (value) value->tensor_ = tensors.back();
    }
    recipe_->remake(views);
  }
  return tensor_->view();
}

Tape::Tape(Stream& stream, Allocator& allocator, SegmentHooks& hooks, bool record,
           Recompute recompute, DType activations)
    : stream_(stream),
      allocator_(allocator),
      hooks_(hooks),
      record_(record),
      training_(record),
      recompute_(recompute),
      activations_(activations) {}

Tape::Tape(const Tape& outer, bool record, bool again)
    : Tape(outer.stream_, outer.allocator_, outer.hooks_, record, Recompute::kNone,
           outer.activations_) {
  training_ = outer.training_;
  again_ = again;
  attention_ = outer.attention_;
  documents_ = outer.documents_;
  convolution_ = outer.convolution_;
  balance_ = outer.balance_;
  tables_ = outer.tables_;
  adapter_keys_ = outer.adapter_keys_;
  loss_scale_ = outer.loss_scale_;
}

TensorPtr Tape::New(const Shape& shape, DType dtype) {
  return std::make_shared<Tensor>(allocator_, dtype, shape);
}

Var Tape::NewVar(const Shape& shape, DType dtype) {
  Var var(New(shape, dtype), record_ ? std::make_shared<TensorPtr>() : nullptr);
  Keep(var.value);
  return var;
}

SavedPtr Tape::NewSaved(const Shape& shape, DType dtype) {
  auto saved = std::make_shared<Saved>(New(shape, dtype));
  Keep(saved);
  return saved;
}

void Tape::Push(std::function<void()> node) {
  if (record_) nodes_.push_back(std::move(node));
}

void Tape::Cheap(const std::vector<SavedPtr>& values,
                 std::function<void(const std::vector<View>&)> remake) {
  if (!record_ || recompute_ != Recompute::kSelective) return;
  Saved::Recipe recipe{*this, {}, std::move(remake)};
  for (const SavedPtr& value : values) {
    recipe.values.push_back({value, value->Get().shape, value->Get().dtype});
    cheap_.push_back(value);
  }
  const auto shared = std::make_shared<const Saved::Recipe>(std::move(recipe));
  for (const SavedPtr& value : values) value->recipe_ = shared;
}

void Tape::Share(const SavedPtr& value) {
  const auto is_it = [&](const std::weak_ptr<Saved>& saved) { return saved.lock() == value; };
  std::erase_if(cheap_, is_it);
  std::erase_if(recorded_, [&](const Kept& kept) { return is_it(kept.saved); });
  value->recipe_ = nullptr;
}

void Tape::Keep(const SavedPtr& value) {
  if (record_) recorded_.push_back({value, nullptr});
}

TensorPtr Tape::Once(const std::function<TensorPtr()>& make) {
  if (!again_) {
    TensorPtr tensor = make();
    if (made_) made_->push_back(tensor);
    return tensor;
  }
  FSDP_CHECK(made_ != nullptr && !made_->empty()) << "forward has made less than its recompute";
  TensorPtr tensor = std::move(made_->front());
  made_->pop_front();
  return tensor;
}

void Tape::DropCheap() {
  for (const std::weak_ptr<Saved>& value : cheap_) {
    if (const SavedPtr saved = value.lock()) saved->tensor_ = nullptr;
  }
  cheap_.clear();
}

void Tape::Add(const std::shared_ptr<TensorPtr>& grad, TensorPtr tensor) {
  if (*grad == nullptr) {
    *grad = std::move(tensor);
    return;
  }
  if (!Owned(*grad)) {  // A skip connection's two branches share it: the other one still reads.
    std::swap(*grad, tensor);
  }
  if (!Owned(*grad)) {  // Both are shared: x + x, say.
    TensorPtr sum = New(tensor->view().shape, tensor->view().dtype);
    fsdp::Add(stream_, tensor->view(), (*grad)->view(), sum->view());
    *grad = std::move(sum);
    return;
  }
  Accumulate(stream_, tensor->view(), (*grad)->view());
}

TensorPtr Tape::Take(const std::shared_ptr<TensorPtr>& grad) {
  FSDP_CHECK(*grad != nullptr) << "no gradient has reached this value";
  return std::exchange(*grad, nullptr);
}

std::vector<Var> Tape::Inside(std::span<const Var> inputs) {
  std::vector<Var> inside(inputs.begin(), inputs.end());
  for (Var& input : inside) input.grad = std::make_shared<TensorPtr>();
  return inside;
}

Tape::Gradients Tape::GradientsOf(std::span<const Var> inputs) {
  Gradients gradients;
  for (const Var& input : inputs) gradients.push_back(input.grad);
  return gradients;
}

void Tape::AddOutside(const Gradients& outside, const Gradients& inside) {
  const bool alone = outside.size() == 1;
  for (size_t i = 0; i < outside.size(); ++i) {
    // The segment may leave some of several inputs without a gradient.
    if (outside[i] && (alone || *inside[i])) Add(outside[i], Take(inside[i]));
  }
}

void Tape::KeepInputs(int segment, std::span<const Var> inputs, std::vector<Kept>& kept) {
  for (const Var& input : inputs) {
    const bool leaves = input.last_reader < 0 || input.last_reader == segment;
    if (leaves) kept.push_back({input.value, nullptr});
  }
}

Var Tape::Segment(int index, const Var& input, bool recomputable, const BodyOfOne& body) {
  if (!input.value) {
    return Segment(index, std::vector<Var>(), recomputable,
                   [body](Tape& tape, std::span<const Var>) { return body(tape, Var()); });
  }
  return Segment(index, std::vector<Var>{input}, recomputable,
                 [body](Tape& tape, std::span<const Var> inputs) { return body(tape, inputs[0]); });
}

Var Tape::Segment(int index, const std::vector<Var>& inputs, bool recomputable, const Body& body) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    FSDP_CHECK(inputs[i].value != nullptr)
        << "input " << i << " of segment " << index << ": nobody has written it";
    FSDP_CHECK(inputs[i].last_reader < 0 || index <= inputs[i].last_reader)
        << "input " << i << " of segment " << index << " was to be read up to segment "
        << inputs[i].last_reader;
  }
  if (record_ && !hooks_.HasBackward(index)) {
    hooks_.Enter(index, Pass::kForward);
    Tape forward(*this, /*record=*/false, /*again=*/false);
    Var output = body(forward, inputs);
    hooks_.Leave(index, Pass::kForward);
    return output;
  }
  if (record_ && recompute_ == Recompute::kFull && recomputable) {
    hooks_.Enter(index, Pass::kForward);
    Tape forward(*this, /*record=*/false, /*again=*/false);
    const auto made = std::make_shared<Made>();
    forward.made_ = made;
    Var output = body(forward, inputs);
    if (!inputs.empty()) {
      kept_[index].clear();
      KeepInputs(index, inputs, kept_[index]);
    }
    hooks_.Leave(index, Pass::kForward);
    output.grad = std::make_shared<TensorPtr>();
    Push([this, index, inputs, output_grad = output.grad, body, made] {
      hooks_.Enter(index, Pass::kRecompute);
      Tape again(*this, /*record=*/true, /*again=*/true);
      again.made_ = made;
      const std::vector<Var> inside = Inside(inputs);
      {
        const Var output = body(again, inside);
        *output.grad = Take(output_grad);
      }
      hooks_.Leave(index, Pass::kRecompute);
      hooks_.Enter(index, Pass::kBackward);
      again.Backward();
      hooks_.Leave(index, Pass::kBackward);
      AddOutside(GradientsOf(inputs), GradientsOf(inside));
    });
    return output;
  }

  hooks_.Enter(index, Pass::kForward);
  recorded_.clear();
  std::vector<Var> inside = record_ ? Inside(inputs) : inputs;
  // Backward runs nodes last first: this one, pushed before the body's, leaves the segment, and the
  // one pushed after them enters it.
  Push([this, index, outer = GradientsOf(inputs), inner = GradientsOf(inside)] {
    hooks_.Leave(index, Pass::kBackward);
    AddOutside(outer, inner);
  });
  Var output = body(*this, inside);
  Push([this, index] { hooks_.Enter(index, Pass::kBackward); });
  DropCheap();
  if (record_) {
    std::erase_if(recorded_, [&](const Kept& kept) { return kept.saved.lock() == output.value; });
    KeepInputs(index, inputs, recorded_);
    kept_[index] = std::move(recorded_);
  }
  hooks_.Leave(index, Pass::kForward);
  return output;
}

void Tape::CopyToHost(int segment, Stream& stream, MemoryPlace place, const CopyTensor& copy) {
  for (Kept& kept : kept_[segment]) {
    const SavedPtr saved = kept.saved.lock();
    if (!saved || !saved->tensor_) continue;  // Nobody saved it, or it is made again.
    const View& view = saved->tensor_->view();
    kept.host = std::make_shared<Tensor>(allocator_, view.dtype, view.shape,
                                         MemoryUse(MemoryKind::kActivations, place));
    copy(stream, view, kept.host->view());
  }
}

void Tape::DropFromDevice(int segment) {
  for (const Kept& kept : kept_[segment]) {
    if (!kept.host) continue;
    const SavedPtr saved = kept.saved.lock();
    if (!saved) continue;  // An input that nobody has saved.
    FSDP_CHECK(Owned(saved->tensor_)) << "somebody else holds what is offloaded";
    saved->tensor_ = nullptr;
  }
}

void Tape::CopyToDevice(int segment, Stream& stream, const CopyTensor& copy) {
  for (const Kept& kept : std::exchange(kept_[segment], {})) {
    const SavedPtr saved = kept.saved.lock();
    if (!kept.host || !saved) continue;
    const View& host = kept.host->view();
    TensorPtr tensor = New(host.shape, host.dtype);
    copy(stream, host, tensor->view());
    saved->tensor_ = std::move(tensor);
  }
}

void Tape::Backward() {
  while (!nodes_.empty()) {
    const std::function<void()> node = std::move(nodes_.back());
    nodes_.pop_back();
    node();
  }
}

}  // namespace fsdp
