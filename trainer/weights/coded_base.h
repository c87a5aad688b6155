// The base of a run with coded weights (ops/weight_codes.h): all its frozen ones, made of the
// weights that it began with. A checkpoint does not repeat them.
// Tests: tests/trainer/weights/coded_base_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_CODED_BASE_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_CODED_BASE_H_

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "trainer/checkpoint/manifest.h"
#include "trainer/fsdp/executor_callbacks.h"
#include "trainer/nn/parameter.h"

namespace fsdp {

class Model;

// Throws CheckpointError, naming both, where the hashes differ.
void RequireBase(const CheckpointMeta::Base& of_checkpoint, const CheckpointMeta::Base& found,
                 const std::string& checkpoint);

// Values that a run computes with. For several threads at once.
class CodedBase {
 public:
  // Reads the model's frozen weights once: coded ones from `records`, others from `plain`.
  CodedBase(FillParameter plain, RecordSource records, const Model& model);

  // As Executor::InitializeBase() returns it.
  uint64_t hash() const { return hash_; }
  // Fills `values` with elements [begin, begin + n) of a frozen parameter, of a coded one decoded.
  void Fill(const Parameter& parameter, int64_t begin, std::span<float> values) const;
  // Writes finished records of a slice, from record `first` on.
  void Records(const Parameter& parameter, const ParameterSlice& slice, int64_t first,
               std::span<uint8_t> records) const;

 private:
  void ReadPlain(const Parameter& parameter);
  void ReadRecords(const Parameter& parameter);

  FillParameter plain_;
  RecordSource source_;
  std::unordered_map<std::string, float> means_;  // By slice: of nested scales that are made here.
  uint64_t hash_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_CODED_BASE_H_
