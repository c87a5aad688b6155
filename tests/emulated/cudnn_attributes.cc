#include "tests/emulated/cudnn_attributes.h"

#include <map>
#include <utility>

namespace fsdp {
namespace {

using cudnn::Attribute;
using cudnn::AttributeType;
using cudnn::DescriptorType;

// The descriptor type that has an attribute, and the attribute's type.
using Kind = std::pair<DescriptorType, AttributeType>;
const std::map<Attribute, Kind>& Kinds() {
  using A = Attribute;
  using D = DescriptorType;
  using T = AttributeType;
  static const std::map<Attribute, Kind> kinds = {
      {A::kPointwiseMode, {D::kPointwise, T::kPointwiseMode}},
      {A::kPointwiseMathPrec, {D::kPointwise, T::kDataType}},
      {A::kPointwiseAxis, {D::kPointwise, T::kInt64}},
      {A::kConvolutionCompType, {D::kConvolution, T::kDataType}},
      {A::kConvolutionConvMode, {D::kConvolution, T::kConvolutionMode}},
      {A::kConvolutionDilations, {D::kConvolution, T::kInt64}},
      {A::kConvolutionFilterStrides, {D::kConvolution, T::kInt64}},
      {A::kConvolutionPostPaddings, {D::kConvolution, T::kInt64}},
      {A::kConvolutionPrePaddings, {D::kConvolution, T::kInt64}},
      {A::kConvolutionSpatialDims, {D::kConvolution, T::kInt64}},
      {A::kEngineHeurMode, {D::kEngineHeur, T::kHeurMode}},
      {A::kEngineHeurOperationGraph, {D::kEngineHeur, T::kBackendDescriptor}},
      {A::kEngineHeurResults, {D::kEngineHeur, T::kBackendDescriptor}},
      {A::kEngineHeurDeviceProp, {D::kEngineHeur, T::kBackendDescriptor}},
      {A::kEngineCfgEngine, {D::kEngineCfg, T::kBackendDescriptor}},
      {A::kExecutionPlanEngineConfig, {D::kExecutionPlan, T::kBackendDescriptor}},
      {A::kExecutionPlanWorkspaceSize, {D::kExecutionPlan, T::kInt64}},
      {A::kExecutionPlanDeviceProp, {D::kExecutionPlan, T::kBackendDescriptor}},
      {A::kOperationPointwisePwDescriptor, {D::kOperationPointwise, T::kBackendDescriptor}},
      {A::kOperationPointwiseXDesc, {D::kOperationPointwise, T::kBackendDescriptor}},
      {A::kOperationPointwiseBDesc, {D::kOperationPointwise, T::kBackendDescriptor}},
      {A::kOperationPointwiseYDesc, {D::kOperationPointwise, T::kBackendDescriptor}},
      {A::kOperationPointwiseTDesc, {D::kOperationPointwise, T::kBackendDescriptor}},
      {A::kOperationConvolutionForwardAlpha, {D::kOperationConvolutionForward, T::kFloat}},
      {A::kOperationConvolutionForwardBeta, {D::kOperationConvolutionForward, T::kFloat}},
      {A::kOperationConvolutionForwardConvDesc,
       {D::kOperationConvolutionForward, T::kBackendDescriptor}},
      {A::kOperationConvolutionForwardW, {D::kOperationConvolutionForward, T::kBackendDescriptor}},
      {A::kOperationConvolutionForwardX, {D::kOperationConvolutionForward, T::kBackendDescriptor}},
      {A::kOperationConvolutionForwardY, {D::kOperationConvolutionForward, T::kBackendDescriptor}},
      {A::kOperationConvolutionBwdDataAlpha, {D::kOperationConvolutionBackwardData, T::kFloat}},
      {A::kOperationConvolutionBwdDataBeta, {D::kOperationConvolutionBackwardData, T::kFloat}},
      {A::kOperationConvolutionBwdDataConvDesc,
       {D::kOperationConvolutionBackwardData, T::kBackendDescriptor}},
      {A::kOperationConvolutionBwdDataW,
       {D::kOperationConvolutionBackwardData, T::kBackendDescriptor}},
      {A::kOperationConvolutionBwdDataDx,
       {D::kOperationConvolutionBackwardData, T::kBackendDescriptor}},
      {A::kOperationConvolutionBwdDataDy,
       {D::kOperationConvolutionBackwardData, T::kBackendDescriptor}},
      {A::kOperationConvolutionBwdFilterAlpha, {D::kOperationConvolutionBackwardFilter, T::kFloat}},
      {A::kOperationConvolutionBwdFilterBeta, {D::kOperationConvolutionBackwardFilter, T::kFloat}},
      {A::kOperationConvolutionBwdFilterConvDesc,
       {D::kOperationConvolutionBackwardFilter, T::kBackendDescriptor}},
      {A::kOperationConvolutionBwdFilterDw,
       {D::kOperationConvolutionBackwardFilter, T::kBackendDescriptor}},
      {A::kOperationConvolutionBwdFilterX,
       {D::kOperationConvolutionBackwardFilter, T::kBackendDescriptor}},
      {A::kOperationConvolutionBwdFilterDy,
       {D::kOperationConvolutionBackwardFilter, T::kBackendDescriptor}},
      {A::kOperationGraphOps, {D::kOperationGraph, T::kBackendDescriptor}},
      {A::kTensorByteAlignment, {D::kTensor, T::kInt64}},
      {A::kTensorDataType, {D::kTensor, T::kDataType}},
      {A::kTensorDimensions, {D::kTensor, T::kInt64}},
      {A::kTensorStrides, {D::kTensor, T::kInt64}},
      {A::kTensorUniqueId, {D::kTensor, T::kInt64}},
      {A::kTensorIsVirtual, {D::kTensor, T::kBoolean}},
      {A::kTensorIsByValue, {D::kTensor, T::kBoolean}},
      {A::kVariantPackUniqueIds, {D::kVariantPack, T::kInt64}},
      {A::kVariantPackDataPointers, {D::kVariantPack, T::kVoidPtr}},
      {A::kVariantPackWorkspace, {D::kVariantPack, T::kVoidPtr}},
      {A::kEngineGlobalIndex, {D::kEngine, T::kInt64}},
      {A::kEngineNumericalNote, {D::kEngine, T::kNumericalNote}},
      {A::kMatmulCompType, {D::kMatmul, T::kDataType}},
      {A::kOperationMatmulADesc, {D::kOperationMatmul, T::kBackendDescriptor}},
      {A::kOperationMatmulBDesc, {D::kOperationMatmul, T::kBackendDescriptor}},
      {A::kOperationMatmulCDesc, {D::kOperationMatmul, T::kBackendDescriptor}},
      {A::kOperationMatmulDesc, {D::kOperationMatmul, T::kBackendDescriptor}},
      {A::kReductionOperator, {D::kReduction, T::kReductionOperatorType}},
      {A::kReductionCompType, {D::kReduction, T::kDataType}},
      {A::kOperationReductionXDesc, {D::kOperationReduction, T::kBackendDescriptor}},
      {A::kOperationReductionYDesc, {D::kOperationReduction, T::kBackendDescriptor}},
      {A::kOperationReductionDesc, {D::kOperationReduction, T::kBackendDescriptor}},
      {A::kOperationReshapeXDesc, {D::kOperationReshape, T::kBackendDescriptor}},
      {A::kOperationReshapeYDesc, {D::kOperationReshape, T::kBackendDescriptor}},
      {A::kDevicePropDeviceId, {D::kDeviceProp, T::kInt32}},
      {A::kDevicePropHandle, {D::kDeviceProp, T::kHandle}},
      {A::kDevicePropJsonRepresentation, {D::kDeviceProp, T::kChar}},
  };
  return kinds;
}

}  // namespace

size_t CudnnSizeOf(AttributeType type) {
  switch (type) {
    case AttributeType::kBoolean:
    case AttributeType::kChar:
      return 1;
    case AttributeType::kHandle:
    case AttributeType::kInt64:
    case AttributeType::kVoidPtr:
    case AttributeType::kBackendDescriptor:
      return 8;
    default:
      return 4;
  }
}

bool IsCudnnAttribute(DescriptorType descriptor, Attribute attribute, AttributeType type) {
  const auto kind = Kinds().find(attribute);
  return kind != Kinds().end() && kind->second == Kind(descriptor, type);
}

}  // namespace fsdp
