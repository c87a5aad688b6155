// The attributes of cuDNN's descriptors: which descriptor has them, and of which type they are.
#ifndef FSDP_TRAIN_TESTS_EMULATED_CUDNN_ATTRIBUTES_H_
#define FSDP_TRAIN_TESTS_EMULATED_CUDNN_ATTRIBUTES_H_

#include <cstddef>

#include "trainer/ops/cudnn/cudnn_api.h"

namespace fsdp {

// Bytes of one value.
size_t CudnnSizeOf(cudnn::AttributeType type);

// Whether a descriptor of this type has the attribute, and its values have that type.
bool IsCudnnAttribute(cudnn::DescriptorType descriptor, cudnn::Attribute attribute,
                      cudnn::AttributeType type);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_CUDNN_ATTRIBUTES_H_
