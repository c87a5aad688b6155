// A checkpoint's adapters as a directory of PEFT (github.com/huggingface/peft, docs/source/
// developer_guides/checkpoint.md): adapter_config.json and adapter_model.safetensors.
// Tests: tests/trainer/weights/hf_adapters_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_HF_ADAPTERS_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_HF_ADAPTERS_H_

#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/core/dtype.h"
#include "trainer/nn/model.h"

namespace fsdp {

struct HfAdapterOptions {
  DType dtype = DType::kFloat32;  // Of all tensors: fp32, bf16 or fp16.
  std::string state = "master";   // "ema": the averaged weights.
  double alpha = 0;               // What they add is scaled by alpha / rank.
  std::string base = {};          // The directory of the weights that they adapt.
};

struct HfAdaptersExported {
  int weights = 0;    // That have adapters.
  int64_t bytes = 0;  // Of the tensors.
};

// Makes the directory `out`, whole or not at all, and replaces nothing (new_directory.h). `model`
// is that of the checkpoint, with the adapters that it was trained with: at least one. Values are
// rounded as by ExportHf(). `progress` (bytes of tensors) may be null. Throws CheckpointError.
HfAdaptersExported ExportHfAdapters(CheckpointReader& checkpoint, const Model& model,
                                    const std::string& out, const HfAdapterOptions& options,
                                    const ByteProgress& progress);

// PEFT's target_modules for the modules `adapted` of those that could be, `all`: the last part of a
// name where every module of that part is adapted, else the whole names. Modules are weights'
// names without .weight. Sorted.
std::vector<std::string> TargetModules(const std::vector<std::string>& adapted,
                                       const std::vector<std::string>& all);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_HF_ADAPTERS_H_
