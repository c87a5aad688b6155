#include "trainer/recipe/schema.h"

#include <limits>

#include "trainer/ops/layer_norm.h"
#include "trainer/recipe/shape_fields.h"

namespace fsdp::recipe {
namespace {

constexpr int64_t kAnyInteger = std::numeric_limits<int64_t>::max();

Section<RunRecipe> RunSection() {
  using R = RunRecipe;
  return {{
      Key("name", &R::name, Text(), "Names the run; no slashes."),
      Key("dir", &R::dir, Nullable(Text()), "The run directory. null: runs/ and the name."),
      Key("seed", &R::seed, Integer(0, kAnyInteger), "Of initial weights and data order."),
      Key("device", &R::device, OneOf<R::Device>(Later({"cuda"})),
          "What computes. auto: the best there is. sim: a simulated rank, without tensor data."),
      Key("threads", &R::threads, Integer(0, R::kMaxThreads),
          "CPU compute threads of a rank. 0: the cores of the host, divided by its ranks."),
      Key("deterministic", &R::deterministic, Boolean(),
          "Repeatable bits on devices that have a faster way without; the cpu device always has "
          "them."),
      Key("timeout_s", &R::timeout_s, Number({.above = 0, .at_most = 1e9}),
          "Seconds of silence of a peer or collective after which the run ends, with exit code 6."),
      Key("store_port", &R::store_port, Nullable(Integer(1, 65535)),
          "TCP port of the ranks' store. null: MASTER_PORT, or the port after it where an agent "
          "owns that."),
  }};
}

Type<std::string> PresetName() {
  std::vector<std::string> names;
  for (const ModelPreset& preset : ModelPresets()) names.emplace_back(preset.name);
  return Convert<std::string, size_t>(
      OneOfNames(names, Later({})), [names](const size_t& index) { return names.at(index); },
      [names](const std::string& name) -> size_t {
        return std::find(names.begin(), names.end(), name) - names.begin();
      });
}

Section<LoraRecipe> LoraSection() {
  using R = LoraRecipe;
  return {{
      Key("rank", &R::rank, Integer(1, kMaxHiddenSize), "Of an adapter's two matrices."),
      Key("alpha", &R::alpha, Number({.above = 0, .at_most = std::numeric_limits<float>::max()}),
          "What adapters add is scaled by alpha / rank."),
      Key("targets", &R::targets, ListOf(Text()),
          "Globs over the names that weights of linear layers in blocks have in Hugging Face "
          "files: "
          "those that have an adapter."),
  }};
}

// Which fields a type has is checked with the whole shape.
Type<RopeScaling> RopeScalingType() {
  using R = RopeScaling;
  const Type<double> above_zero = Number({.above = 0});
  Type<R> type = Map(Section<R>{{
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
  }});
  type.read = [read = type.read](const YamlNode& node, const std::string& key, RecipeReader& reader,
                                 R& value) {
    if (node.Find("type") != nullptr) value = R();
    return read(node, key, reader, value);
  };
  return type;
}

Section<ModelRecipe> ModelSection() {
  using R = ModelRecipe;
  Field<R> preset = Key("preset", &R::preset, Nullable(PresetName()),
                        "A published size: sets the fields below, and those beside it override it. "
                        "Given in a later file, it replaces the fields of earlier ones.");
  preset.read = [read = preset.read](const YamlNode& node, const std::string& key,
                                     RecipeReader& reader, R& model) {
    read(node, key, reader, model);
    if (node.kind == YamlNode::Kind::kNull) return;
    for (const ShapeField& field : ShapeFields()) field.Reset(model);
  };
  return {{
      Key("family", &R::family, Nullable(OneOf<R::Family>(Later({"t5", "vit", "regnet", "dhen"}))),
          "The architecture. llama: also Mistral, Qwen2 and Qwen3. null: that of init_from; "
          "required without one."),
      preset,
      Key("init_from", &R::init_from, Nullable(Text()),
          "A Hugging Face directory (config.json and *.safetensors) or a checkpoint to "
          "take shape and weights from. Shape fields given beside it must agree with it."),
      Key("lora", &R::lora, Nullable(Map(LoraSection())),
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
          "Tokens that the model knows. null: the preset's; without one 256 for text in "
          "bytes, else gpt2: 50257, llama: 32000.")
          .Elsewhere({"n_vocab"}),
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
  }};
}

// `bytes`, or a path that says by its end what it is.
Type<std::string> TokenizerName() {
  const Type<std::string> text = Text();
  Json path = text.schema;
  path["pattern"] = "\\.(json|model)$";
  return {{{"anyOf", {{{"enum", {"bytes"}}}, path}}},
          [text](const YamlNode& node, const std::string& key, RecipeReader& reader,
                 std::string& value) {
            std::string read;
            if (!text.read(node, key, reader, read)) return false;
            if (read != "bytes" && !read.ends_with(".json") && !read.ends_with(".model")) {
              reader.Wrong(node, key, "`bytes`, or a path that ends in .json or .model");
              return false;
            }
            value = std::move(read);
            return true;
          },
          text.write};
}

Section<SourceRecipe> SourceSection() {
  using R = SourceRecipe;
  return {{
      Key("source", &R::source, OneOf<R::Source>(Later({"images"})),
          "text: files, tokenised when a run first reads them. tokens: files of token ids (llm.c "
          ".bin, .npy or raw). synthetic: tokens drawn from the seed over the model's vocabulary, "
          "without files."),
      Key("paths", &R::paths, ListOf(Text()),
          "Files or globs, in this order. At least one for text and tokens, none for synthetic."),
      Key("tokenizer", &R::tokenizer, TokenizerName(),
          "bytes: a token for each byte of the files as they are. Otherwise a file is a document, "
          "in "
          ".jsonl a line is. For tokens: what made them, where samples are to be shown."),
      Key("column", &R::column, Text(),
          "text: the field of .jsonl that holds a document. bytes does not read it."),
      Key("dtype", &R::dtype, Nullable(OneOf<R::RawDType>()),
          "tokens: of raw files. null: every file has a header of llm.c or NumPy."),
      Key("eot", &R::eot, Nullable(Integer(0)),
          "The token that ends every document. null: the tokenizer's, or that of the tokens.json "
          "beside the files, if there is one."),
  }};
}

// A list of maps, at least one, each with a place of its own for messages. One with mistakes is a
// list nonetheless: what else it lacks is to be found too.
Type<std::vector<SourceRecipe>> SourceList(Section<SourceRecipe> section) {
  const Type<SourceRecipe> item = Map(std::move(section));
  const Type<std::vector<SourceRecipe>> list = ListOf(item);
  Json schema = list.schema;
  schema["minItems"] = 1;
  return {std::move(schema),
          [item](const YamlNode& node, const std::string& key, RecipeReader& reader,
                 std::vector<SourceRecipe>& value) {
            reader.ForgetBelow(key);
            value.assign(node.items.size(), {});
            if (value.empty()) reader.Wrong(node, key, "at least one source");
            bool good = !value.empty();
            for (size_t i = 0; i < value.size(); ++i) {
              const std::string name = key + "[" + std::to_string(i) + "]";
              reader.Saw(name, node.items[i]->place, false);
              good &= item.read(*node.items[i], name, reader, value[i]);
            }
            return good;
          },
          list.write};
}

// A later file that gives the other form replaces the earlier one.
Type<TrainRecipeSources> TrainType() {
  const Type<SourceRecipe> one = Map(SourceSection());
  Section<SourceRecipe> section = SourceSection();
  section.fields.push_back(
      Key("weight", &SourceRecipe::weight, Number({.above = 0, .at_most = 1e9}),
          "Share of the samples that come from this source, in any unit: 3 and 1 are three samples "
          "of every four, and one. At every step, to within a sample or two."));
  const Type<std::vector<SourceRecipe>> list = SourceList(std::move(section));
  return {{{"anyOf", {one.schema, list.schema}}},
          [=](const YamlNode& node, const std::string& key, RecipeReader& reader,
              TrainRecipeSources& value) {
            if (node.kind == YamlNode::Kind::kList) {
              std::vector<SourceRecipe> read;
              const bool good = list.read(node, key, reader, read);
              value = std::move(read);
              return good;
            }
            if (node.kind != YamlNode::Kind::kMap) {
              reader.Wrong(node, key, "a map, or a list of maps");
              return false;
            }
            SourceRecipe read;
            if (const auto* before = std::get_if<SourceRecipe>(&value)) {
              read = *before;
            } else {
              reader.ForgetBelow(key);
            }
            const bool good = one.read(node, key, reader, read);
            value = std::move(read);
            return good;
          },
          [=](const TrainRecipeSources& value) {
            if (const auto* own = std::get_if<SourceRecipe>(&value)) return one.write(*own);
            return list.write(std::get<std::vector<SourceRecipe>>(value));
          }};
}

// null, {fraction}, a source, or a list of named ones. A later file that names keys of another form
// changes the form.
using Valid = ValidRecipe;
Type<Valid> ValidType() {
  const Type<HeldOut> held_out = Map(Section<HeldOut>{{
      Key("fraction", &HeldOut::fraction, Number({.above = 0, .below = 1}),
          "Share of the tokens of each source of data.train, at their end, that is never trained "
          "on."),
  }});
  const Type<SourceRecipe> source = Map(SourceSection());
  Section<SourceRecipe> named = SourceSection();
  named.fields.push_back(Key("name", &SourceRecipe::name, Text(),
                             "What metrics.jsonl calls this one's evaluations; no two alike.")
                             .Required());
  const Type<std::vector<SourceRecipe>> list = SourceList(std::move(named));
  const Json null = {{"type", "null"}};
  return {{{"anyOf", {null, held_out.schema, source.schema, list.schema}}},
          [=](const YamlNode& node, const std::string& key, RecipeReader& reader, Valid& value) {
            if (node.kind == YamlNode::Kind::kNull) {
              reader.ForgetBelow(key);
              value = std::monostate();
              return true;
            }
            if (node.kind == YamlNode::Kind::kList) {
              std::vector<SourceRecipe> read;
              const bool good = list.read(node, key, reader, read);
              value = std::move(read);
              return good;
            }
            if (node.kind != YamlNode::Kind::kMap) {
              reader.Wrong(node, key,
                           "null, {fraction: ...}, a map like data.train or a list of such maps, "
                           "each with a name");
              return false;
            }
            if (std::get_if<std::vector<SourceRecipe>>(&value)) reader.ForgetBelow(key);
            const YamlNode::Entry* fraction = node.Find("fraction");
            bool names_source = false;
            for (const char* name : {"source", "paths", "tokenizer", "column", "dtype", "eot"}) {
              names_source |= node.Find(name) != nullptr;
            }
            if (fraction != nullptr && names_source) {
              reader.Mistake(fraction->place, key + ".fraction",
                             "a share of data.train and a source of its own exclude each other");
              return false;
            }
            if (names_source || (fraction == nullptr && std::get_if<SourceRecipe>(&value))) {
              SourceRecipe read;
              if (const auto* before = std::get_if<SourceRecipe>(&value)) read = *before;
              const bool good = source.read(node, key, reader, read);
              value = std::move(read);
              return good;
            }
            HeldOut read;
            if (const auto* before = std::get_if<HeldOut>(&value)) read = *before;
            const bool good = held_out.read(node, key, reader, read);
            value = read;
            return good;
          },
          [=](const Valid& value) {
            if (const auto* share = std::get_if<HeldOut>(&value)) return held_out.write(*share);
            if (const auto* own = std::get_if<SourceRecipe>(&value)) return source.write(*own);
            if (const auto* all = std::get_if<std::vector<SourceRecipe>>(&value)) {
              return list.write(*all);
            }
            return Json(nullptr);
          }};
}

Section<DataRecipe> DataSection() {
  using R = DataRecipe;
  return {{
      Key("train", &R::train, TrainType(),
          "What to train on: one source, or a list of sources that are mixed by weight.")
          .Required(),
      Key("valid", &R::valid, ValidType(),
          "What to evaluate on: the last part of data.train, a source of its own, a list of named "
          "sources that are evaluated one by one, or null for nothing."),
      Key("seq_len", &R::seq_len, Integer(1, kMaxPositions),
          "Tokens of a sequence; at most the model's max_position_embeddings.")
          .Elsewhere({"sequence_length", "max_seq_len", "block_size"}),
      Key("shuffle", &R::shuffle, Boolean(),
          "Sequences in an order drawn from the seed, anew each epoch; false: as they lie."),
      Key("cache", &R::cache, Nullable(Text()),
          "Where a host keeps text that it has tokenised, for later runs too. null: "
          "fsdp-train/tokens in $XDG_CACHE_HOME or ~/.cache."),
      Key("documents", &R::documents, Boolean(),
          "Documents end at the end-of-text token: positions begin again behind it, attention does "
          "not look back across it, and the token behind it is nobody's target. false: a sequence "
          "is one text."),
      Key("allow_changed", &R::allow_changed, Boolean(),
          "Resume though the files of data.train are not those that the run was trained on; what "
          "differs is said and recorded. false: that is an error. Files of up to 1 GiB are "
          "compared "
          "byte for byte by a hash, larger ones by their size and 256 stretches of 4 KiB."),
  }};
}

Section<TrainRecipe> TrainSection() {
  using R = TrainRecipe;
  const Section<EmaRecipe> ema = {{
      Key("decay", &EmaRecipe::decay, Number({.at_least = 0, .below = 1}),
          "What a step keeps of the average.")
          .Elsewhere({"beta", "momentum"}),
  }};
  return {{
      Key("steps", &R::steps, Integer(1),
          "Optimizer steps of the whole run. An epoch is one for every global_batch_size x "
          "data.seq_len tokens.")
          .Elsewhere({"max_steps", "num_steps", "iterations", "epochs", "num_epochs"}),
      Key("micro_batch_size", &R::micro_batch_size, Integer(1),
          "Sequences per rank and forward pass.")
          .Elsewhere({"batch_size"}),
      Key("global_batch_size", &R::global_batch_size, Integer(1),
          "Sequences per optimizer step, over all ranks; any number at any world size. What one "
          "forward pass of all ranks does not hold is accumulated.")
          .Elsewhere({"gradient_accumulation_steps", "accumulate_grad_batches"}),
      Key("grad_clip", &R::grad_clip, Number({.at_least = 0, .fp32 = true}),
          "Largest norm of all gradients together. 0: no clipping.")
          .Elsewhere({"max_grad_norm", "clip_grad_norm", "max_norm"}),
      Key("activation_checkpointing", &R::activation_checkpointing, OneOf<R::Recompute>(),
          "What backward computes again instead of keeping it. selective: norms, activations and "
          "attention. full: all but the inputs of the blocks."),
      Key("ema", &R::ema, Nullable(Map(ema)),
          "Keeps a moving average of the weights, sharded and saved as they are: a map with "
          "`decay`. null: none."),
  }};
}

Section<EvalRecipe> EvalSection() {
  using R = EvalRecipe;
  const Section<SampleRecipe> sample = {{
      Key("prompt", &SampleRecipe::prompt, Text(), "What the sample continues.").Required(),
      Key("max_tokens", &SampleRecipe::max_tokens, Integer(1), "New tokens after the prompt."),
      Key("temperature", &SampleRecipe::temperature, Number({.at_least = 0}),
          "Divides the logits. 0: always the likeliest token."),
  }};
  return {{
      Key("every", &R::every, Integer(0), "Steps between evaluations. 0: none."),
      Key("steps", &R::steps, Integer(1),
          "Batches of an evaluation, at most, each of train.global_batch_size sequences."),
      Key("sample", &R::sample, Nullable(Map(sample)),
          "A continuation to sample from the model, to look at. null: none."),
      Key("ema", &R::ema, Boolean(), "Of the averaged weights, train.ema, in place of the last."),
  }};
}

Type<DType> Only32Bit() {
  return Convert<DType, size_t>(
      OneOfNames({"fp32"}, Later({"bf16", "fp16"})), [](const size_t&) { return DType::kFloat32; },
      [](const DType&) { return size_t{0}; });
}

Section<GroupRecipe> GroupSection() {
  using R = GroupRecipe;
  return {{
      Key("match", &R::match, Text(),
          "A glob over the names that parameters have in Hugging Face files: * is any run of "
          "characters.")
          .Required(),
      Key("weight_decay", &R::weight_decay, Nullable(Number({.at_least = 0, .fp32 = true})),
          "Of all that match, biases and norms, too. null: as without the group."),
      Key("lr_scale", &R::lr_scale, Number({.at_least = 0, .fp32 = true}),
          "Multiplies the learning rate."),
      Key("frozen", &R::frozen, Boolean(), "Not trained: no gradient and no optimizer state."),
  }};
}

Section<OptimizerRecipe> OptimizerSection() {
  using R = OptimizerRecipe;
  return {{
      Key("name", &R::name, OneOf<R::Kind>(), "The update rule.").Elsewhere({"type", "kind"}),
      Key("lr", &R::lr, Number({.at_least = 0, .fp32 = true}), "Learning rate at its highest.")
          .Elsewhere({"learning_rate", "max_lr"}),
      Key("betas", &R::betas, PairOf(Number({.at_least = 0, .below = 1, .fp32 = true})),
          "adamw: decay of the first and of the second moment. sgd does not read it."),
      Key("eps", &R::eps, Number({.at_least = 0, .fp32 = true}),
          "adamw: added to the root of the second moment; at least 1.2e-38, the smallest of fp32. "
          "sgd does not read it."),
      Key("momentum", &R::momentum, Number({.at_least = 0, .below = 1, .fp32 = true}),
          "sgd: decay of the momentum. 0: none, and the only value for adamw."),
      Key("weight_decay", &R::weight_decay, Number({.at_least = 0, .fp32 = true}),
          "Decay of matrices and embeddings, not of biases and norms."),
      Key("state_dtype", &R::state_dtype, Only32Bit(), "Of moments and momentum."),
      Key("groups", &R::groups, ListOf(Map(GroupSection())),
          "Parameters with settings of their own. The first group that matches a name counts."),
  }};
}

Section<ScheduleRecipe> ScheduleSection() {
  using R = ScheduleRecipe;
  return {{
      Key("name", &R::name, OneOf<R::Kind>(),
          "How the learning rate falls after the warm-up. cosine, linear: over all the steps left. "
          "wsd: it stays, and falls in the last decay_steps. constant: it does not fall."),
      Key("warmup_steps", &R::warmup_steps, Integer(0),
          "Steps of linear rise to optimizer.lr; at most train.steps."),
      Key("min_lr_ratio", &R::min_lr_ratio, Number({.at_least = 0, .at_most = 1}),
          "Last learning rate, as a share of optimizer.lr. constant does not read it."),
      Key("decay_steps", &R::decay_steps, Nullable(Integer(1)),
          "Steps of decay at the end, for wsd. null: a tenth of train.steps, or what the warm-up "
          "leaves."),
      Key("decay", &R::decay, OneOf<R::Decay>(),
          "How the rate falls in them, p being the share that is over. sqrt: 1 - sqrt(p). linear: "
          "1 - p. cosine: half a period."),
  }};
}

Section<FsdpRecipe> FsdpSection() {
  using R = FsdpRecipe;
  const Section<R::AutoWrap> auto_wrap = {{
      Key("policy", &R::AutoWrap::policy, OneOf<R::Policy>(),
          "transformer_block: a unit for each block. size: sub-trees of min_num_params or more. "
          "none: the whole model is one unit."),
      Key("min_num_params", &R::AutoWrap::min_num_params, Integer(1, kAnyInteger),
          "Parameters of a unit, at least; for policy size."),
  }};
  const Section<R::MixedPrecision> mixed_precision = {{
      Key("param_dtype", &R::MixedPrecision::param_dtype, Only32Bit(),
          "Of gathered parameters and of compute."),
      Key("grad_dtype", &R::MixedPrecision::grad_dtype, Only32Bit(), "Of unsharded gradients."),
      Key("reduce_dtype", &R::MixedPrecision::reduce_dtype, Only32Bit(),
          "Of gradients on the wire."),
      Key("master_dtype", &R::MixedPrecision::master_dtype, Only32Bit(),
          "Of the parameters that the optimizer updates."),
      Key("buffer_dtype", &R::MixedPrecision::buffer_dtype, Only32Bit(),
          "Of buffers that are no parameters."),
  }};
  const Section<R::CpuOffload> cpu_offload = {{
      Key("params", &R::CpuOffload::params, OnlyFalse(), "Parameter shards in host memory."),
      Key("optimizer", &R::CpuOffload::optimizer, OnlyFalse(),
          "Optimizer state in host memory, updated there."),
  }};
  return {{
      Key("sharding_strategy", &R::sharding_strategy,
          OneOf<R::Strategy>(Later({"hybrid_shard", "hybrid_shard_grad_op"})),
          "full_shard: parameters are gathered for forward and again for backward. shard_grad_op: "
          "kept from forward to backward. no_shard: every rank keeps all of them."),
      Key("shard_size", &R::shard_size, Nullable(Integer(1)),
          "Ranks that share one copy. null: all of them, or one for no_shard."),
      Key("auto_wrap", &R::auto_wrap, Map(auto_wrap), "What is gathered and freed together."),
      Key("backward_prefetch", &R::backward_prefetch, OneOf<R::Prefetch>(),
          "When the next unit's gather may start in backward. pre: before this unit's gradients. "
          "post: after them. none: after their reduction."),
      Key("forward_prefetch", &R::forward_prefetch, Boolean(),
          "The next unit's gather is issued before this unit's forward."),
      Key("limit_all_gathers", &R::limit_all_gathers, Integer(0),
          "Units gathered at once, in slots that are used again; n slots prefetch n - 1 ahead. 1: "
          "no prefetch. 0: no limit."),
      Key("reduce_buffers", &R::reduce_buffers, Integer(1), "Units whose gradients wait at once."),
      Key("communicators", &R::communicators, Integer(1, 2),
          "2: gathers and reductions have a queue each. 1: they share one."),
      Key("limiter", &R::limiter, OneOf<R::Limiter>(Later({"host"})),
          "What waits for a free slot: the device's stream."),
      Key("buffers", &R::buffers, OneOf<R::Buffers>(Later({"caching"})),
          "Where gathered units live: in slots planned before the run."),
      Key("gradient_accumulation", &R::gradient_accumulation, OneOf<R::Accumulation>(),
          "sharded: gradients are reduced after every micro-batch. unsharded: after the last one, "
          "for memory of the whole gradient."),
      Key("mixed_precision", &R::mixed_precision, Map(mixed_precision), "Number formats."),
      Key("cpu_offload", &R::cpu_offload, Map(cpu_offload), "What leaves the device."),
  }};
}

Type<ResumeRecipe> ResumeType() {
  using Kind = ResumeRecipe::Kind;
  const Type<int64_t> step = Integer(0);
  const Type<std::string> text = Text();
  const Json words = {{"enum", {"auto", "none"}}};
  return {
      {{"anyOf", {words, step.schema, text.schema}}},
      [=](const YamlNode& node, const std::string& key, RecipeReader& reader, ResumeRecipe& value) {
        const bool scalar = node.kind == YamlNode::Kind::kScalar;
        if (scalar && (node.text == "auto" || node.text == "none")) {
          value = {.kind = node.text == "auto" ? Kind::kAuto : Kind::kNone};
          return true;
        }
        if (scalar && node.plain && ResolvePlain(node.text) == PlainType::kInteger) {
          ResumeRecipe read{.kind = Kind::kStep};
          if (!step.read(node, key, reader, read.step)) return false;
          value = std::move(read);
          return true;
        }
        const bool is_text = scalar && !node.text.empty() &&
                             (!node.plain || ResolvePlain(node.text) == PlainType::kText);
        if (!is_text) {
          reader.Wrong(node, key, "`auto`, `none`, a step or a directory");
          return false;
        }
        ResumeRecipe read{.kind = Kind::kDirectory};
        if (!text.read(node, key, reader, read.directory)) return false;
        value = std::move(read);
        return true;
      },
      [](const ResumeRecipe& value) {
        switch (value.kind) {
          case Kind::kAuto:
            return Json("auto");
          case Kind::kNone:
            return Json("none");
          case Kind::kStep:
            return Json(value.step);
          case Kind::kDirectory:
            break;
        }
        return Json(value.directory);
      }};
}

Section<CheckpointRecipe> CheckpointSection() {
  using R = CheckpointRecipe;
  return {{
      Key("every", &R::every, Integer(0),
          "Steps between checkpoints, and one at the end. 0: none at all."),
      Key("keep_last", &R::keep_last, Integer(0), "Newest checkpoints to keep. 0: all."),
      Key("async", &R::async, Boolean(),
          "Written from a copy while training goes on: more memory, less waiting."),
      Key("resume", &R::resume, ResumeType(),
          "auto: from the newest checkpoint, where there is one; exit 5 where that is damaged. "
          "none: from the start, in a run directory that holds no run. A step (or step_<n>): from "
          "that checkpoint; newer ones are set aside as step_<n>.aside, which count for nothing. "
          "A directory: from that checkpoint, or the newest of that run."),
  }};
}

Section<LogRecipe> LogSection() {
  using R = LogRecipe;
  return {{
      Key("every", &R::every, Integer(1), "Steps between lines and records."),
      Key("tensorboard", &R::tensorboard, Boolean(),
          "The records as event files for TensorBoard as well, with samples and recipe as text."),
      Key("trace_steps", &R::trace_steps, ListOf(Integer(1)),
          "Steps of which a Chrome trace is kept."),
  }};
}

Type<ModelRecipe> ModelType() {
  Type<ModelRecipe> type = Map(ModelSection());
  type.schema["anyOf"] = {{{"required", {"family"}}}, {{"required", {"init_from"}}}};
  return type;
}

Type<Recipe> BuildRecipeType() {
  using R = Recipe;
  Type<Recipe> type = Map(Section<R>{{
      Key("run", &R::run, Map(RunSection()), "Where and how the run takes place."),
      Key("model", &R::model, ModelType(), "What is trained.").Required(),
      Key("data", &R::data, Map(DataSection()), "What it is trained on.").Required(),
      Key("train", &R::train, Map(TrainSection()), "How much of it, and how."),
      Key("eval", &R::eval, Map(EvalSection()), "Evaluations during the run."),
      Key("optimizer", &R::optimizer, Map(OptimizerSection()), "From gradients to weights."),
      Key("schedule", &R::schedule, Map(ScheduleSection()), "The learning rate over the steps."),
      Key("fsdp", &R::fsdp, Map(FsdpSection()), "How the ranks share the model."),
      Key("checkpoint", &R::checkpoint, Map(CheckpointSection()), "What is kept on disk."),
      Key("log", &R::log, Map(LogSection()), "What is reported."),
  }});
  Json head = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "fsdp-train recipe"}};
  head.update(type.schema);
  type.schema = std::move(head);
  return type;
}

void AddKeys(const Json& schema, const std::string& prefix, std::vector<std::string>& keys) {
  if (schema.contains("anyOf")) {
    for (const Json& form : schema["anyOf"]) AddKeys(form, prefix, keys);
  }
  if (!schema.contains("properties")) return;
  for (const auto& [name, property] : schema["properties"].items()) {
    keys.push_back(prefix + name);
    AddKeys(property, prefix + name + ".", keys);
  }
}

}  // namespace

const Type<Recipe>& RecipeType() {
  static const Type<Recipe> type = BuildRecipeType();
  return type;
}

std::vector<std::string> KnownKeys() {
  std::vector<std::string> keys;
  AddKeys(RecipeType().schema, "", keys);
  return keys;
}

}  // namespace fsdp::recipe
