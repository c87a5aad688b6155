// manifest.json: a checkpoint's contents and the place of every element. JSON, UTF-8:
//
//   {"checksum": "<16 hexadecimal digits>",      XXH64 of the file after this first line
//    "format": "fsdp-train checkpoint", "version": 5,
//    "world": 2, "shards": 2,                    of the run that wrote it; shards is F
//    "step": 100, "tokens": 819200, "seed": 1337,
//    "updates": 98, "skipped": 0,                steps that landed, and those that were paid for
//    "scaler": {"scale": 32768, "good_steps": 7},   where one is in use
//    "evaluation": {"loss": 2.5, "best": 2.25,   loss: where this step was evaluated
//                   "since_best": 1},
//    "evaluate_first": true,                     where a stop cut the evaluation of this step short
//    "classes": ["ants", "bees"],                names of what images show, where folders have them
//    "base": {"files": "DIR", "hash": "<16 hexadecimal digits>"},   of a run with coded weights:
//                                                source and hash (fsdp/records.h) of all frozen
//                                                ones
//    "beside": ["config.json", ...],             files here that came with an import
//    "recipe": "<YAML>", "config": "<JSON>",
//    "data": {"train": [{"path": "a.txt", "bytes": 1000, "hash": "<16 hexadecimal digits>"}, ...],
//             "valid": []},                      data_files.h; an import has none
//    "records": {"bytes": 9000, "hash": "<16 hexadecimal digits>"},   what metrics.jsonl began with
//                                                when it was saved: file_prefix.h
//    "states": ["master", "m", "m_absmax", "factor"],
//    "formats": {"master": {"grid": "element", "dtypes": {"root": "fp32", ...}},
//                "m": {"grid": "element", "dtypes": {"root": "uint8", ...}},
//                "m_absmax": {"grid": "block", "dtypes": {"root": "fp32"}},
//                "factor": {"grid": "tensor",
//                           "tensors": [{"name": "wte.weight.rows", "owner": "wte.weight",
//                                        "dtype": "fp32", "shape": [64]}, ...]}},
//    "units": [{"name": "root", "size": 4096, "shard_size": 2048, "frozen": false,
//               "parameters": [{"name": "wte.weight", "shape": [64, 32], "offset": 0}, ...]}, ...],
//    "files": [{"name": "rank_0.safetensors", "bytes": 25000, "chunk_bytes": 1048576,
//               "chunks": ["<16 hexadecimal digits>", ...],     chunk_checksum.h
//               "slices": [{"state": "master", "unit": "root", "begin": 0, "count": 2048,
//                           "at": 808, "bytes": 8192}, ...,
//                          {"state": "factor", "tensor": "wte.weight.rows", "begin": 0,
//                           "count": 64, "at": 24000, "bytes": 256}, ...]}, ...]}
//
// "units" lists flat parameters and "unit" names one (trainer/fsdp/layout.h). Sizes, offsets, begin
// and count are elements of the flat parameter, the same for all its states, whatever their grids
// (state_format.h) and dtypes; a tensor of its own has elements of its own, and lies whole in one
// slice. Bytes [at, at + bytes) of the file hold the slice's values, little-endian: they are the
// file's tensor <state>/<flat parameter>/<dtype> or <state>/<tensor>/<dtype>. A frozen flat
// parameter has no state but its parameters, "master". Where "base" is true it has none. Elements
// of coded weights are bytes, "code" names the code, and each of its parameters has "bytes".
// "whole", true or left out, says that a unit is updated matrix by matrix and has no state "v". A
// tensor without an owner belongs to the whole model.
//
// A model's buffers are the tensors of the state "buffers", fp32 or int64. Its embedding tables are
// those of the states "rows" and "row_sums" of the grid "rows": tables [rows, width] and [rows], in
// parts. The elements of a table count through rank by rank, in each by its rows
// (fsdp/row_placement.h).
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_MANIFEST_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/state_format.h"
#include "trainer/core/file_prefix.h"
#include "trainer/data/data_files.h"
#include "trainer/fsdp/layout.h"

namespace fsdp {

// Further data that a run needs to go on, or a reader wants to know.
struct CheckpointMeta {
  int64_t step = 0;    // Steps that are done.
  int64_t tokens = 0;  // Target tokens seen.
  uint64_t seed = 0;
  std::string recipe;  // The resolved recipe, YAML.
  std::string config;  // The model's shape, JSON text, for readers without the recipe.
  // The files that the run has read since its start; empty: unknown (an import).
  std::optional<DataFiles> data{};
  int64_t updates = 0;  // Steps that changed the weights.
  int64_t skipped = 0;  // The other steps that train.max_skipped_steps counts.
  struct Scaler {
    float scale = 1;
    int64_t good_steps = 0;
    bool operator==(const Scaler&) const = default;
  };
  std::optional<Scaler> scaler{};  // The loss scaler for the next step, if one is in use.
  std::string products{};          // A GPU run's algorithms of products, as JSON.
  // Loss of the validation sets; empty before the run's first evaluation.
  struct Evaluation {
    std::optional<double> loss;  // The mean of the sets after this very step; nats.
    double best = 0;             // The lowest so far.
    int64_t since_best = 0;      // Evaluations since, none of them lower.
    bool operator==(const Evaluation&) const = default;
  };
  std::optional<Evaluation> evaluation{};
  // The weights that a run's frozen ones are, where it has coded ones (model.lora.base); a
  // checkpoint does not repeat them.
  struct Base {
    std::string files;
    uint64_t hash = 0;
    bool operator==(const Base&) const = default;
  };
  std::optional<Base> base{};
  bool evaluate_first = false;  // A stop has cut this step's evaluation short: a resume makes it.
  std::vector<std::string> classes{};  // Names of a classifier's classes; empty: none are known.
  std::vector<std::string> beside{};   // Files of the import that this is; WholeCheckpoint::beside.
  // The contents of the run directory's metrics.jsonl at the save; empty: unknown (an import, a
  // reshard). A save takes rank 0's.
  std::optional<FilePrefix> records{};
};

struct ManifestSlice {
  std::string state, flat;
  int64_t begin = 0, count = 0;  // Elements; count > 0.
  int64_t at = 0, bytes = 0;     // Place in the file, in bytes.
  std::string tensor{};          // Name of an own tensor; `flat` is then empty.
};

struct ManifestFile {
  std::string name;
  int64_t bytes = 0;
  int64_t chunk_bytes = 0;
  std::vector<uint64_t> chunks;  // Checksums.
  std::vector<ManifestSlice> slices;
};

struct Manifest {
  CheckpointMeta meta;
  int world = 1, shards = 1;
  std::vector<StateFormat> states;
  std::vector<FlatParameter> flat_parameters;
  std::vector<ManifestFile> files;  // One a rank, by rank.

  int64_t DataBytes() const;  // Bytes of all `files`.
  std::vector<std::string> StateNames() const;
  const StateFormat* FindState(std::string_view name) const;  // Null where there is none.
};

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr char kManifestFormat[] = "fsdp-train checkpoint";
// The version that is written and read. Builds before 0.1.0 wrote 1 to 4, which are refused.
inline constexpr int64_t kManifestVersion = 5;
// The text before and behind the checksum, which stands first and covers all that follows.
inline constexpr std::string_view kManifestBeforeChecksum = "{\"checksum\": \"",
                                  kManifestAfterChecksum = "\",\n";
std::string RankFileName(int rank);

// Parses the text of ManifestFileToJson() (manifest_writer.h). Throws CheckpointError with `path`
// and the reason.
ManifestFile ParseManifestFile(std::string_view json, const std::string& path);

// Parses the text of a manifest. Believes nothing: the checksum must be right, every number
// in its range, every name a plain one, every owner a parameter. Parameters must lie inside their
// flat parameter without overlap. The slices of each state must hold every element of every flat
// parameter, or of its tensors, exactly once, in as many bytes as grid and dtype ask for, without
// sharing any. Throws CheckpointError with `path` and the reason.
Manifest ParseManifest(std::string_view text, const std::string& path);

// Reads <directory>/manifest.json, and checks that every file is there with its size.
Manifest ReadManifest(const CheckpointHold& directory);
Manifest ReadManifest(const std::string& directory);
// Reads the manifest without a look at the files.
Manifest ReadManifestAlone(const CheckpointHold& directory);
Manifest ReadManifestAlone(const std::string& directory);

// The places of each (state, flat parameter) or (state, tensor): its slices by `begin`, with the
// file's index.
struct Extent {
  int64_t begin = 0, count = 0, at = 0, bytes = 0;
  int file = 0;
};
using Extents = std::map<std::pair<std::string, std::string>, std::vector<Extent>>;
Extents ExtentsOf(const Manifest& manifest);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_MANIFEST_H_
