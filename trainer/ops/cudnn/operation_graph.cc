#include "trainer/ops/cudnn/operation_graph.h"

namespace fsdp::cudnn {
namespace {

struct ConvolutionNames {
  DescriptorType type;
  const char* name;
  Attribute alpha, beta, rule, x, w, y;
};
ConvolutionNames NamesOf(OperationGraph::ConvolutionPass pass) {
  using Pass = OperationGraph::ConvolutionPass;
  using A = Attribute;
  switch (pass) {
    case Pass::kForward:
      return {DescriptorType::kOperationConvolutionForward,
              "operation convolution forward",
              A::kOperationConvolutionForwardAlpha,
              A::kOperationConvolutionForwardBeta,
              A::kOperationConvolutionForwardConvDesc,
              A::kOperationConvolutionForwardX,
              A::kOperationConvolutionForwardW,
              A::kOperationConvolutionForwardY};
    case Pass::kBackwardData:
      return {DescriptorType::kOperationConvolutionBackwardData,
              "operation convolution backward data",
              A::kOperationConvolutionBwdDataAlpha,
              A::kOperationConvolutionBwdDataBeta,
              A::kOperationConvolutionBwdDataConvDesc,
              A::kOperationConvolutionBwdDataDx,
              A::kOperationConvolutionBwdDataW,
              A::kOperationConvolutionBwdDataDy};
    default:
      return {DescriptorType::kOperationConvolutionBackwardFilter,
              "operation convolution backward filter",
              A::kOperationConvolutionBwdFilterAlpha,
              A::kOperationConvolutionBwdFilterBeta,
              A::kOperationConvolutionBwdFilterConvDesc,
              A::kOperationConvolutionBwdFilterX,
              A::kOperationConvolutionBwdFilterDw,
              A::kOperationConvolutionBwdFilterDy};
  }
}

}  // namespace

Tensor OperationGraph::Make(int64_t id, const Dims& dims, const Dims& strides, DataType type,
                            Kind kind) {
  Descriptor& tensor = tensors_.emplace_back(api_, DescriptorType::kTensor, "tensor");
  tensor.Set(Attribute::kTensorUniqueId, id)
      .Set(Attribute::kTensorDataType, type)
      .Set(Attribute::kTensorDimensions, dims.data(), static_cast<int64_t>(dims.size()))
      .Set(Attribute::kTensorStrides, strides.data(), static_cast<int64_t>(strides.size()))
      .Set(Attribute::kTensorByteAlignment, int64_t{kind == Kind::kScalar ? 4 : 16})
      .Set(Attribute::kTensorIsVirtual, kind == Kind::kVirtual)
      .Set(Attribute::kTensorIsByValue, kind == Kind::kScalar)
      .Finalize();
  return {&tensor, dims};
}

Tensor OperationGraph::InMemory(int64_t id, const Dims& dims, const Dims& strides, DataType type) {
  return Make(id, dims, strides, type, Kind::kMemory);
}
Tensor OperationGraph::Scalar(int64_t id) {
  return Make(id, {1, 1, 1, 1}, {1, 1, 1, 1}, DataType::kFloat, Kind::kScalar);
}
Tensor OperationGraph::Virtual(const Dims& dims, DataType type) {
  return Virtual(dims, PackedStrides(dims), type);
}
Tensor OperationGraph::Virtual(const Dims& dims, const Dims& strides, DataType type) {
  return Make(next_virtual_++, dims, strides, type, Kind::kVirtual);
}

Tensor OperationGraph::Matmul(const Tensor& a, const Tensor& b, const Tensor& y) {
  Descriptor& rule = rules_.emplace_back(api_, DescriptorType::kMatmul, "matmul");
  rule.Set(Attribute::kMatmulCompType, DataType::kFloat).Finalize();
  Descriptor& operation =
      operations_.emplace_back(api_, DescriptorType::kOperationMatmul, "operation matmul");
  operation.Set(Attribute::kOperationMatmulDesc, rule)
      .Set(Attribute::kOperationMatmulADesc, *a.descriptor)
      .Set(Attribute::kOperationMatmulBDesc, *b.descriptor)
      .Set(Attribute::kOperationMatmulCDesc, *y.descriptor)
      .Finalize();
  return y;
}

Tensor OperationGraph::AddPointwise(PointwiseMode mode, const PointwiseInputs& in,
                                    const Tensor& y) {
  Descriptor& rule = rules_.emplace_back(api_, DescriptorType::kPointwise, "pointwise");
  rule.Set(Attribute::kPointwiseMode, mode).Set(Attribute::kPointwiseMathPrec, in.precision);
  if (in.axis >= 0) rule.Set(Attribute::kPointwiseAxis, in.axis);
  rule.Finalize();
  Descriptor& operation =
      operations_.emplace_back(api_, DescriptorType::kOperationPointwise, "operation pointwise");
  operation.Set(Attribute::kOperationPointwisePwDescriptor, rule)
      .Set(Attribute::kOperationPointwiseXDesc, *in.x->descriptor);
  if (in.b) operation.Set(Attribute::kOperationPointwiseBDesc, *in.b->descriptor);
  if (in.t) operation.Set(Attribute::kOperationPointwiseTDesc, *in.t->descriptor);
  operation.Set(Attribute::kOperationPointwiseYDesc, *y.descriptor).Finalize();
  return y;
}

Tensor OperationGraph::Pointwise(PointwiseMode mode, const Tensor& x, const Tensor& y) {
  return AddPointwise(mode, {.x = &x}, y);
}
Tensor OperationGraph::Pointwise(PointwiseMode mode, const Tensor& x, const Tensor& b,
                                 const Tensor& y) {
  return AddPointwise(mode, {.x = &x, .b = &b}, y);
}
Tensor OperationGraph::Index(const Tensor& x, int64_t axis) {
  return AddPointwise(PointwiseMode::kGenIndex, {.x = &x, .axis = axis},
                      Virtual(x.dims, DataType::kInt32));
}
Tensor OperationGraph::GreaterOrEqual(const Tensor& x, const Tensor& b) {
  return AddPointwise(PointwiseMode::kCmpGe, {.x = &x, .b = &b, .precision = DataType::kBoolean},
                      Virtual(x.dims, DataType::kBoolean));
}
Tensor OperationGraph::Select(const Tensor& x, const Tensor& otherwise, const Tensor& where) {
  return AddPointwise(PointwiseMode::kBinarySelect, {.x = &x, .b = &otherwise, .t = &where},
                      Virtual(x.dims));
}

Tensor OperationGraph::Reduce(ReduceTensorOp op, const Tensor& x, const Tensor& y) {
  Descriptor& rule = rules_.emplace_back(api_, DescriptorType::kReduction, "reduction");
  rule.Set(Attribute::kReductionOperator, op)
      .Set(Attribute::kReductionCompType, DataType::kFloat)
      .Finalize();
  Descriptor& operation =
      operations_.emplace_back(api_, DescriptorType::kOperationReduction, "operation reduction");
  operation.Set(Attribute::kOperationReductionDesc, rule)
      .Set(Attribute::kOperationReductionXDesc, *x.descriptor)
      .Set(Attribute::kOperationReductionYDesc, *y.descriptor)
      .Finalize();
  return y;
}

Tensor OperationGraph::Reshape(const Tensor& x, const Tensor& y) {
  Descriptor& operation =
      operations_.emplace_back(api_, DescriptorType::kOperationReshape, "operation reshape");
  operation.Set(Attribute::kOperationReshapeXDesc, *x.descriptor)
      .Set(Attribute::kOperationReshapeYDesc, *y.descriptor)
      .Finalize();
  return y;
}

void OperationGraph::Convolve(ConvolutionPass pass, const ConvolutionSteps& steps, const Tensor& x,
                              const Tensor& w, const Tensor& y) {
  const auto spatial = static_cast<int64_t>(steps.stride.size());
  const std::array<int64_t, 2> dilations = {1, 1};
  Descriptor& rule = rules_.emplace_back(api_, DescriptorType::kConvolution, "convolution");
  rule.Set(Attribute::kConvolutionSpatialDims, spatial)
      .Set(Attribute::kConvolutionCompType, DataType::kFloat)
      .Set(Attribute::kConvolutionConvMode, ConvolutionMode::kCrossCorrelation)
      .Set(Attribute::kConvolutionFilterStrides, steps.stride.data(), spatial)
      .Set(Attribute::kConvolutionPrePaddings, steps.padding.data(), spatial)
      .Set(Attribute::kConvolutionPostPaddings, steps.padding.data(), spatial)
      .Set(Attribute::kConvolutionDilations, dilations.data(), spatial)
      .Finalize();
  const ConvolutionNames names = NamesOf(pass);
  operations_.emplace_back(api_, names.type, names.name)
      .Set(names.rule, rule)
      .Set(names.x, *x.descriptor)
      .Set(names.w, *w.descriptor)
      .Set(names.y, *y.descriptor)
      .Set(names.alpha, 1.0f)
      .Set(names.beta, 0.0f)
      .Finalize();
}

Descriptor OperationGraph::Finish() const {
  std::vector<DescriptorHandle> handles;
  for (const Descriptor& operation : operations_) handles.push_back(operation.handle());
  Descriptor graph(api_, DescriptorType::kOperationGraph, "operation graph");
  graph
      .Set(Attribute::kOperationGraphOps, AttributeType::kBackendDescriptor,
           static_cast<int64_t>(handles.size()), handles.data())
      .Finalize();
  return graph;
}

}  // namespace fsdp::cudnn
