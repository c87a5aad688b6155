#include "trainer/weights/initial_weights.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "models/shape.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/finite.h"
#include "trainer/core/errors.h"
#include "trainer/core/read_file.h"
#include "trainer/nn/lora.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/weights/hf_config.h"
#include "trainer/weights/hf_tensors.h"
#include "trainer/weights/hf_weights.h"
#include "trainer/weights/merged_weights.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

struct Weights {
  std::string directory;
  bool ours;  // A checkpoint; otherwise a Hugging Face directory.
};

// For what looks like a model of the Hugging Face Hub: `owner/name`.
std::string HowToDownload(const std::string& name) {
  const size_t slash = name.find('/');
  const auto plain = [](std::string_view part) {
    return !part.empty() && part[0] != '.' && part[0] != '~' &&
           std::all_of(part.begin(), part.end(), [](char c) {
             return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
           });
  };
  std::error_code ignored;
  if (slash == std::string::npos || !plain(std::string_view(name).substr(0, slash)) ||
      !plain(std::string_view(name).substr(slash + 1)) ||
      fs::exists(name.substr(0, slash), ignored)) {
    return "";
  }
  return "; a model of the Hugging Face Hub is downloaded first: `hf download " + name +
         " --local-dir DIR`, then model.init_from: DIR";
}

Weights Find(const std::string& directory) {
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    throw CheckpointError("model.init_from: " + directory + " is not a directory" +
                          HowToDownload(directory));
  }
  if (PathExists(directory + "/manifest.json")) return {directory, true};
  if (PathExists(directory + "/config.json")) return {directory, false};
  std::string no_run;
  try {
    return {ResolveCheckpoint(directory), true};
  } catch (const CheckpointError& error) {
    no_run = error.what();
  }
  throw CheckpointError("model.init_from: " + directory +
                        " holds neither a config.json nor a manifest.json, nor a run to begin "
                        "from: " +
                        no_run);
}

// Weights of a checkpoint of ours, for any thread.
class OwnWeights {
 public:
  // `merge`: the adapters, into what they adapt.
  OwnWeights(std::unique_ptr<CheckpointReader> reader, const std::string& state, bool merge)
      : reader_(std::move(reader)),
        model_(ModelOfCheckpoint(*reader_)),
        merge_(merge),
        merged_(*reader_, *model_, state) {
    for (const ModelSegment& segment : model_->segments()) {
      for (const Parameter* p : segment.parameters) parameters_[p->name()] = p;
    }
    for (const EmbeddingTable& table : model_->tables()) {
      tables_[table.name] = static_cast<int>(tables_.size());
    }
  }

  void Fill(const Parameter& parameter, int64_t begin, std::span<float> values) {
    const auto it = parameters_.find(parameter.name());
    if (it == parameters_.end() || it->second->shape() != parameter.shape()) {
      throw CheckpointError(reader_->directory() + ": has no parameter '" + parameter.name() +
                            "' of shape " + parameter.shape().ToString());
    }
    const std::lock_guard lock(mutex_);  // The reader keeps one chunk.
    merge_ ? merged_.Read(*it->second, begin, values)
           : merged_.ReadPlain(*it->second, begin, values);
  }

  void Fill(const ModelBuffer& buffer, int64_t begin, const View& values) {
    const std::lock_guard lock(mutex_);
    merged_.ReadBuffer(buffer, begin, values);
  }

  void Fill(const EmbeddingTable& table, int64_t begin, std::span<float> values) {
    const std::lock_guard lock(mutex_);
    const auto it = tables_.find(table.name);
    if (it == tables_.end() || model_->tables()[it->second].rows != table.rows ||
        model_->tables()[it->second].width != table.width) {
      throw CheckpointError(reader_->directory() + ": has no table '" + table.name + "' of " +
                            std::to_string(table.rows) + " rows of " + std::to_string(table.width));
    }
    merged_.ReadTable(it->second, begin, values);
  }

 private:
  std::mutex mutex_;
  const std::unique_ptr<CheckpointReader> reader_;
  const std::shared_ptr<Model> model_;
  const bool merge_;
  MergedWeights merged_;
  std::unordered_map<std::string, const Parameter*> parameters_;
  std::unordered_map<std::string, int> tables_;  // The model's.
};

WeightSource FillFrom(const std::shared_ptr<OwnWeights>& own) {
  return {[own](const Parameter& parameter, int64_t begin, std::span<float> values) {
            own->Fill(parameter, begin, values);
          },
          [own](const ModelBuffer& buffer, int64_t begin, const View& values) {
            own->Fill(buffer, begin, values);
          },
          [own](const EmbeddingTable& table, int64_t begin, std::span<float> values) {
            own->Fill(table, begin, values);
          }};
}

}  // namespace

std::string FindInitialWeights(const std::string& directory) { return Find(directory).directory; }

ModelShape ReadInitialShape(const std::string& directory) {
  const Weights found = Find(directory);
  if (found.ours) {
    return ShapeFromJson(ReadCheckpointMeta(found.directory).config,
                         found.directory + "/manifest.json, config");
  }
  return ReadHfConfig(found.directory).shape;
}

ModelHead HeadToDraw(const ModelShape& shape, const std::string& directory) {
  const ModelHead& head = shape.family().head();
  if (head.field.empty()) return {};
  return ReadInitialShape(directory).Find(head.field) == shape.Find(head.field) ? ModelHead()
                                                                                : head;
}

std::vector<std::string> IgnoredKeys(const std::string& directory) {
  const Weights found = Find(directory);
  return found.ours ? std::vector<std::string>() : ReadHfConfig(found.directory).ignored;
}

RunTokenizer InitialTokenizer(const std::string& directory) {
  const Weights found = Find(directory);
  if (found.ours) {
    const std::string recipe = ReadCheckpointMeta(found.directory).recipe;
    if (recipe.empty()) return {};  // It was imported.
    return TokenizerOfRun(ParseRecipe({{found.directory + "/manifest.json, recipe", recipe}}));
  }
  RunTokenizer tokenizer;
  tokenizer.name = TokenizerFileIn(found.directory).value_or("");
  return tokenizer;
}

std::shared_ptr<Model> ModelOfCheckpoint(const CheckpointReader& reader) {
  const CheckpointMeta& meta = reader.manifest().meta;
  std::shared_ptr<Model> model =
      MakeModel(ShapeFromJson(meta.config, reader.directory() + "/manifest.json, config"));
  if (meta.recipe.empty()) return model;  // It was imported.
  const Recipe recipe = ParseRecipe({{reader.directory() + "/manifest.json, recipe", meta.recipe}});
  if (const auto& lora = recipe.model.lora) {
    model = std::make_unique<LoraModel>(std::move(model),
                                        LoraOptions{lora->rank, lora->alpha, lora->targets});
  }
  return model;
}

WeightSource OpenInitialWeights(std::unique_ptr<CheckpointReader> checkpoint) {
  return FillFrom(std::make_shared<OwnWeights>(std::move(checkpoint), "master", /*merge=*/true));
}

WeightSource OpenStoredWeights(std::unique_ptr<CheckpointReader> checkpoint, bool averaged) {
  return FillFrom(std::make_shared<OwnWeights>(std::move(checkpoint), averaged ? "ema" : "master",
                                               /*merge=*/false));
}

WeightSource OpenInitialWeights(const std::string& directory, const ModelHead& head) {
  const Weights found = Find(directory);
  if (found.ours) return OpenInitialWeights(std::make_unique<CheckpointReader>(found.directory));
  const auto weights = std::make_shared<HfWeights>(found.directory);
  weights->RequireAll(HfTensors(*MakeModel(ReadHfConfig(found.directory).shape)), head);
  return {[weights](const Parameter& parameter, int64_t begin, std::span<float> values) {
            weights->FillParameter(parameter, begin, values);
          },
          [weights](const ModelBuffer& buffer, int64_t begin, const View& values) {
            weights->FillBuffer(buffer, begin, values);
          },
          [weights](const EmbeddingTable& table, int64_t begin, std::span<float> values) {
            weights->Fill(table.name, Shape{table.rows, table.width}, begin, values);
          }};
}

WeightSource RequireFinite(WeightSource read, const std::string& source, const std::string& use) {
  const auto require = [source, use](const std::string& wrong) {
    if (wrong.empty()) return;
    throw CheckpointError(source + ": " + wrong + ": not finite, so nothing can be " + use +
                          " from it");
  };
  return {[read = std::move(read.parameters), require](const Parameter& parameter, int64_t begin,
                                                       std::span<float> values) {
            read(parameter, begin, values);
            require(DescribeNotFinite(parameter, begin, values));
          },
          [read = std::move(read.buffers), require](const ModelBuffer& buffer, int64_t begin,
                                                    const View& values) {
            read(buffer, begin, values);
            require(DescribeNotFinite(buffer.name(), begin, values));
          },
          [read = std::move(read.rows), require](const EmbeddingTable& table, int64_t begin,
                                                 std::span<float> values) {
            read(table, begin, values);
            const auto bytes = std::as_bytes(values);
            require(DescribeNotFinite(
                table.name, begin,
                ConstView(bytes.data(), DType::kFloat32, Shape{std::ssize(values)})));
          }};
}

}  // namespace fsdp
