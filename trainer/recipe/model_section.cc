// Tests: tests/trainer/recipe/load_test.cc
#include "trainer/ops/layer_norm.h"
#include "trainer/recipe/sections.h"
#include "trainer/recipe/shape_fields.h"

namespace fsdp::recipe {
namespace {

Type<std::string> PresetName() {
  std::vector<std::string> names;
  for (const ModelPreset& preset : ModelPresets()) names.emplace_back(preset.name);
  return OneOfTexts(std::move(names));
}

void ForgetShape(const YamlNode& preset, ModelRecipe& model) {
  if (preset.kind == YamlNode::Kind::kNull) return;
  for (const ShapeField& field : ShapeFields()) field.Reset(model);
}

Type<LoraRecipe> LoraType() {
  using R = LoraRecipe;
  return Map<R>({
      Key("rank", &R::rank, Integer(1, kMaxHiddenSize), "Of an adapter's two matrices."),
      Key("alpha", &R::alpha, Number({.above = 0, .at_most = std::numeric_limits<float>::max()}),
          "What adapters add is scaled by alpha / rank."),
      Key("targets", &R::targets, ListOf(Text()),
          "Which linear layers in blocks have an adapter, by their names in Hugging Face files: "
          "their last parts, as PEFT's target_modules (`q_proj`, `self_attn.q_proj`: of any "
          "layer), or globs over the whole names of their weights."),
  });
}

// Which fields a type has is checked with the whole shape.
Type<RopeScaling> RopeScalingType() {
  using R = RopeScaling;
  const Type<double> above_zero = Number({.above = 0});
  Section<R> section({
      Key("type", &R::type, OneOf<R::Type>(Later({"longrope"})),
          "default: none. linear, dynamic, llama3, yarn: as transformers' modeling_rope_utils.")
          .Elsewhere({"rope_type"}),
      Key("factor", &R::factor, Nullable(Number({.at_least = 1})),
          "How many times as long sequences become; for every type but default."),
      Key("original_max_position_embeddings", &R::original_max_position_embeddings,
          Nullable(Integer(1, kMaxPositions)), "llama3, yarn: longest sequence before."),
      Key("low_freq_factor", &R::low_freq_factor, Nullable(above_zero),
          "llama3: wavelengths above the original length / this are stretched in full."),
      Key("high_freq_factor", &R::high_freq_factor, Nullable(above_zero),
          "llama3: wavelengths below the original length / this are left alone."),
      Key("beta_fast", &R::beta_fast, Nullable(above_zero),
          "yarn: turns in the original length from which on a wavelength is left alone. null: 32."),
      Key("beta_slow", &R::beta_slow, Nullable(above_zero),
          "yarn: turns below which a wavelength is stretched in full. null: 1."),
      Key("attention_factor", &R::attention_factor, Nullable(above_zero),
          "yarn: multiplies sines and cosines. null: 0.1 x ln(factor) + 1, or from mscale."),
      Key("mscale", &R::mscale, Nullable(above_zero),
          "yarn: with mscale_all_dim, what attention_factor follows from."),
      Key("mscale_all_dim", &R::mscale_all_dim, Nullable(above_zero), "yarn: see mscale."),
      Key("truncate", &R::truncate, Nullable(Boolean()),
          "yarn: the borders between wavelengths are rounded to whole ones. null: true."),
  });
  section.before = [](const YamlNode& node, void* scaling) {
    if (node.Find("type") != nullptr) *static_cast<R*>(scaling) = R();
  };
  return Map(section);
}

}  // namespace

Type<ModelRecipe> ModelType() {
  using R = ModelRecipe;
  Section<R> section({
      Key("family", &R::family, Nullable(OneOf<R::Family>(Later({"t5", "vit", "regnet", "dhen"}))),
          "The architecture. llama: also Mistral, Qwen2 and Qwen3. null: that of preset or "
          "init_from; required without either."),
      Key("preset", &R::preset, Nullable(PresetName()),
          "A published size: sets the fields below, and those beside it override it. Given in a "
          "later file, it replaces the fields of earlier ones.")
          .Then(&ForgetShape),
      Key("init_from", &R::init_from, Nullable(Text()),
          "A Hugging Face directory (config.json and *.safetensors), a run directory (its latest "
          "checkpoint) or a checkpoint to take shape and weights from. Shape fields given beside "
          "it must agree with it."),
      Key("lora", &R::lora, Nullable(LoraType()),
          "Low-rank adapters: all parameters of init_from are frozen, and the adapters train. "
          "null: none."),
      Key("hidden_size", &R::hidden_size, Nullable(Integer(1, kMaxHiddenSize)),
          "Width of the residual stream. null: gpt2: 768, llama: 4096.")
          .Elsewhere({"n_embd", "d_model", "hidden_dim"}),
      Key("intermediate_size", &R::intermediate_size, Nullable(Integer(1, kMaxIntermediateSize)),
          "Width inside the MLP. null: gpt2: 4 x hidden_size, llama: 8/3 of it in whole 256s; "
          "the preset's, unless hidden_size is given beside it.")
          .Elsewhere({"n_inner", "d_ff", "ffn_dim"}),
      Key("num_hidden_layers", &R::num_hidden_layers, Nullable(Integer(1, kMaxHiddenLayers)),
          "Transformer blocks. null: gpt2: 12, llama: 32.")
          .Elsewhere({"n_layer", "n_layers", "num_layers"}),
      Key("num_attention_heads", &R::num_attention_heads, Nullable(Integer(1, kMaxHiddenSize)),
          "Attention heads; gpt2: they divide hidden_size. null: gpt2: 12, llama: 32.")
          .Elsewhere({"n_head", "n_heads", "num_heads"}),
      Key("num_key_value_heads", &R::num_key_value_heads, Nullable(Integer(1, kMaxHeads)),
          "llama: heads of keys and values, each for a group of attention heads, which they "
          "divide. null: num_attention_heads; the preset's, unless that is given beside it.")
          .Elsewhere({"n_kv_heads", "num_kv_heads", "n_query_groups"}),
      Key("head_dim", &R::head_dim, Nullable(Integer(1, kMaxHeadDim)),
          "llama: width of a head, even. null: hidden_size / num_attention_heads; the "
          "preset's, unless one of these is given beside it.")
          .Elsewhere({"head_size", "kv_channels"}),
      Key("vocab_size", &R::vocab_size, Nullable(Integer(1, kMaxVocabSize)),
          "Tokens that the model knows. null: the preset's; without one as many as the tokenizer "
          "of data has, 256 for bytes; where no file says it gpt2: 50257, llama: 32000.")
          .Elsewhere({"n_vocab"}),
      Key("vocab_multiple", &R::vocab_multiple, Integer(1, kMaxVocabSize),
          "A vocabulary that is taken from a tokenizer is rounded up to a multiple of this. One "
          "that is given must be such a multiple.")
          .Elsewhere({"pad_to_multiple_of", "make_vocab_size_divisible_by"}),
      Key("max_position_embeddings", &R::max_position_embeddings,
          Nullable(Integer(1, kMaxPositions)),
          "Longest sequence, in tokens. null: gpt2: 1024, llama: 4096.")
          .Elsewhere({"n_positions", "n_ctx", "block_size"}),
      Key("layer_norm_epsilon", &R::layer_norm_epsilon,
          Nullable(Number({.at_least = kMinLayerNormEps, .at_most = 1})),
          "gpt2: added to the variance in every LayerNorm. null: 1e-5.")
          .Elsewhere({"layer_norm_eps", "norm_eps"}),
      Key("rms_norm_eps", &R::rms_norm_eps, Nullable(Number({.at_least = 0, .at_most = 1})),
          "llama: added to the mean square in every RMSNorm. null: 1e-5."),
      Key("rope_theta", &R::rope_theta, Nullable(Number({.above = 1})),
          "llama: base of the rotary wavelengths. null: 10000.")
          .Elsewhere({"rope_base", "rotary_base"}),
      Key("rope_scaling", &R::rope_scaling, Nullable(RopeScalingType()),
          "llama: how rotary wavelengths are stretched for longer sequences. null: the "
          "preset's; without one they are not. Given in a later file, it replaces that of "
          "earlier ones.")
          .Elsewhere({"rope_parameters"}),
      Key("tie_word_embeddings", &R::tie_word_embeddings, Nullable(Boolean()),
          "llama: the head is the token embedding. null: false."),
      Key("attention_bias", &R::attention_bias, Nullable(Boolean()),
          "llama: biases of q, k and v. null: false.")
          .Elsewhere({"qkv_bias"}),
      Key("attention_output_bias", &R::attention_output_bias, Nullable(Boolean()),
          "llama: a bias after attention's last product. null: false."),
      Key("mlp_bias", &R::mlp_bias, Nullable(Boolean()),
          "llama: biases of gate, up and down. null: false."),
      Key("qk_norm", &R::qk_norm, Nullable(Boolean()),
          "llama: an RMSNorm of each head of q and k. null: false.")
          .Elsewhere({"use_qk_norm", "norm_qk"}),
      Key("initializer_range", &R::initializer_range,
          Nullable(Number({.at_least = 0, .at_most = 1})),
          "Standard deviation of the initial weights. null: 0.02.")
          .Elsewhere({"init_std"}),
      Key("embedding_dropout", &R::embedding_dropout, Nullable(Number({.at_least = 0, .below = 1})),
          "gpt2: share of the embeddings' elements that are dropped while training. null: what "
          "init_from's config.json says; without one 0.")
          .Elsewhere({"embd_pdrop"}),
      Key("residual_dropout", &R::residual_dropout, Nullable(Number({.at_least = 0, .below = 1})),
          "gpt2: the same of what attention and the MLP add to the residual stream.")
          .Elsewhere({"resid_pdrop", "dropout"}),
      Key("attention_dropout", &R::attention_dropout, Nullable(Number({.at_least = 0, .below = 1})),
          "The same of attention's probabilities, behind the softmax.")
          .Elsewhere({"attn_pdrop"}),
  });
  section.one_required = {"family", "preset", "init_from"};
  return Map(section);
}

}  // namespace fsdp::recipe
