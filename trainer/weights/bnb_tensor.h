// Weights in bitsandbytes' four bits as transformers keeps them in safetensors files (QuantState's
// as_dict(packed=True) in bitsandbytes' functional.py). A weight X of n elements is several
// tensors:
//   X                 U8 [ceil(n / 2), 1]: the codes of nf4, as in a record (ops/weight_codes.h)
//   X.quant_map       F32 [16]: nf4's values
//   X.absmax          F32 [ceil(n / 64)]: the blocks' scales; or U8, indices in
//   X.nested_quant_map  F32 [256]: the values of scales in eight bits, with
//   X.nested_absmax   F32 [ceil(n / 16384)]: the records' maxima
//   X.quant_state.bitsandbytes__nf4  U8: JSON with X's shape, the dtype that it had, the sizes of
//                     blocks, and nested_offset, the mean of its scales
// Tests: tests/trainer/weights/bnb_tensor_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_BNB_TENSOR_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_BNB_TENSOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/checkpoint/safetensors.h"
#include "trainer/ops/weight_code.h"

namespace fsdp {

// The weight of which a tensor is one of those above, by its name; empty where it is the weight
// itself, or nothing of the kind.
std::optional<std::string> BnbWeightOf(const std::string& tensor);

// A coded weight in files. const calls may run in parallel.
class BnbTensor {
 public:
  // A tensor in one of the files, which outlive this.
  struct Part {
    const SafetensorsReader* file = nullptr;
    std::string name;
  };
  // X with this end to its name, "" for X itself; null where there is none.
  using FindPart = std::function<const Part*(std::string_view end)>;

  // Reads what is not codes or scales. `name`: X's, for messages. Throws CheckpointError where a
  // part is missing, or has another type or size than above; and for fp4, blocks of other sizes,
  // codes that are not stored as U8, and other maps than nf4's and the dynamic one: to 1e-6 of each
  // value, as they differ between versions of PyTorch.
  BnbTensor(const std::string& name, const FindPart& find);

  WeightCode code() const { return code_; }  // kNf4, or kNf4Nested where the scales are U8.
  const std::vector<int64_t>& shape() const { return shape_; }

  // Fills `records` with the records [first_record, ...), whole ones, as ops/weight_codes.h lays
  // them out, the last one padded as there. Codes and scales are the files'. Throws
  // CheckpointError, and std::invalid_argument for a range outside the tensor or a part of a
  // record.
  void ReadRecords(int64_t first_record, std::span<uint8_t> records) const;

  // Fills `out` with the decoded elements [begin, begin + out.size()), not rounded to the dtype
  // that the weight had. Throws as ReadRecords().
  void ReadFloat(int64_t begin, std::span<float> out) const;

 private:
  void ReadBatch(int64_t first_record, std::span<uint8_t> records) const;  // A few of them.

  WeightCode code_ = WeightCode::kNf4;
  std::vector<int64_t> shape_;
  int64_t elements_ = 0;
  float mean_ = 0;
  std::vector<Part> parts_;  // X itself, absmax, nested_absmax where it is nested.
};

// Fills `records` with a weight's records from `first_record` on: a run's, a file's
// (HfWeights::ReadRecords), or made of values by EncodeRecords() and EncodeScales().
using FillRecords = std::function<void(int64_t first_record, std::span<uint8_t> records)>;

struct CodedTensor {
  WeightCode code = WeightCode::kNf4;
  FillRecords fill;
};
using CodedTensors = std::map<std::string, CodedTensor>;  // By the name of the tensor.

// A coded weight on its way to a file.
class BnbParts {
 public:
  // `dtype`: PyTorch's name of the one to which bitsandbytes decodes, as "bfloat16". Asks for the
  // first record, which has the mean. Throws std::invalid_argument for a code that is not nf4.
  BnbParts(const std::string& name, const std::vector<int64_t>& shape, std::string_view dtype,
           CodedTensor coded);

  WeightCode code() const { return coded_.code; }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  int64_t bytes() const;  // All entries'.

  // Writes all entries, and calls `wrote` with bytes as they are written. Throws CheckpointError,
  // also where a record has another mean than the first one.
  void Write(SafetensorsWriter& writer, const std::function<void(int64_t bytes)>& wrote) const;

 private:
  void WriteRecords(SafetensorsWriter& writer, int64_t first, std::span<const uint8_t> records,
                    const std::function<void(int64_t bytes)>& wrote) const;

  std::string name_, state_;
  int64_t elements_ = 0;
  float mean_ = 0;
  CodedTensor coded_;
  std::vector<SafetensorsEntry> entries_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_BNB_TENSOR_H_
