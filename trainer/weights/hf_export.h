// A checkpoint as a Hugging Face directory: config.json, generation_config.json, and
// model.safetensors or its shards with their index, as transformers' save_pretrained() lays them
// out, beside the files of a tokenizer.
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_HF_EXPORT_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_HF_EXPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/core/dtype.h"
#include "trainer/weights/bnb_tensor.h"
#include "trainer/weights/hf_adapters.h"  // IWYU pragma: export
#include "trainer/weights/initial_weights.h"
#include "trainer/weights/run_tokenizer.h"

namespace fsdp {

class Model;

struct HfExportOptions {
  DType dtype = DType::kFloat32;            // All weights': fp32, bf16 or fp16.
  int64_t max_shard_bytes = 5'000'000'000;  // Tensors in a file; none is split.
  std::string state = "master";             // "ema": the averaged weights.
  HfTokenizerFiles tokenizer = {};          // Empty: none. Ids outside the vocabulary are left out.
  std::string generation = "";  // The generation_config.json whose settings are kept; "": none.
  std::string image_processor = "";       // The text of preprocessor_config.json; "": none.
  std::vector<std::string> classes = {};  // As in HfConfigToJson().
  // For a run with coded weights. `coded`: they are written in bitsandbytes' four bits, and
  // adapters are not merged. `merge_into`: a Hugging Face directory or checkpoint whose weights
  // take their place, such as those that were encoded.
  bool coded = false;
  std::string merge_into = "";
};

struct HfExported {
  int files = 0;      // Files with tensors.
  int64_t bytes = 0;  // The tensors' bytes.
};

// Makes the directory `out`, whole or not at all, and replaces nothing (new_directory.h). `model`
// is the checkpoint's, with the adapters it was trained with, which are merged. A tied head is
// written once, as the embedding. Values are rounded to nearest, even; one that the dtype
// does not hold is refused. Holds 8 MiB of elements and one chunk of the checkpoint. `progress`
// (bytes of tensors) may be null. Throws CheckpointError.
HfExported ExportHf(CheckpointReader& checkpoint, const ModelShape& shape, const Model& model,
                    const std::string& out, const HfExportOptions& options,
                    const ByteProgress& progress);

// The same with the weights `coded`, by the names of their tensors, in bitsandbytes' four bits
// (bnb_tensor.h), and with transformers' BitsAndBytesConfig in config.json: from_pretrained() of
// transformers with bitsandbytes reads it, and so does model.init_from. `plain` has all other
// weights, which are rounded to options.dtype; bitsandbytes decodes to it, too. Adapters are not
// merged: ExportAdapters() writes them. The first record of each coded tensor is asked for before
// anything is written, then all in order, up to 16 at a time. options.state is not read.
// Throws CheckpointError, also for models whose linear_layout() is kInOut; std::invalid_argument
// where `coded` is empty, names no tensor of the model, or has a code that is not nf4.
HfExported ExportBnb(const WeightSource& plain, const CodedTensors& coded, const ModelShape& shape,
                     const Model& model, const std::string& out, const HfExportOptions& options,
                     const ByteProgress& progress);

// Checkpoints of runs as Hugging Face directories.

struct CheckpointExported {
  HfExported weights;
  DType dtype = DType::kFloat32;
  bool adapts = false;                // The run has adapters.
  bool as_it_came = false;            // `dtype` is that of model.init_from, or of the import.
  std::vector<std::string> warnings;  // Things that the directory lacks, or to look after.
};

// ExportHf with the model that the checkpoint's own recipe builds; adapters are merged. The
// tokenizer is `tokenizer`, or the run's if that is empty. Without the run's tokenizer files the
// rest is exported, with a warning. A text ends with the run's end-of-text token, with the end of
// turn that it learnt, and with each token that ended one in the Hugging Face directory of
// model.init_from, whose further generation settings are kept. Classes have the names of the run's
// folders, or else those of model.init_from.
// `dtype` replaces options.dtype; empty: the dtype of model.init_from's config.json, or fp32 where
// no file names one. An import (ImportHf) is exported with the files that it came with. Throws
// CheckpointError, and for `tokenizer` DataError and ConfigError.
CheckpointExported ExportCheckpoint(CheckpointHold checkpoint, const std::string& out,
                                    const std::string& tokenizer, std::optional<DType> dtype,
                                    HfExportOptions options, const ByteProgress& progress);

// The tokens that end a text in the Hugging Face directory of model.init_from, of this run or of
// the run that it began with, for a text of the run to end with, too; or those of an import. Empty
// where there is none.
std::vector<int32_t> EndsOfOrigin(const std::string& checkpoint, const CheckpointMeta& meta);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_HF_EXPORT_H_
