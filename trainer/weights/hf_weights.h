// The tensors of a Hugging Face directory: model.safetensors, or the files that
// model.safetensors.index.json names.
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_HF_WEIGHTS_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_HF_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "models/family.h"
#include "models/hf_object.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/core/view.h"
#include "trainer/nn/parameter.h"
#include "trainer/ops/weight_code.h"
#include "trainer/weights/bnb_tensor.h"
#include "trainer/weights/hf_tensors.h"

namespace fsdp {

// Tensors in F32, F64, BF16 or F16, read by byte ranges, 256 KiB at a time, and weights in
// bitsandbytes' four bits (bnb_tensor.h), which are decoded, or read as they are. The name of the
// model's trunk (HfNames::trunk) may precede a tensor's name or not, both here and in the file, and
// parts of names may be others (HfNames::renamed). A tensor that holds all experts is its parts
// (fused_experts.h), of which each is read by itself.
// const calls may run in parallel.
class HfWeights final : public HfFiles {
 public:
  // Opens all files and reads their headers, and of coded weights all but codes and scales. Throws
  // CheckpointError, also for a coded weight that BnbTensor refuses.
  explicit HfWeights(const std::string& directory);

  // Requires that the files hold every tensor of the model with its shape and a dtype that can be
  // read, and no other tensors except those known to be of no use (causal masks, rotary
  // frequencies, the second copy of a tied head). Throws CheckpointError with the first tensor that
  // is missing, wrong or too much; and where weights are coded that lie here in another order than
  // in the layers that transformers coded (WeightLayout::kInOut).
  // Tensors in `head` need not be there. Where a model without a head of its own has its embedding
  // under the name of a copy (HfNames::embedding), that is read.
  void RequireAll(const HfTensors& tensors, const ModelHead& head = {}) const;

  bool Holds(const std::string& tensor) const override;
  // As numbers, whatever their dtypes. Remembered for the life of the process, by names, sizes and
  // times of the files.
  bool AreEqual(const std::string& a, const std::string& b) const override;

  // Fills `out` with elements [begin, begin + out.size()) of the tensor; coded ones as they decode
  // in fp32. Throws CheckpointError where there is no such tensor, or it has another shape;
  // std::invalid_argument for a range outside it.
  void Fill(const std::string& tensor, const Shape& shape, int64_t begin,
            std::span<float> out) const;
  // Fills `out` with elements of a parameter, slice by slice.
  void FillParameter(const Parameter& parameter, int64_t begin, std::span<float> out) const;
  // Fills `out` with elements of a buffer, in its own dtype: a count is I64 in the file, and a
  // tally is in none: it is 0.
  void FillBuffer(const ModelBuffer& buffer, int64_t begin, const View& out) const;

  bool HoldsCoded() const;  // Any tensor.
  // kNone: the tensor is not coded. Throws CheckpointError where there is none.
  WeightCode CodeOf(const std::string& tensor) const;
  // BnbTensor::ReadRecords() of a coded tensor.
  void ReadRecords(const std::string& tensor, int64_t first_record,
                   std::span<uint8_t> records) const;

 private:
  struct Tensor : BnbTensor::Part {
    std::shared_ptr<const BnbTensor> coded = nullptr;
    int64_t begin = 0;               // A part's first element in the file's tensor,
    std::vector<int64_t> part = {};  // and its shape. Empty: it is the whole tensor.

    const std::vector<int64_t>& shape() const;
    void Read(int64_t begin, std::span<float> out) const;
  };

  void Add(const SafetensorsReader& file, const std::string& name);
  void TakeCoded();  // Weights with their parts, which are no tensors then.

  const Tensor* Look(const std::string& tensor) const;  // Null: there is none.
  const Tensor& Find(const std::string& tensor, const Shape& shape) const;
  void RequireFused(const HfTensors& tensors) const;  // Their shapes.
  [[noreturn]] void RefuseMissing(const std::string& tensor) const;

  std::string directory_;
  std::vector<std::unique_ptr<SafetensorsReader>> files_;
  // Both by KeyOf() their names. Tensors of all experts are in the second.
  std::unordered_map<std::string, Tensor> tensors_, fused_;
};

// Whether a directory has files that HfWeights would open.
bool HoldsHfWeights(const std::string& directory);

// A Hugging Face directory as a checkpoint of step 0.

struct HfImported {
  SavedCheckpoint saved;
  std::vector<std::string> ignored;  // Keys of config.json that are ignored.
  std::vector<std::string> notes;    // HfConfig::notes.
};

// Makes the checkpoint `out` (WriteCheckpoint) for a world of one: the master weights in fp32, the
// shape, and no recipe, optimizer state or tokens seen. kHfTextFiles come along. Every tensor of
// the directory must be the model's, or known to be of no use, and finite, unless
// `allow_nonfinite`. Throws CheckpointError.
HfImported ImportHf(const std::string& directory, const std::string& out,
                    const ByteProgress& progress, bool allow_nonfinite = false);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_HF_WEIGHTS_H_
