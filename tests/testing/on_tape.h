// A tape in a test: tensors in the host's memory, on a stream of the CPU device.
#ifndef FSDP_TRAIN_TESTS_TESTING_ON_TAPE_H_
#define FSDP_TRAIN_TESTS_TESTING_ON_TAPE_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "trainer/autograd/segment.h"
#include "trainer/core/philox.h"
#include "trainer/runtime/allocator.h"
#include "trainer/runtime/cpu/cpu_device.h"

namespace fsdp::testing {

// Gives nothing back before it ends, and counts what is not freed.
class CountingAllocator final : public Allocator {
 public:
  ~CountingAllocator() override {
    for (std::byte* block : blocks_) ::operator delete[](block, std::align_val_t(64));
  }
  std::byte* Allocate(int64_t bytes, MemoryUse) override {
    blocks_.push_back(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(64))));
    ++live_;
    return blocks_.back();
  }
  void Free(std::byte*, int64_t, MemoryUse) noexcept override { --live_; }

  int live() const { return live_; }
  size_t total() const { return blocks_.size(); }

 private:
  std::vector<std::byte*> blocks_;
  int live_ = 0;
};

class Journal final : public SegmentHooks {
 public:
  void Enter(int segment, Pass pass) override { Note("enter ", segment, pass); }
  void Leave(int segment, Pass pass) override { Note("leave ", segment, pass); }
  bool HasBackward(int segment) const override { return segment >= backward_from; }
  std::vector<std::string> lines;
  int backward_from = 0;

 private:
  void Note(const char* what, int segment, Pass pass) {
    lines.push_back(what + std::to_string(segment) + " " + "FRB"[static_cast<int>(pass)]);
  }
};

class OnTape : public ::testing::Test {
 protected:
  TensorPtr Random(const Shape& shape, const char* name) {
    auto tensor = std::make_shared<Tensor>(allocator_, DType::kFloat32, shape);
    const RandomStream random(3, name);
    for (int64_t i = 0; i < shape.NumElements(); ++i) {
      tensor->view().As<float>()[i] = random.Normal(i);
    }
    return tensor;
  }
  // bf16: first, first + 1, ...
  TensorPtr Halves(const Shape& shape, int64_t first) {
    auto tensor = std::make_shared<Tensor>(allocator_, DType::kBFloat16, shape);
    for (int64_t i = 0; i < shape.NumElements(); ++i) {
      tensor->view().As<BFloat16>()[i] = BFloat16(static_cast<float>(first + i));
    }
    return tensor;
  }
  static std::vector<float> Values(const TensorPtr& tensor) {
    const float* data = tensor->view().As<float>();
    return {data, data + tensor->view().NumElements()};
  }

  const Shape kShape{5, 7};
  CpuDevice device_;
  CountingAllocator allocator_;
  std::unique_ptr<Stream> stream_ = device_.CreateStream("compute");
  Journal journal_;
};

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_ON_TAPE_H_
