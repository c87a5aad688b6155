// Checkpoints of runs as Hugging Face directories.
#ifndef FSDP_TRAIN_TRAINER_LOOP_EXPORT_H_
#define FSDP_TRAIN_TRAINER_LOOP_EXPORT_H_

#include <string>

#include "trainer/checkpoint/hf_export.h"

namespace fsdp {

// ExportHf with the model that the checkpoint's own recipe builds: adapters are merged. Throws
// CheckpointError.
HfExported ExportCheckpoint(const std::string& checkpoint, const std::string& out,
                            const HfExportOptions& options, const ByteProgress& progress);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_EXPORT_H_
