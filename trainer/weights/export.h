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
  bool as_it_came = false;            // That is the dtype which model.init_from was in.
  std::vector<std::string> warnings;  // What the directory lacks, or what to look after.
};

// ExportHf with the model that the checkpoint's own recipe builds: adapters are merged; and with
// the run's tokenizer, or `tokenizer` in its place if that is not empty. Without the run's files
// the rest is exported, with a warning. Without a
// `dtype`, which takes the place of options.dtype, it is the one of model.init_from's config.json,
// and fp32 where no file names one. Throws CheckpointError, and of `tokenizer` DataError and
// ConfigError.
CheckpointExported ExportCheckpoint(CheckpointHold checkpoint, const std::string& out,
                                    const std::string& tokenizer, std::optional<DType> dtype,
                                    HfExportOptions options, const ByteProgress& progress);

struct AdaptersExported {
  HfAdaptersExported adapters;
  std::vector<std::string> warnings;
};

// ExportHfAdapters with the run's model.lora, beside the weights of its model.init_from. Throws
// CheckpointError, also where the run had no adapters. Of `options`, `dtype` and `state` are read.
AdaptersExported ExportAdapters(CheckpointHold checkpoint, const std::string& out,
                                HfAdapterOptions options, const ByteProgress& progress);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_EXPORT_H_
