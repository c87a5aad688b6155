// The shape of a RegNet (Radosavovic et al. 2020, arXiv:2003.13678), which sorts square images into
// classes: stages of bottleneck blocks with grouped convolutions and batch norms; with squeeze and
// excitation it is a RegNetY, without a RegNetX. As transformers' RegNetForImageClassification.
// Tests: tests/models/regnet/family_test.cc
#ifndef FSDP_TRAIN_MODELS_REGNET_CONFIG_H_
#define FSDP_TRAIN_MODELS_REGNET_CONFIG_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace fsdp {

class Model;
class ModelFamily;

// Names as in recipes. The defaults are RegNetY-400MF.
struct RegNetConfig {
  int64_t image_size = 224;  // Pixels of a side.
  int64_t num_channels = 3;
  int64_t num_labels = 1000;
  int64_t embedding_size = 32;                              // Channels of the stem.
  std::vector<int64_t> hidden_sizes = {48, 104, 208, 440};  // Channels of a stage's blocks.
  std::vector<int64_t> depths = {1, 3, 6, 6};               // Blocks of a stage.
  int64_t groups_width = 8;                                 // Channels of a convolution's group.
  bool squeeze_excitation = true;
  bool downsample_in_first_stage = true;  // The others always halve the image's sides.

  // Constants of a batch norm, as torch.nn.BatchNorm2d has them; no part of a file.
  static constexpr float kEpsilon = 1e-5f, kMomentum = 0.1f;

  int64_t Groups(size_t stage) const {
    return std::max<int64_t>(1, hidden_sizes[stage] / groups_width);
  }
  int64_t InputOf(size_t stage) const {
    return stage == 0 ? embedding_size : hidden_sizes[stage - 1];
  }
  bool Halves(size_t stage) const { return stage > 0 || downsample_in_first_stage; }
  // Channels that squeeze and excitation leaves of a block's input: a quarter, rounded to even
  // where it lies between two numbers.
  static int64_t Squeezed(int64_t channels) {
    return static_cast<int64_t>(std::nearbyint(static_cast<double>(channels) / 4));
  }
  // Pixels of a side behind the last stage.
  int64_t LastSide() const {
    int64_t side = (image_size + 1) / 2;
    for (size_t stage = 0; stage < hidden_sizes.size(); ++stage) {
      if (Halves(stage)) side = (side + 1) / 2;
    }
    return side;
  }
  bool operator==(const RegNetConfig&) const = default;
};

const ModelFamily& FamilyOfConfig(const RegNetConfig& config);
std::shared_ptr<Model> MakeRegNet(const RegNetConfig& config);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_REGNET_CONFIG_H_
