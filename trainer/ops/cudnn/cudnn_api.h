// The part of cuDNN 9's backend API that attention and convolutions need. It is declared here
// because the library is looked up when the program runs: a build needs neither it nor its header.
// Names and values are those of cudnn_graph.h, 9.19;
// tests/trainer/ops/cudnn/cudnn_header_test.py compares them.
// Tests: tests/trainer/ops/cudnn/attention_plan_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDNN_CUDNN_API_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDNN_CUDNN_API_H_

#include <cstddef>
#include <cstdint>
#include <string>

struct CUstream_st;  // cudaStream_t points to one.

namespace fsdp::cudnn {

using Handle = void*;            // cudnnHandle_t: of a GPU.
using DescriptorHandle = void*;  // cudnnBackendDescriptor_t.

using Status = int;  // cudnnStatus_t.
inline constexpr Status kSuccess = 0;

enum class DescriptorType : int {  // CUDNN_BACKEND_..._DESCRIPTOR.
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineCfg = 3,
  kEngineHeur = 4,
  kExecutionPlan = 5,
  kOperationConvolutionForward = 10,
  kOperationConvolutionBackwardFilter = 11,
  kOperationConvolutionBackwardData = 12,
  kOperationPointwise = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmul = 18,
  kOperationMatmul = 19,
  kReduction = 21,
  kOperationReduction = 22,
  kOperationReshape = 31,
  kDeviceProp = 38,
};

enum class Attribute : int {  // CUDNN_ATTR_...
  kPointwiseMode = 0,
  kPointwiseMathPrec = 1,
  kPointwiseAxis = 9,
  kConvolutionCompType = 100,
  kConvolutionConvMode = 101,
  kConvolutionDilations = 102,
  kConvolutionFilterStrides = 103,
  kConvolutionPostPaddings = 104,
  kConvolutionPrePaddings = 105,
  kConvolutionSpatialDims = 106,
  kEngineHeurMode = 200,
  kEngineHeurOperationGraph = 201,
  kEngineHeurResults = 202,
  kEngineHeurDeviceProp = 204,
  kEngineCfgEngine = 300,
  kExecutionPlanEngineConfig = 401,
  kExecutionPlanWorkspaceSize = 402,
  kExecutionPlanDeviceProp = 407,
  kOperationConvolutionForwardAlpha = 700,
  kOperationConvolutionForwardBeta = 701,
  kOperationConvolutionForwardConvDesc = 702,
  kOperationConvolutionForwardW = 703,
  kOperationConvolutionForwardX = 704,
  kOperationConvolutionForwardY = 705,
  kOperationConvolutionBwdDataAlpha = 706,
  kOperationConvolutionBwdDataBeta = 707,
  kOperationConvolutionBwdDataConvDesc = 708,
  kOperationConvolutionBwdDataW = 709,
  kOperationConvolutionBwdDataDx = 710,
  kOperationConvolutionBwdDataDy = 711,
  kOperationConvolutionBwdFilterAlpha = 712,
  kOperationConvolutionBwdFilterBeta = 713,
  kOperationConvolutionBwdFilterConvDesc = 714,
  kOperationConvolutionBwdFilterDw = 715,
  kOperationConvolutionBwdFilterX = 716,
  kOperationConvolutionBwdFilterDy = 717,
  kOperationPointwisePwDescriptor = 750,
  kOperationPointwiseXDesc = 751,
  kOperationPointwiseBDesc = 752,
  kOperationPointwiseYDesc = 753,
  kOperationPointwiseTDesc = 758,
  kOperationGraphOps = 801,
  kTensorByteAlignment = 900,
  kTensorDataType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorUniqueId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kVariantPackUniqueIds = 1000,
  kVariantPackDataPointers = 1001,
  kVariantPackWorkspace = 1003,
  kEngineGlobalIndex = 1301,
  kEngineNumericalNote = 1303,
  kMatmulCompType = 1500,
  kOperationMatmulADesc = 1520,
  kOperationMatmulBDesc = 1521,
  kOperationMatmulCDesc = 1522,
  kOperationMatmulDesc = 1523,
  kReductionOperator = 1600,
  kReductionCompType = 1601,
  kOperationReductionXDesc = 1610,
  kOperationReductionYDesc = 1611,
  kOperationReductionDesc = 1612,
  kOperationReshapeXDesc = 2200,
  kOperationReshapeYDesc = 2201,
  kDevicePropDeviceId = 2700,
  kDevicePropHandle = 2701,
  kDevicePropJsonRepresentation = 2702,
};

enum class AttributeType : int {  // CUDNN_TYPE_...
  kHandle = 0,
  kDataType = 1,
  kBoolean = 2,  // bool.
  kInt64 = 3,
  kFloat = 4,
  kVoidPtr = 6,
  kConvolutionMode = 7,
  kHeurMode = 8,
  kNumericalNote = 11,
  kPointwiseMode = 14,
  kBackendDescriptor = 15,
  kReductionOperatorType = 18,
  kInt32 = 23,
  kChar = 24,
};

enum class DataType : int { kFloat = 0, kHalf = 2, kInt32 = 4, kBFloat16 = 9, kBoolean = 11 };

enum class PointwiseMode : int {
  kAdd = 0,
  kMul = 1,
  kDiv = 6,
  kSub = 9,
  kExp = 13,
  kLog = 15,
  kIdentity = 21,
  kCmpGe = 303,
  kGenIndex = 501,      // Each element's index along the axis.
  kBinarySelect = 601,  // x where t, b elsewhere.
};

enum class ConvolutionMode : int { kCrossCorrelation = 1 };
enum class ReduceTensorOp : int { kAdd = 0, kMax = 3 };
enum class HeurMode : int { kFallback = 2, kA = 3 };
// An engine's effects on numbers. kTensorCore with fp32 is TF32.
enum class NumericalNote : int {
  kTensorCore = 0,
  kDownConvertInputs = 1,
  kReducedPrecisionReduction = 2,
  kFft = 3,
  kNondeterministic = 4,
  kWinograd = 5,
  kWinogradTile4x4 = 6,
  kWinogradTile6x6 = 7,
  kWinogradTile13x13 = 8,
};

struct Api {
  int version = 0;  // As gpu_libraries.h counts.
  Status (*create)(Handle*) = nullptr;
  Status (*set_stream)(Handle, CUstream_st*) = nullptr;
  const char* (*error_string)(Status) = nullptr;
  void (*last_error_string)(char* message, size_t max_size) = nullptr;
  Status (*create_descriptor)(DescriptorType, DescriptorHandle*) = nullptr;
  Status (*destroy_descriptor)(DescriptorHandle) = nullptr;
  Status (*finalize)(DescriptorHandle) = nullptr;
  Status (*set_attribute)(DescriptorHandle, Attribute, AttributeType, int64_t count,
                          const void* values) = nullptr;
  Status (*get_attribute)(DescriptorHandle, Attribute, AttributeType, int64_t requested,
                          int64_t* count, void* values) = nullptr;
  Status (*execute)(Handle, DescriptorHandle plan, DescriptorHandle variant_pack) = nullptr;
};

struct FoundApi {
  const Api* api = nullptr;  // Null: no usable cuDNN. Lives as long as the process.
  std::string why_not;
};

// The first call of the process looks cuDNN up. Any thread may call.
const FoundApi& FindApi();

// Throws DeviceError; the message has `what`, and cuDNN's own words.
void Check(const Api& api, Status status, const std::string& what);

}  // namespace fsdp::cudnn

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDNN_CUDNN_API_H_
