// The shape of a ViT (Dosovitskiy et al. 2021, arXiv:2010.11929), which sorts square images into
// classes: patches and a learned token, LayerNorm before each branch, exact GELU, a head on the
// learned token. With re-attention it is a DeepViT (Zhou et al. 2021, arXiv:2103.11886) as
// vit-pytorch 0.35.8 has it: without biases of q, k and v, with its order of a patch's elements.
// Tests: tests/models/vit/family_test.cc
#ifndef FSDP_TRAIN_MODELS_VIT_CONFIG_H_
#define FSDP_TRAIN_MODELS_VIT_CONFIG_H_

#include <cstdint>
#include <memory>

namespace fsdp {

class Model;
class ModelFamily;

// How attention's probabilities are changed: not at all, or each head's become a learned mixture of
// all heads', normalised over heads.
enum class Reattention { kNone, kLayerNorm };

// Names as in recipes. The defaults are ViT-Base.
struct VitConfig {
  int64_t image_size = 224;  // Pixels of a side, as the next.
  int64_t patch_size = 16;
  int64_t num_channels = 3;
  int64_t num_labels = 1000;
  int64_t hidden_size = 768;
  int64_t intermediate_size = 4 * hidden_size;  // Follows hidden_size where it is not given.
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 12;
  int64_t head_dim = hidden_size / num_attention_heads;  // Only a DeepViT may have another.
  bool qkv_bias = true;
  Reattention reattention = Reattention::kNone;
  double layer_norm_epsilon = 1e-12;
  double initializer_range = 0.02;

  // No part of the shape: how it is trained. Shares of the elements of embeddings and branches, and
  // of attention's probabilities, that are dropped (Tape::recording()).
  double hidden_dropout_prob = 0;
  double attention_dropout = 0;
  // No part of the shape either: whether each residual branch is a block, or both of a layer are
  // one.
  bool branches_are_blocks = false;

  bool mixes_heads() const { return reattention != Reattention::kNone; }
  int64_t inner_size() const { return num_attention_heads * head_dim; }
  int64_t patches() const { return (image_size / patch_size) * (image_size / patch_size); }
  int64_t patch_elements() const { return patch_size * patch_size * num_channels; }
  bool operator==(const VitConfig&) const = default;
};

const ModelFamily& FamilyOfConfig(const VitConfig& config);
std::shared_ptr<Model> MakeVit(const VitConfig& config);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_VIT_CONFIG_H_
