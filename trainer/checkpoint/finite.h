// Whether weights are finite: saved, imported and initial weights must be.
// Tests: tests/trainer/checkpoint/rank_file_test.cc
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_FINITE_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_FINITE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "trainer/core/view.h"
#include "trainer/fsdp/layout.h"
#include "trainer/nn/parameter.h"
#include "trainer/runtime/spill/spill_memory.h"

namespace fsdp {

// The index of the first value that is NaN or infinite. As fast as the memory.
std::optional<size_t> FirstNotFinite(std::span<const float> values);
// The same for values of any dtype: integers are always finite.
std::optional<size_t> FirstNotFinite(ConstView values);

// One value of fp32, bf16 or fp16.
float FloatAt(ConstView values, int64_t index);

// "nan", "inf" or "-inf"; a NaN's sign means nothing.
std::string NotFiniteName(float value);

// "m of h.0.w: element 17 is inf": `element` counts from the begin of the flat parameter.
std::string DescribeNotFinite(const std::string& state, const FlatParameter& flat, int64_t element,
                              float value);

// Describes the first such element of a shard that begins at element `begin` of the flat parameter.
// The shard may lie in `spill`, which may be null. Empty where all are finite. Throws as
// SpillMemory::ReadInOrder() does.
std::string DescribeNotFinite(const std::string& state, const FlatParameter& flat, int64_t begin,
                              ConstView shard, const SpillMemory* spill);

// Describes the first such element of a parameter's elements from `begin` on, by its name in
// Hugging Face's files: "h.0.attn.c_attn.weight: element 17 is nan". Empty where all are finite.
std::string DescribeNotFinite(const Parameter& parameter, int64_t begin,
                              std::span<const float> values);

// The same for a whole tensor, such as a buffer: "bn.running_mean: element 17 is nan".
std::string DescribeNotFinite(const std::string& tensor, int64_t begin, ConstView values);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_FINITE_H_
