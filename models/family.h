// The trainer's interface to a family of models: its fields, its shapes, its files and a model of
// each shape. A family is a folder here that defines `const ModelFamily& Family()` in a
// namespace of the folder's name, and the folder's name in the list of models/BUILD.bazel.
// Tests: tests/models/family_test.cc
#ifndef FSDP_TRAIN_MODELS_FAMILY_H_
#define FSDP_TRAIN_MODELS_FAMILY_H_

#include <algorithm>
#include <any>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/field.h"
#include "models/hf_object.h"
#include "trainer/core/json_tree.h"

namespace fsdp {

class Model;
class ModelFamily;

// A family's own struct. Argument-dependent lookup finds the family.
template <typename Config>
concept FamilyConfig = requires(const Config& config) {
  { FamilyOfConfig(config) } -> std::same_as<const ModelFamily&>;
};

// The shape of a model of any family: what recipes name, checkpoints keep and MakeModel() builds,
// and the dropouts that it is to be trained with. A value.
class ModelShape {
 public:
  ModelShape() = default;  // Has no family until it is assigned to.
  template <FamilyConfig Config>
  ModelShape(const Config& config)  // NOLINT: a family's struct is one.
      : family_(&FamilyOfConfig(config)), config_(config) {}

  const ModelFamily& family() const { return *family_; }
  // The value of a field; null: the family has no such field.
  std::optional<FieldValue> Find(std::string_view field) const;
  // `field` is one of the family's. `value` has the field's type.
  void Set(std::string_view field, const FieldValue& value);
  // The family's own struct; null where it is another's.
  template <typename Config>
  const Config* As() const {
    return std::any_cast<Config>(&config_);
  }

  bool operator==(const ModelShape& other) const;

 private:
  template <typename Config>
  friend class TableFamily;

  const ModelFamily* family_ = nullptr;
  std::any config_;
};

struct ModelPreset {
  std::string_view name;
  ModelShape shape;
};

// The sizes of a decoder from which caches, attention and data are made.
struct DecoderShape {
  int64_t vocab_size = 0;
  int64_t max_positions = 0;  // Tokens that a sequence may have.
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0, num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t widest_row = 0;  // Elements of a token's largest activation.
};

// The mixtures of experts in a model.
struct MixtureShape {
  int64_t experts = 0, experts_per_token = 0;
  int64_t layers = 0;      // That have experts.
  bool softmax = true;     // Scores are a softmax, not sigmoids.
  bool has_bias = false;   // A correction bias follows the loads.
  double hf_aux_loss = 0;  // The coefficient that config.json asks for; 0: none.
};

// How blocks are cut into segments that are blocks themselves. A family ignores what its models do
// not have.
struct BlockCut {
  bool branches = false;      // Each residual branch is one.
  int64_t expert_pieces = 0;  // A layer's experts are so many, which divide them; 0: none.
};

// How names in Hugging Face's files differ from those of a family's parameters.
struct HfNames {
  // The name of the model below the head in the family's class. Files have it before their names,
  // or leave it out.
  std::string_view trunk;
  // Ends of the names of tensors that older files hold besides weights.
  std::vector<std::string_view> unused;
  // The token embedding, then tensors that are copies of it, besides a tied lm_head.weight. A file
  // may hold any of them in place of the first.
  std::vector<std::string_view> embedding = {};
  // Parts of names for which other files have another part: where a name has the first one, each is
  // replaced before names are compared.
  std::vector<std::pair<std::string_view, std::string_view>> renamed = {};
};

// The end of a model that can be replaced: where the rest comes from files, one for other classes
// is drawn anew, and one that the files lack.
struct ModelHead {
  std::string_view field = {};  // The field that counts classes; empty: there is none.
  std::vector<std::string_view> tensors = {};  // Its tensors in any model of the family.

  bool Has(std::string_view tensor) const {
    return std::find(tensors.begin(), tensors.end(), tensor) != tensors.end();
  }
};

class ModelFamily {
 public:
  // Whether the user has given a field.
  using Given = std::function<bool(std::string_view field)>;

  virtual ~ModelFamily() = default;

  virtual std::string_view name() const = 0;  // Its name in recipes: its folder's.
  // relatives(): what else the family trains, for docs/recipe.md: "also Mistral, Qwen2 and Qwen3",
  // or empty. kin(): other names, of the family or a relative, that a user may give in place of
  // name().
  virtual std::string_view relatives() const = 0;
  virtual std::span<const std::string_view> kin() const = 0;
  // The fields of the shape, then its dropouts.
  virtual std::span<const Field> fields() const = 0;
  const Field* Find(std::string_view field) const;  // Null where it has no such field.

  virtual ModelShape Standard() const = 0;  // Every field at its standard.
  // Published sizes, small to large.
  virtual std::span<const ModelPreset> presets() const = 0;
  // Sets the fields that are not given by those that are.
  virtual void FillDependent(ModelShape& shape, const Given& given) const = 0;
  // Empty where a model of this shape can be built.
  virtual std::vector<ShapeMistake> Validate(const ModelShape& shape) const = 0;
  // Throws std::invalid_argument for a shape that Validate() complains about.
  virtual std::shared_ptr<Model> Make(const ModelShape& shape) const = 0;
  // The smallest shape whose model has parameters of the same names. It passes Validate(), also
  // where `shape` does not: names then are as close as a model's can be.
  virtual ModelShape SmallestAlike(const ModelShape& shape) const = 0;
  // Sets the number of tokens of a target, for a family that is trained on pairs; 0: as many as of
  // an input. Other families ignore it. It is no part of the shape.
  virtual void SetTargetLength(ModelShape& shape, int64_t tokens) const = 0;
  // CutBlocks() says which segments a model of `shape` is to have. It is no part of the shape.
  virtual bool SplitsBranches() const = 0;  // Whether its models can have BlockCut::branches.
  virtual void CutBlocks(ModelShape& shape, const BlockCut& cut) const = 0;
  // Empty: it is no causal language model.
  virtual std::optional<DecoderShape> Decoder(const ModelShape& shape) const = 0;
  // The decoder of a model that is trained on pairs, which makes a target of an encoded input;
  // empty: it is no such model.
  virtual std::optional<DecoderShape> TargetDecoder(const ModelShape& shape) const = 0;

  // Empty: no layer has experts.
  virtual std::optional<MixtureShape> Mixture(const ModelShape& shape) const = 0;

  virtual const ModelHead& head() const = 0;

  // Globs of the parameters that stay fp32 in a run in fp16, unless the recipe says which do:
  // transformers' _keep_in_fp32_modules, which it does not code in four bits either.
  virtual std::span<const std::string_view> kept_fp32_in_fp16() const = 0;

  // Files of Hugging Face: the values of "model_type" that ReadHf() reads.
  virtual std::span<const std::string_view> hf_types() const = 0;
  virtual const HfNames& hf_names() const = 0;
  // The shape that a config.json of one of these types says, dropouts included. Throws
  // CheckpointError.
  virtual ModelShape ReadHf(std::string_view model_type, HfObject& hf) const = 0;
  // The keys of the config.json that says `shape`, and its model_type. Both throw CheckpointError
  // for a shape that no model of Hugging Face has.
  virtual JsonTree WriteHf(const ModelShape& shape) const = 0;
  virtual std::string_view HfType(const ModelShape& shape) const = 0;

 private:
  friend class ModelShape;

  virtual FieldValue Get(const ModelShape& shape, size_t field) const = 0;
  virtual void Set(ModelShape& shape, size_t field, const FieldValue& value) const = 0;
  virtual bool AreEqual(const ModelShape& a, const ModelShape& b) const = 0;
};

// All families, in the order of their list in models/BUILD.bazel, from which the source is made.
std::span<const ModelFamily* const> Families();

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_FAMILY_H_
