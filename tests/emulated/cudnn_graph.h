// A graph of cuDNN's operations as a program: a CPU runs it operation by operation. A convolution
// is a graph of its own (cudnn_convolution.cc).
#ifndef FSDP_TRAIN_TESTS_EMULATED_CUDNN_GRAPH_H_
#define FSDP_TRAIN_TESTS_EMULATED_CUDNN_GRAPH_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/ops/cudnn/cudnn_api.h"

namespace fsdp {

struct CudnnTensor {
  int64_t id = 0;
  std::array<int64_t, 4> dims = {}, strides = {};
  cudnn::DataType type = cudnn::DataType::kFloat;
  int64_t alignment = 16;
  bool is_virtual = false, by_value = false;

  int64_t Elements() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  int64_t Offset(const std::array<int64_t, 4>& at) const {
    return at[0] * strides[0] + at[1] * strides[1] + at[2] * strides[2] + at[3] * strides[3];
  }
};

// A tensor with memory: the program's, or its own where the tensor is virtual.
struct CudnnPlaced {
  const CudnnTensor* tensor = nullptr;
  void* data = nullptr;

  float Load(const std::array<int64_t, 4>& at) const;
  void Store(const std::array<int64_t, 4>& at, float value) const;
};

// A kernel that computes a graph.
struct CudnnEngine {
  int64_t number = 0, bytes = 0;  // bytes: its workspace.
  std::vector<cudnn::NumericalNote> notes = {};
};

// The rule of a convolution: steps and zeros down and to the right.
struct CudnnConvolution {
  std::array<int64_t, 2> stride = {}, before = {}, after = {}, dilation = {};
  cudnn::DataType math = cudnn::DataType::kHalf;
  float alpha = 0, beta = 0;
};

// The ids of its operands; 0 where it has none. A convolution has x or dx as x, w or dw as b, and y
// or dy as y.
struct CudnnOperation {
  cudnn::DescriptorType type = cudnn::DescriptorType::kOperationPointwise;
  cudnn::PointwiseMode mode = cudnn::PointwiseMode::kIdentity;
  cudnn::ReduceTensorOp reduction = cudnn::ReduceTensorOp::kAdd;
  int64_t axis = -1;
  int64_t x = 0, b = 0, t = 0, y = 0;
};

struct CudnnGraph {
  std::map<int64_t, CudnnTensor> tensors;
  std::vector<CudnnOperation> operations;
  std::optional<CudnnConvolution> convolution;

  // Those that there are, in the order of their speed. Not all of them compute what is wanted.
  std::vector<CudnnEngine> Engines() const;
  CudnnEngine Engine(int64_t number) const;

  // Whether it is a convolution, or attention, causal or full, forward or backward, in the form
  // that cuDNN recognises, on an emulated GPU. Empty: it is; otherwise why not.
  std::string Refusal() const;
  // The same for a version in the form of gpu_libraries.h, after cudnn-frontend 3929da2
  // (include/cudnn_frontend/node/). 9.10.0 and 9.10.1 refuse it (sdpa_support_surface.h:201 and
  // scaled_dot_product_flash_attention.h:1112), and all refuse backward of one token (line 1106).
  std::string RefusalOf(int version) const;
  // Backward up to 9.15.0 reads beyond its data where the length is no multiple of 128 and there is
  // no padding mask: line 1190 adds one for these versions.
  bool IsWrongIn(int version) const;
  const CudnnTensor& Scores() const;
  bool backward() const;
  bool deterministic() const;
  int64_t WorkspaceBytes() const;  // Attention's.

  // `memory`: for all tensors that are not virtual. Math is fp32; stored values are rounded.
  // `engine`: its number.
  void Run(const std::map<int64_t, void*>& memory, int64_t engine) const;
  // Writes NaN to all that Run() stores in bf16 or fp16.
  void Spoil(const std::map<int64_t, void*>& memory) const;

 private:
  std::vector<CudnnEngine> ConvolutionEngines() const;
  std::string ConvolutionRefusal() const;
  void Convolve(const std::map<int64_t, void*>& memory, int64_t engine) const;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_CUDNN_GRAPH_H_
