// Convolutions of the emulated cuDNN. It has engines that differ as cuDNN's do: in the memory that
// they want, in what their numerical notes say, and in what they compute where a note says so.
#include <algorithm>
#include <atomic>
#include <bit>

#include "tests/emulated/cudnn_graph.h"

namespace fsdp {
namespace {

using cudnn::DataType;
using cudnn::DescriptorType;
using cudnn::NumericalNote;

constexpr int64_t kByChance = 41, kWinograd = 42, kTensorCores = 43, kLarge = 44, kEngine = 45;

using Index = std::array<int64_t, 4>;

// A float with the 10 bits behind the point that TF32 has.
float ToTf32(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xffffe000u); }

bool HasChannelsLast(const CudnnTensor& t) {
  const auto& d = t.dims;
  return t.strides == Index{d[1] * d[2] * d[3], 1, d[1] * d[3], d[1]};
}

int64_t Side(const CudnnConvolution& rule, const CudnnTensor& x, const CudnnTensor& w, size_t i) {
  const int64_t kernel = (w.dims[2 + i] - 1) * rule.dilation[i] + 1;
  return (x.dims[2 + i] + rule.before[i] + rule.after[i] - kernel) / rule.stride[i] + 1;
}

}  // namespace

std::vector<CudnnEngine> CudnnGraph::ConvolutionEngines() const {
  const CudnnTensor& x = tensors.at(operations[0].x);
  const CudnnTensor& y = tensors.at(operations[0].y);
  const int64_t bytes = 256 + (2 * y.Elements() + 255) / 256 * 256;
  std::vector<NumericalNote> half;
  if (x.type != DataType::kFloat) half = {NumericalNote::kTensorCore};
  return {{kByChance, bytes, {NumericalNote::kNondeterministic}},
          {kWinograd, bytes, {NumericalNote::kWinograd}},
          {kTensorCores,
           bytes,
           {NumericalNote::kTensorCore, NumericalNote::kDownConvertInputs,
            NumericalNote::kReducedPrecisionReduction}},
          {kLarge, int64_t{1} << 40, half},
          {kEngine, bytes, half}};
}

std::string CudnnGraph::ConvolutionRefusal() const {
  const CudnnOperation& o = operations[0];
  if (o.x == 0 || o.b == 0 || o.y == 0 || tensors.size() != 3) return "three tensors are wanted";
  const CudnnConvolution& rule = *convolution;
  const CudnnTensor &x = tensors.at(o.x), &w = tensors.at(o.b), &y = tensors.at(o.y);
  for (const CudnnTensor* t : {&x, &w, &y}) {
    if (t->is_virtual || t->by_value) return "a tensor that is in no memory";
    if (!HasChannelsLast(*t)) return "channels that do not lie side by side";
  }
  if (rule.math != DataType::kFloat) return "sums that are not fp32";
  if (x.type != y.type || w.type != x.type) return "tensors of two types";
  if (rule.alpha != 1 || rule.beta != 0) return "factors of the result";
  if (w.dims[1] <= 0 || x.dims[1] % w.dims[1] != 0) return "the channels of a group";
  const int64_t groups = x.dims[1] / w.dims[1];
  if (w.dims[0] % groups != 0 || y.dims[1] != w.dims[0]) return "the outputs of a group";
  if (x.dims[0] != y.dims[0]) return "the number of images";
  for (const size_t i : {0u, 1u}) {
    if (rule.stride[i] < 1 || rule.dilation[i] < 1) return "steps of less than a pixel";
    if (rule.before[i] < 0 || rule.after[i] < 0) return "negative padding";
    if (y.dims[2 + i] != Side(rule, x, w, i)) return "the sides of the result";
  }
  return "";
}

void CudnnGraph::Convolve(const std::map<int64_t, void*>& memory, int64_t engine) const {
  const CudnnOperation& o = operations[0];
  const CudnnConvolution& rule = *convolution;
  const auto placed = [&](int64_t id) { return CudnnPlaced{&tensors.at(id), memory.at(id)}; };
  const CudnnPlaced x = placed(o.x), w = placed(o.b), y = placed(o.y);
  const CudnnPlaced& to = o.type == DescriptorType::kOperationConvolutionForward        ? y
                          : o.type == DescriptorType::kOperationConvolutionBackwardData ? x
                                                                                        : w;
  const auto load = [&](const CudnnPlaced& from, const Index& at) {
    return engine == kTensorCores ? ToTf32(from.Load(at)) : from.Load(at);
  };
  CudnnTensor packed = *to.tensor;
  std::vector<float> sums(static_cast<size_t>(packed.Elements()));
  const Index &of_w = w.tensor->dims, &of_x = x.tensor->dims, &of_y = y.tensor->dims;
  const int64_t group_out = of_w[0] / (of_x[1] / of_w[1]);
  Index at;  // In y.
  for (at[0] = 0; at[0] < of_y[0]; ++at[0]) {
    for (at[1] = 0; at[1] < of_y[1]; ++at[1]) {
      for (at[2] = 0; at[2] < of_y[2]; ++at[2]) {
        for (at[3] = 0; at[3] < of_y[3]; ++at[3]) {
          for (int64_t c = 0; c < of_w[1]; ++c) {
            for (int64_t a = 0; a < of_w[2]; ++a) {
              for (int64_t b = 0; b < of_w[3]; ++b) {
                const int64_t row = at[2] * rule.stride[0] + a * rule.dilation[0] - rule.before[0];
                const int64_t col = at[3] * rule.stride[1] + b * rule.dilation[1] - rule.before[1];
                if (row < 0 || row >= of_x[2] || col < 0 || col >= of_x[3]) continue;
                const Index in_x{at[0], at[1] / group_out * of_w[1] + c, row, col};
                const Index in_w{at[1], c, a, b};
                const float product = &to == &y   ? load(x, in_x) * load(w, in_w)
                                      : &to == &x ? load(y, at) * load(w, in_w)
                                                  : load(y, at) * load(x, in_x);
                const Index& in = &to == &y ? at : (&to == &x ? in_x : in_w);
                sums[static_cast<size_t>(packed.Offset(in))] += product;
              }
            }
          }
        }
      }
    }
  }
  // Another order of sums in every other call, and the loss of bits in a transform.
  static std::atomic<int> calls = 0;
  float factor = 1;
  if (engine == kWinograd || (engine == kByChance && calls++ % 2 == 1)) factor += 0x1p-6f;
  for (at[0] = 0; at[0] < packed.dims[0]; ++at[0]) {
    for (at[1] = 0; at[1] < packed.dims[1]; ++at[1]) {
      for (at[2] = 0; at[2] < packed.dims[2]; ++at[2]) {
        for (at[3] = 0; at[3] < packed.dims[3]; ++at[3]) {
          to.Store(at, factor * sums[static_cast<size_t>(packed.Offset(at))]);
        }
      }
    }
  }
}

}  // namespace fsdp
