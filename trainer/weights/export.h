// Checkpoints of runs as Hugging Face directories.
// Tests: tests/e2e/hugging_face_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_EXPORT_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_EXPORT_H_

#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint_hold.h"
#include "trainer/core/dtype.h"
#include "trainer/weights/hf_adapters.h"
#include "trainer/weights/hf_export.h"

namespace fsdp {

struct CheckpointExported {
  HfExported weights;
  DType dtype = DType::kFloat32;
  bool as_it_came = false;            // `dtype` is that of model.init_from.
  std::vector<std::string> warnings;  // Things that the directory lacks, or to look after.
};

// ExportHf with the model that the checkpoint's own recipe builds; adapters are merged. The
// tokenizer is `tokenizer`, or the run's if that is empty. Without the run's tokenizer files the
// rest is exported, with a warning.
// `dtype` replaces options.dtype; empty: the dtype of model.init_from's config.json, or fp32 where
// no file names one. Throws CheckpointError, and for `tokenizer` DataError and ConfigError.
CheckpointExported ExportCheckpoint(CheckpointHold checkpoint, const std::string& out,
                                    const std::string& tokenizer, std::optional<DType> dtype,
                                    HfExportOptions options, const ByteProgress& progress);

struct AdaptersExported {
  HfAdaptersExported adapters;
  std::vector<std::string> warnings;
};

// ExportHfAdapters with the run's model.lora, beside the weights of its model.init_from. Throws
// CheckpointError, also where the run had no adapters. Reads only `dtype` and `state` of `options`.
AdaptersExported ExportAdapters(CheckpointHold checkpoint, const std::string& out,
                                HfAdapterOptions options, const ByteProgress& progress);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_EXPORT_H_
