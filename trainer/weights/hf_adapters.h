// A checkpoint's adapters as a directory of PEFT (github.com/huggingface/peft, docs/source/
// developer_guides/checkpoint.md): adapter_config.json and adapter_model.safetensors.
// Tests: tests/trainer/weights/hf_adapters_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_HF_ADAPTERS_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_HF_ADAPTERS_H_

#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/core/dtype.h"

namespace fsdp {

class Model;

struct HfAdapterOptions {
  DType dtype = DType::kFloat32;  // All tensors': fp32, bf16 or fp16.
  std::string state = "master";   // "ema": the averaged weights.
  double alpha = 0;               // The adapters' sum is scaled by alpha / rank.
  double dropout = 0;             // LoraOptions::dropout, for the record.
  std::string base = {};          // The directory of the adapted weights.
  std::string task = {};          // PEFT's name of the model's; "": none.
};

struct HfAdaptersExported {
  int weights = 0;    // Weights that have adapters.
  int64_t bytes = 0;  // The tensors' bytes.
};

// Makes the directory `out`, whole or not at all, and replaces nothing (new_directory.h). `model`
// is the checkpoint's, with the adapters that it was trained with: at least one. Parameters that
// trained whole (LoraOptions::full) are PEFT's modules_to_save. Values are rounded
// as by ExportHf(). `progress` (bytes of tensors) may be null. Throws CheckpointError.
HfAdaptersExported ExportHfAdapters(CheckpointReader& checkpoint, const Model& model,
                                    const std::string& out, const HfAdapterOptions& options,
                                    const ByteProgress& progress);

// A weight whose adapter PEFT 0.21 leaves out in silence: it takes the names of experts' modules,
// such as gate_proj, for theirs alone, in shared experts and dense layers, too. Empty: there is
// none.
std::string LostBesideExperts(const Model& model);

struct AdaptersExported {
  HfAdaptersExported adapters;
  std::vector<std::string> warnings;
};

// ExportHfAdapters with the run's model.lora, beside the weights of its model.init_from. Throws
// CheckpointError, also where the run had no adapters. Reads only `dtype` and `state` of `options`.
AdaptersExported ExportAdapters(CheckpointHold checkpoint, const std::string& out,
                                HfAdapterOptions options, const ByteProgress& progress);

// PEFT's target_modules, sorted, for the modules `adapted` out of `all` that could be. A module is
// a weight's name without .weight. Has the last part of a name where every module with that part is
// adapted, otherwise the whole names.
std::vector<std::string> TargetModules(const std::vector<std::string>& adapted,
                                       const std::vector<std::string>& all);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_HF_ADAPTERS_H_
