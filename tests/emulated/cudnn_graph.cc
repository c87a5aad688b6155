#include "tests/emulated/cudnn_graph.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

namespace fsdp {
namespace {

using cudnn::DataType;
using cudnn::DescriptorType;
using cudnn::PointwiseMode;
using cudnn::ReduceTensorOp;
using Index = std::array<int64_t, 4>;

// With a causal mask or without.
const std::string kMasks[] = {"index index ge select ", ""};
const std::string kForwardBegin = "matmul mul ",
                  kForwardEnd = "max sub exp sum log add div matmul ";
const std::string kBackwardBegin = "mul sum mul matmul mul sub ", kBackwardExp = "exp reshape ";
const std::string kBackwardMiddle = "matmul sub mul mul reshape ";

std::string NameOf(const CudnnOperation& o) {
  if (o.type == DescriptorType::kOperationMatmul) return "matmul";
  if (o.type == DescriptorType::kOperationReshape) return "reshape";
  if (o.type == DescriptorType::kOperationReduction) {
    return o.reduction == ReduceTensorOp::kAdd ? "sum" : "max";
  }
  static const std::map<PointwiseMode, std::string> names = {
      {PointwiseMode::kAdd, "add"},        {PointwiseMode::kMul, "mul"},
      {PointwiseMode::kDiv, "div"},        {PointwiseMode::kSub, "sub"},
      {PointwiseMode::kExp, "exp"},        {PointwiseMode::kLog, "log"},
      {PointwiseMode::kIdentity, "copy"},  {PointwiseMode::kCmpGe, "ge"},
      {PointwiseMode::kGenIndex, "index"}, {PointwiseMode::kBinarySelect, "select"},
  };
  return names.at(o.mode);
}

std::string Names(const CudnnGraph& graph) {
  std::string names;
  for (const CudnnOperation& o : graph.operations) names += NameOf(o) + " ";
  return names;
}

bool IsAttention(const std::string& names) {
  for (const std::string& mask : kMasks) {
    if (names == kForwardBegin + mask + kForwardEnd) return true;
    for (const std::string sum : {"matmul ", "matmul sum "}) {
      for (const char* end : {"reshape matmul ", "reshape matmul copy "}) {
        if (names == kBackwardBegin + mask + kBackwardExp + sum + kBackwardMiddle + sum + end) {
          return true;
        }
      }
    }
  }
  return false;
}

// Where an element of `as` lies in a tensor that may have one element, or one for a group, there.
Index In(const CudnnTensor& tensor, const CudnnTensor& as, const Index& at) {
  Index in;
  for (size_t d = 0; d < in.size(); ++d) in[d] = at[d] * tensor.dims[d] / as.dims[d];
  return in;
}

template <typename Body>
void ForEach(const CudnnTensor& tensor, const Body& body) {
  Index at;
  for (at[0] = 0; at[0] < tensor.dims[0]; ++at[0]) {
    for (at[1] = 0; at[1] < tensor.dims[1]; ++at[1]) {
      for (at[2] = 0; at[2] < tensor.dims[2]; ++at[2]) {
        for (at[3] = 0; at[3] < tensor.dims[3]; ++at[3]) body(at);
      }
    }
  }
}

using Placed = CudnnPlaced;

float Apply(PointwiseMode mode, float x, float b, float t) {
  switch (mode) {
    case PointwiseMode::kAdd:
      return x + b;
    case PointwiseMode::kMul:
      return x * b;
    case PointwiseMode::kDiv:
      return x / b;
    case PointwiseMode::kSub:
      return x - b;
    case PointwiseMode::kExp:
      return std::exp(x);
    case PointwiseMode::kLog:
      return std::log(x);
    case PointwiseMode::kCmpGe:
      return x >= b ? 1.0f : 0.0f;
    case PointwiseMode::kBinarySelect:
      return t != 0 ? x : b;
    default:
      return x;
  }
}

void Pointwise(const CudnnOperation& o, const Placed& x, const Placed& b, const Placed& t,
               const Placed& y) {
  const auto load = [&](const Placed& from, const Index& at) {
    return from.data == nullptr ? 0.0f : from.Load(In(*from.tensor, *y.tensor, at));
  };
  ForEach(*y.tensor, [&](const Index& at) {
    const float value = o.mode == PointwiseMode::kGenIndex
                            ? static_cast<float>(at[static_cast<size_t>(o.axis)])
                            : Apply(o.mode, load(x, at), load(b, at), load(t, at));
    y.Store(at, value);
  });
}

void Reduce(const CudnnOperation& o, const Placed& x, const Placed& y) {
  const bool max = o.reduction == ReduceTensorOp::kMax;
  std::vector<float> sums(static_cast<size_t>(y.tensor->Elements()),
                          max ? -std::numeric_limits<float>::infinity() : 0.0f);
  CudnnTensor packed = *y.tensor;
  packed.strides = {packed.dims[1] * packed.dims[2] * packed.dims[3],
                    packed.dims[2] * packed.dims[3], packed.dims[3], 1};
  ForEach(*x.tensor, [&](const Index& at) {
    float& sum = sums[static_cast<size_t>(packed.Offset(In(*y.tensor, *x.tensor, at)))];
    sum = max ? std::max(sum, x.Load(at)) : sum + x.Load(at);
  });
  ForEach(*y.tensor,
          [&](const Index& at) { y.Store(at, sums[static_cast<size_t>(packed.Offset(at))]); });
}

void Matmul(const Placed& a, const Placed& b, const Placed& y) {
  const int64_t terms = a.tensor->dims[3], heads = y.tensor->dims[1];
  ForEach(*y.tensor, [&](const Index& at) {
    float sum = 0;
    for (int64_t k = 0; k < terms; ++k) {
      sum += a.Load({at[0], at[1], at[2], k}) *
             b.Load({at[0], at[1] * b.tensor->dims[1] / heads, k, at[3]});
    }
    y.Store(at, sum);
  });
}

}  // namespace

float CudnnPlaced::Load(const Index& at) const {
  const int64_t i = tensor->Offset(at);
  switch (tensor->type) {
    case DataType::kBFloat16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    case DataType::kHalf:
      return __half2float(static_cast<const __half*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

void CudnnPlaced::Store(const Index& at, float value) const {
  const int64_t i = tensor->Offset(at);
  switch (tensor->type) {
    case DataType::kBFloat16:
      static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16(value);
      break;
    case DataType::kHalf:
      static_cast<__half*>(data)[i] = __float2half(value);
      break;
    default:
      static_cast<float*>(data)[i] = value;
  }
}

// The first uses more memory than there need be.
std::vector<CudnnEngine> CudnnGraph::Engines() const {
  if (convolution) return ConvolutionEngines();
  return {{.number = 4, .bytes = 2 * WorkspaceBytes()}, {.number = 6, .bytes = WorkspaceBytes()}};
}

CudnnEngine CudnnGraph::Engine(int64_t number) const {
  for (const CudnnEngine& engine : Engines()) {
    if (engine.number == number) return engine;
  }
  return {};
}

std::string CudnnGraph::Refusal() const {
  if (convolution) return ConvolutionRefusal();
  const std::string names = Names(*this);
  if (!IsAttention(names)) return "no attention: " + names;
  for (const auto& [id, t] : tensors) {
    if (t.is_virtual || t.by_value) continue;
    const bool half = t.type == DataType::kHalf || t.type == DataType::kBFloat16;
    if (!half) continue;
    // A head's rows, or its columns.
    const bool rows = t.strides[3] == 1;
    const int64_t head_dim = t.dims[rows ? 3 : 2], stride = t.strides[rows ? 2 : 3];
    if (head_dim % 8 != 0 || head_dim > 128) return "a head_dim of " + std::to_string(head_dim);
    if (t.strides[rows ? 3 : 2] != 1 || stride % 8 != 0 || t.strides[1] % 8 != 0) {
      return "the strides of tensor " + std::to_string(id);
    }
  }
  return "";
}

const CudnnTensor& CudnnGraph::Scores() const {
  return tensors.at(operations[backward() ? 3 : 0].y);
}

bool CudnnGraph::backward() const {
  return operations[0].type == DescriptorType::kOperationPointwise;
}

std::string CudnnGraph::RefusalOf(int version) const {
  if (version == 91000 || version == 91001) return "known bugs of 9.10.0 and 9.10.1";
  if (convolution) return "";
  if (backward() && Scores().dims[2] * Scores().dims[3] == 1) return "s_q = s_kv = 1";
  return "";
}

bool CudnnGraph::IsWrongIn(int version) const {
  return !convolution && backward() && version <= 91500 && Scores().dims[3] % 128 != 0;
}

void CudnnGraph::Spoil(const std::map<int64_t, void*>& memory) const {
  for (const CudnnOperation& o : operations) {
    const CudnnTensor& t = tensors.at(o.y);
    if (t.is_virtual || t.type == DataType::kFloat) continue;
    const Placed placed{&t, memory.at(o.y)};
    ForEach(t, [&](const Index& at) { placed.Store(at, std::numeric_limits<float>::quiet_NaN()); });
  }
}

bool CudnnGraph::deterministic() const {
  return std::none_of(operations.begin(), operations.end(), [](const CudnnOperation& o) {
    return o.type == DescriptorType::kOperationPointwise && o.mode == PointwiseMode::kIdentity;
  });
}

// As cuDNN 9.19 wants it for an H100.
int64_t CudnnGraph::WorkspaceBytes() const {
  int64_t bytes = 256;
  if (!backward()) return bytes;
  int64_t sums = 0;
  for (const CudnnOperation& o : operations) {
    const CudnnTensor& x = tensors.at(o.x);
    const bool half = x.type == DataType::kHalf || x.type == DataType::kBFloat16;
    if (o.type == DescriptorType::kOperationReduction && half) sums += 2 * x.Elements();
  }
  bytes += (sums + 255) / 256 * 256;
  if (deterministic()) {
    const auto tiles = [&](size_t d) { return (Scores().dims[d] + 63) / 64 * 64; };
    bytes += 2 * Scores().dims[0] * Scores().dims[1] * tiles(2) * tiles(3);
  }
  return bytes;
}

void CudnnGraph::Run(const std::map<int64_t, void*>& memory, int64_t engine) const {
  if (convolution) return Convolve(memory, engine);
  std::map<int64_t, std::vector<float>> own;  // A float has room for each type.
  std::map<int64_t, Placed> placed;
  for (const auto& [id, t] : tensors) {
    Placed& p = placed[id];
    p.tensor = &t;
    if (!t.is_virtual) {
      p.data = memory.at(id);
    } else {
      p.data = own.emplace(id, static_cast<size_t>(t.Elements())).first->second.data();
    }
  }
  std::vector<CudnnTensor> renamed;
  renamed.reserve(operations.size());
  for (const CudnnOperation& o : operations) {
    const auto at = [&](int64_t id) { return id == 0 ? Placed{} : placed.at(id); };
    switch (o.type) {
      case DescriptorType::kOperationMatmul:
        Matmul(at(o.x), at(o.b), at(o.y));
        break;
      case DescriptorType::kOperationReduction:
        Reduce(o, at(o.x), at(o.y));
        break;
      case DescriptorType::kOperationReshape: {
        // The same memory under other strides: rounded now, if it is to be.
        const Placed x = at(o.x);
        CudnnTensor& y = renamed.emplace_back(tensors.at(o.y));
        if (x.tensor->is_virtual) {
          CudnnTensor rounded = *x.tensor;
          rounded.type = y.type;
          const Placed to{&rounded, own.at(o.y).data()};
          ForEach(rounded, [&](const Index& i) { to.Store(i, x.Load(i)); });
          placed[o.y] = {&y, to.data};
        } else {
          placed[o.y] = {&y, x.data};
        }
        break;
      }
      default:
        Pointwise(o, at(o.x), at(o.b), at(o.t), at(o.y));
    }
  }
}

}  // namespace fsdp
