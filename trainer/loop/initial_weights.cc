#include "trainer/loop/initial_weights.h"

#include <filesystem>
#include <memory>
#include <mutex>

#include "models/make_model.h"
#include "models/shape_json.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_weights.h"
#include "trainer/checkpoint/hf_config.h"
#include "trainer/checkpoint/hf_tensors.h"
#include "trainer/checkpoint/hf_weights.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

bool IsCheckpoint(const std::string& directory) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(directory)) {
    throw CheckpointError("model.init_from: " + directory + " is not a directory");
  }
  const bool ours = fs::exists(directory + "/manifest.json");
  if (!ours && !fs::exists(directory + "/config.json")) {
    throw CheckpointError("model.init_from: " + directory +
                          " holds neither a config.json nor a manifest.json");
  }
  return ours;
}

}  // namespace

ModelShape ReadInitialShape(const std::string& directory) {
  if (IsCheckpoint(directory)) return ShapeFromJson(ReadCheckpointMeta(directory).config);
  return ReadHfConfig(directory).shape;
}

std::vector<std::string> IgnoredKeys(const std::string& directory) {
  return IsCheckpoint(directory) ? std::vector<std::string>() : ReadHfConfig(directory).ignored;
}

Executor::FillParameter OpenInitialWeights(const std::string& directory) {
  // Ours hold parameters, theirs slices.
  if (IsCheckpoint(directory)) {
    struct Shared {
      explicit Shared(const std::string& directory) : weights(directory) {}
      std::mutex mutex;  // The reader keeps one chunk; filling asks from all compute threads.
      CheckpointWeights weights;
    };
    return [shared = std::make_shared<Shared>(directory)](const Parameter& parameter, int64_t begin,
                                                          std::span<float> values) {
      const std::lock_guard lock(shared->mutex);
      shared->weights.Fill(parameter.name(), parameter.shape(), begin, values);
    };
  }
  const auto weights = std::make_shared<HfWeights>(directory);
  weights->RequireAll(HfTensors(*MakeModel(ReadHfConfig(directory).shape)));
  return [weights](const Parameter& parameter, int64_t begin, std::span<float> values) {
    weights->FillParameter(parameter, begin, values);
  };
}

}  // namespace fsdp
