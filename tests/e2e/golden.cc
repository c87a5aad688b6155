#include "tests/e2e/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <ostream>
#include <random>
#include <sstream>
#include <stdexcept>

#include "tests/testing/pairwise.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/core/philox.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;

const char kRecipe[] =
    "run: {threads: 1, timeout_s: 120}\n"
    "data: {seq_len: 13, valid: {fraction: 0.1}}\n"
    "train: {steps: 4, micro_batch_size: 2, global_batch_size: 6}\n"
    "optimizer: {lr: 1.0e-2}\n"
    "log: {tensorboard: false}\n"
    "checkpoint: {every: 2, keep_last: 0}\n";

const char kGpt2[] =
    "model={family: gpt2, hidden_size: 24, intermediate_size: 52, num_hidden_layers: 2, "
    "num_attention_heads: 3, vocab_size: 257, max_position_embeddings: 16}";
const char kGpt2Dropouts[] =
    "model={family: gpt2, hidden_size: 24, num_hidden_layers: 3, num_attention_heads: 2, "
    "vocab_size: 257, max_position_embeddings: 16, embedding_dropout: 0.1, residual_dropout: 0.2, "
    "attention_dropout: 0.3}";
const char kLlama[] =
    "model={family: llama, hidden_size: 24, intermediate_size: 40, num_hidden_layers: 2, "
    "num_attention_heads: 6, num_key_value_heads: 3, head_dim: 10, vocab_size: 257, "
    "max_position_embeddings: 16, attention_bias: true, attention_output_bias: true, "
    "mlp_bias: true, qk_norm: true, rope_scaling: {type: yarn, factor: 4, "
    "original_max_position_embeddings: 4, beta_fast: 1, beta_slow: 0.1}}";
const char kLlamaTied[] =
    "model={family: llama, hidden_size: 32, intermediate_size: 41, num_hidden_layers: 3, "
    "num_attention_heads: 4, num_key_value_heads: 1, vocab_size: 257, "
    "max_position_embeddings: 32, tie_word_embeddings: true, attention_dropout: 0.2, "
    "rope_scaling: {type: llama3, factor: 4, original_max_position_embeddings: 8, "
    "low_freq_factor: 1, high_freq_factor: 4}}";

const char kSynthetic[] = "data.train={source: synthetic}";
const char kSyntheticValid[] = "data.valid={source: synthetic}";
const char kText[] = "data.train={source: text, paths: [$DIR/text.txt]}";
const char kDocuments[] =
    "data.train={source: tokens, paths: [$DIR/tokens.bin], dtype: uint16, eot: 0}";
const char kMixture[] =
    "data.train=[{source: text, paths: [$DIR/text.txt], weight: 3}, "
    "{source: tokens, paths: [$DIR/tokens.bin], dtype: uint16, weight: 2}]";

// The values that each setting may have; all values of a line belong together. The order of lines
// and values makes the rows.
using Values = std::vector<Strings>;
const std::vector<Values> kPairs = {
    {{kGpt2},
     {kGpt2Dropouts},
     {"model={init_from: $FIXTURES/gpt2/odd_heads}",
      "optimizer.groups=[{match: '*h.0.*', frozen: true}, {match: '*h.1.mlp.*', frozen: true}, "
      "{match: '*ln_*', weight_decay: 0.3, lr_scale: 0.5}]"},
     {"model={init_from: $FIXTURES/gpt2/odd_heads, lora: {rank: 3, alpha: 5}, "
      "attention_dropout: 0.1}"},
     {kLlama},
     {kLlamaTied},
     {"model={init_from: $FIXTURES/llama/llama_6_2}"},
     {"model={init_from: $FIXTURES/llama/mistral_dynamic, "
      "lora: {rank: 2, alpha: 4, targets: ['*q_proj*', '*down_proj*']}}"}},
    {{"world=1"}, {"world=2"}, {"world=3"}, {"world=4"}},
    {{"fsdp.sharding_strategy=full_shard"},
     {"fsdp.sharding_strategy=shard_grad_op"},
     {"fsdp.sharding_strategy=no_shard"}},
    {{"train.activation_checkpointing=none"},
     {"train.activation_checkpointing=selective"},
     {"train.activation_checkpointing=full"}},
    {{kSynthetic, kSyntheticValid},
     {kText, "data.shuffle=false"},
     {kDocuments, "data.documents=true"},
     {kMixture}},
    {{"optimizer.name=adamw"},
     {"optimizer={name: adamw, betas: [0.8, 0.99], eps: 1.0e-4, weight_decay: 0.3}",
      "train.grad_clip=0.1"},
     {"optimizer={name: sgd, lr: 0.1}", "train.grad_clip=0"},
     {"optimizer={name: sgd, lr: 0.05, momentum: 0.9, weight_decay: 0.0}"}},
    {{"train.micro_batch_size=8", "train.global_batch_size=5"},
     {"train.micro_batch_size=1", "fsdp.gradient_accumulation=sharded"},
     {"train.micro_batch_size=1", "train.global_batch_size=9",
      "fsdp.gradient_accumulation=unsharded"},
     {"train.micro_batch_size=2", "train.global_batch_size=7"}},
    {{}, {"train.ema={decay: 0.9}"}},
    {{}, {"resume=same"}, {"resume=other"}},
    {{"schedule={name: cosine, warmup_steps: 1}"},
     {"schedule={name: linear, min_lr_ratio: 0}"},
     {"schedule={name: wsd, warmup_steps: 1, decay_steps: 2}"},
     {"schedule={name: constant}"}},
    {{"fsdp.limit_all_gathers=0"},
     {"fsdp.limit_all_gathers=1"},
     {"fsdp.limit_all_gathers=2"},
     {"fsdp.limit_all_gathers=3"}},
    {{"fsdp.backward_prefetch=pre"},
     {"fsdp.backward_prefetch=post"},
     {"fsdp.backward_prefetch=none"}},
    {{"fsdp.forward_prefetch=true"}, {"fsdp.forward_prefetch=false"}},
    {{"fsdp.reduce_buffers=1"}, {"fsdp.reduce_buffers=2"}},
    {{"fsdp.communicators=1"}, {"fsdp.communicators=2"}},
    {{"fsdp.auto_wrap.policy=transformer_block"},
     {"fsdp.auto_wrap={policy: size, min_num_params: 12000}"},
     {"fsdp.auto_wrap.policy=none"}},
    {{}, {"eval={every: 2, steps: 2}"}},
    {{"checkpoint.async=true"}, {"checkpoint.async=false"}},
};
constexpr uint64_t kPairsSeed = 9;

GoldenRun RunOfRow(const std::vector<int>& row) {
  GoldenRun run;
  for (size_t i = 0; i < row.size(); ++i) {
    for (const std::string& setting : kPairs[i][row[i]]) {
      if (setting.starts_with("world=")) {
        run.world = std::stoi(setting.substr(6));
      } else if (setting.starts_with("resume=")) {
        run.resume_at = 2;
        run.resume_world = setting == "resume=same" ? run.world : run.world % 4 + 1;
      } else {
        run.settings.push_back(setting);
      }
    }
  }
  return run;
}

std::string ReplaceAll(std::string text, const std::string& what, const std::string& by) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size()) {
    text.replace(at, what.size(), by);
  }
  return text;
}

std::string FirstWord(const std::string& text) { return text.substr(0, text.find(' ')); }

}  // namespace

std::string GoldenRun::Describe() const {
  std::string text = "world " + std::to_string(world);
  if (resume_at > 0) {
    text += ", resumed at step " + std::to_string(resume_at) + " and world " +
            std::to_string(resume_world);
  }
  for (const std::string& setting : settings) text += "; " + setting;
  for (const std::string& setting : resume_settings) text += "; then " + setting;
  return text + (isa == "avx2" ? "" : "; " + isa);
}

void PrintTo(const GoldenRun& run, std::ostream* out) { *out << run.Describe(); }

std::vector<GoldenRun> GoldenRuns() {
  std::vector<int> levels;
  for (const Values& values : kPairs) levels.push_back(static_cast<int>(values.size()));
  std::vector<GoldenRun> runs;
  for (const std::vector<int>& row : testing::CoverPairs(levels, kPairsSeed)) {
    runs.push_back(RunOfRow(row));
    char name[24];
    std::snprintf(name, sizeof(name), "pair_%02d", static_cast<int>(runs.size()) - 1);
    runs.back().name = name;
  }
  // More than one block of a product, one tile of attention, one chunk of the head.
  runs.push_back({.name = "large_gpt2",
                  .settings = {"model={family: gpt2, hidden_size: 320, intermediate_size: 1100, "
                               "num_hidden_layers: 2, num_attention_heads: 5, vocab_size: 3001, "
                               "max_position_embeddings: 256, attention_dropout: 0.1}",
                               kSynthetic, "data.valid=null", "data.seq_len=200",
                               "train={steps: 2, micro_batch_size: 3, global_batch_size: 7, "
                               "activation_checkpointing: selective}"},
                  .world = 2});
  runs.push_back(
      {.name = "large_llama",
       .settings = {"model={family: llama, hidden_size: 272, intermediate_size: 700, "
                    "num_hidden_layers: 2, num_attention_heads: 8, "
                    "num_key_value_heads: 2, vocab_size: 2003, "
                    "max_position_embeddings: 256}",
                    kDocuments, "data.documents=true", "data.valid=null", "data.seq_len=230",
                    "train={steps: 2, micro_batch_size: 2, global_batch_size: 4}"}});
  // Averaged weights evaluated and sampled from.
  runs.push_back({.name = "samples_gpt2",
                  .settings = {kGpt2, kText, "train.ema={decay: 0.5}",
                               "eval={every: 2, steps: 2, ema: true, "
                               "sample: {prompt: 'line ', max_tokens: 12}}"},
                  .world = 2,
                  .resume_at = 2,
                  .resume_world = 2});
  runs.push_back(
      {.name = "samples_llama_lora",
       .settings = {"model={init_from: $FIXTURES/llama/llama_6_2, lora: {rank: 2}}", kText,
                    "data.valid=[{name: a, source: text, paths: [$DIR/text.txt]}, "
                    "{name: b, source: synthetic}]",
                    "eval={every: 2, steps: 1, "
                    "sample: {prompt: 'line', max_tokens: 9, temperature: 0}}"},
       .world = 3});
  // Nothing of how the state is laid out stays.
  runs.push_back({.name = "moved",
                  .settings = {kLlama, kSynthetic, "data.valid=null", "train.ema={decay: 0.9}"},
                  .world = 4,
                  .resume_at = 2,
                  .resume_world = 3,
                  .resume_settings = {"fsdp={sharding_strategy: no_shard, auto_wrap: "
                                      "{policy: none}, gradient_accumulation: unsharded}"}});
  runs.push_back({.name = "many_gpt2",
                  .settings = {kGpt2Dropouts, kSynthetic, "data.valid=null"},
                  .world = 4});
  runs.push_back(
      {.name = "many_llama",
       .settings = {kLlama, kDocuments, "data.documents=true",
                    "fsdp.sharding_strategy=shard_grad_op",
                    "optimizer={name: sgd, lr: 0.05, momentum: 0.9}", "train.global_batch_size=9"},
       .world = 4});
  runs.push_back(
      {.name = "many_replicas",
       .settings = {kLlamaTied, kText, "train.ema={decay: 0.9}", "fsdp.sharding_strategy=no_shard"},
       .world = 3});
  // Experts: groups, biases that move, a balance loss whose f is of the step before, a shared one.
  const std::string experts =
      "model={family: moe, hidden_size: 40, intermediate_size: 72, num_hidden_layers: 3, "
      "num_attention_heads: 4, num_key_value_heads: 2, vocab_size: 259, "
      "max_position_embeddings: 64, num_experts: 6, num_experts_per_tok: 2, "
      "moe_intermediate_size: 21, shared_expert_intermediate_size: 42, dense_layers: [0], "
      "scoring_func: sigmoid, score_correction_bias: true, n_group: 3, topk_group: 2, "
      "norm_topk_prob: true, qk_norm: true}";
  const std::string routers =
      "train.router={aux_loss: 0.02, aux_scope: step, z_loss: 0.001, bias_rate: 0.01}";
  runs.push_back({.name = "experts",
                  .settings = {experts, routers, kText, "train.activation_checkpointing=full"},
                  .world = 3,
                  .resume_at = 2,
                  .resume_world = 3});
  // Products of two bf16 on tiles: more than one block of k, edges, a head in chunks, LoRA.
  const std::string bf16 = "fsdp.mixed_precision={param_dtype: bf16}";
  runs.push_back({.name = "tiles_gpt2",
                  .settings = {"model={family: gpt2, hidden_size: 200, intermediate_size: 1100, "
                               "num_hidden_layers: 1, num_attention_heads: 5, vocab_size: 3001, "
                               "max_position_embeddings: 256, attention_dropout: 0.1}",
                               kSynthetic, "data.valid=null", "data.seq_len=200", bf16,
                               "train={steps: 2, micro_batch_size: 3, global_batch_size: 7}"},
                  .world = 2,
                  .isa = "amx_emulated_on_avx2"});
  runs.push_back({.name = "tiles_llama_lora",
                  .settings = {"model={init_from: $FIXTURES/llama/llama_6_2, lora: {rank: 2}}",
                               kText, bf16, "train.attention=math"},
                  .resume_at = 2,
                  .resume_world = 1,
                  .isa = "amx_emulated_on_avx2"});
  runs.push_back({.name = "tiles_experts",
                  .settings = {experts, routers, kText, bf16},
                  .world = 2,
                  .isa = "amx_emulated_on_avx2"});
  return runs;
}

GoldenRun GoldenRunOf(const std::string& name) {
  for (GoldenRun& run : GoldenRuns()) {
    if (run.name == name) return run;
  }
  throw std::invalid_argument("no golden run " + name);
}

std::string PutInputs(const TempDir& directory) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i) + " of the text\n";
  directory.Write("text.txt", text);
  std::mt19937 random(5489);
  std::string tokens;
  for (int i = 0; i < 6000; ++i) {
    const auto token = random() % 12 == 0 ? 0u : static_cast<unsigned>(random() % 257);
    tokens += {static_cast<char>(token & 255), static_cast<char>(token >> 8)};
  }
  directory.Write("tokens.bin", tokens);
  return directory.Write("golden.yaml", kRecipe);
}

Strings Settings(const Strings& settings, const std::string& directory) {
  Strings filled;
  for (const std::string& setting : settings) {
    // Beside the fixtures' weights is no tokenizer.
    const std::string bytes =
        ReplaceAll(setting, "source: text,", "source: text, tokenizer: bytes,");
    filled.push_back(ReplaceAll(ReplaceAll(bytes, "$DIR", directory), "$FIXTURES",
                                fs::absolute("tests/fixtures").string()));
  }
  return filled;
}

std::string GoldenHash(std::string_view bytes) {
  char text[9];
  std::snprintf(text, sizeof(text), "%08x", static_cast<unsigned>(HashBytes(bytes)));
  return text;
}

Quantities TensorsOf(const std::string& checkpoint) {
  CheckpointReader reader(checkpoint);
  std::map<std::string, Quantities> tensors;  // By parameter; as the files have them, by state.
  std::vector<float> values;
  const auto add = [&](const std::string& tensor, const std::string& state) {
    const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                                 values.size() * sizeof(float));
    tensors[tensor].emplace_back("tensor " + tensor + " " + state, GoldenHash(bytes));
  };
  for (const std::string& state : reader.manifest().StateNames()) {
    const StateFormat* const own = reader.manifest().FindState(state);
    for (const OwnTensor& tensor : own ? own->tensors : std::vector<OwnTensor>()) {
      values.resize(static_cast<size_t>(tensor.shape.NumElements()));
      reader.ReadTensor(
          state, tensor, 0,
          {reinterpret_cast<std::byte*>(values.data()), DType::kFloat32, tensor.shape});
      add(tensor.name, state);
    }
    if (own != nullptr && !own->tensors.empty()) continue;
    for (const auto& flat : reader.manifest().flat_parameters) {
      if (!FlatHasState(flat, state)) continue;
      for (const auto& parameter : flat.parameters) {
        values.resize(parameter.size());
        reader.Read(state, parameter.name, parameter.shape, 0, values);
        add(parameter.name, state);
      }
    }
  }
  Quantities quantities;
  for (const auto& [name, states] : tensors) {
    quantities.insert(quantities.end(), states.begin(), states.end());
  }
  return quantities;
}

Quantities QuantitiesOf(const std::string& run_directory) {
  Quantities quantities;
  for (const Json& record : ReadMetrics(run_directory)) {
    const std::string kind = record.at("kind");
    if (kind != "step" && kind != "eval" && kind != "sample") continue;
    std::string what = kind + " " + record.at("step").dump();
    if (record.contains("name")) what += " " + record["name"].get<std::string>();
    for (const char* key : {"loss", "grad_norm", "lr", "tokens"}) {
      if (record.contains(key)) quantities.emplace_back(what + " " + key, record[key].dump());
    }
    if (kind == "sample")
      quantities.emplace_back(what + " text", GoldenHash(record.at("text").dump()));
  }
  const std::string checkpoints = run_directory + "/checkpoints/";
  const Quantities tensors = TensorsOf(checkpoints + ReadFile(checkpoints + "latest"));
  quantities.insert(quantities.end(), tensors.begin(), tensors.end());
  return quantities;
}

// [name] description
// <words of the quantity but the last>: <last word>=<value> <last word>=<value> ...
GoldenFile::GoldenFile() {
  if (const char* written = std::getenv("GOLDEN_WRITE")) {
    writes_ = true;
    path_ = written;
  }
  std::istringstream lines(ReadFile(path_));
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (line[0] == '[') {
      const size_t end = line.find("] ");
      sections_.push_back({line.substr(1, end - 1), line.substr(end + 2), {}});
      continue;
    }
    const size_t colon = line.find(": ");
    std::istringstream fields(line.substr(colon + 2));
    for (std::string field; fields >> field;) {
      const size_t equals = field.find('=');
      sections_.back().quantities.emplace_back(
          line.substr(0, colon) + " " + field.substr(0, equals), field.substr(equals + 1));
    }
  }
}

std::string GoldenFile::Write() const {
  std::string text =
      "# What runs of the optimised build gave: see tests/e2e/golden.h, which also says when to "
      "write this file anew.\n";
  for (const Section& section : sections_) {
    text += "\n[" + section.name + "] " + section.description;
    std::string last;
    for (const auto& [quantity, value] : section.quantities) {
      const size_t space = quantity.rfind(' ');
      const std::string what = quantity.substr(0, space);
      text +=
          (what == last ? "" : "\n" + what + ":") + " " + quantity.substr(space + 1) + "=" + value;
      last = what;
    }
    text += "\n";
  }
  return text;
}

std::vector<std::string> GoldenFile::Names() const {
  std::vector<std::string> names;
  for (const Section& section : sections_) names.push_back(section.name);
  return names;
}

std::string GoldenFile::Differences(const std::string& name, const std::string& description,
                                    const Quantities& quantities) {
  const auto at = std::lower_bound(
      sections_.begin(), sections_.end(), name,
      [](const Section& section, const std::string& wanted) { return section.name < wanted; });
  const bool there = at != sections_.end() && at->name == name;
  if (writes_) {
    const Section section = {name, description, quantities};
    if (there) *at = section;
    if (!there) sections_.insert(at, section);
    std::ofstream(path_, std::ios::binary) << Write();
    return "";
  }
  if (!there) return name + ": golden.txt has no such run";
  if (description != at->description) {
    return name + ": golden.txt has another run of this name: " + at->description +
           "\nthis one: " + description;
  }
  std::map<std::string, std::string> got(quantities.begin(), quantities.end());
  std::map<std::string, Strings> differences;  // By the quantities' first word.
  for (const auto& [quantity, wanted] : at->quantities) {
    const auto found = got.find(quantity);
    const std::string is = found == got.end() ? "missing" : found->second;
    if (found != got.end()) got.erase(found);
    if (is != wanted) {
      differences[FirstWord(quantity)].push_back(quantity + ": " + is + " instead of " + wanted);
    }
  }
  for (const auto& [quantity, value] : got) {
    differences[FirstWord(quantity)].push_back(quantity + ": " + value + ", not in golden.txt");
  }
  if (differences.empty()) return "";
  std::string text = name + " (" + description + "):";
  for (const auto& [kind, lines] : differences) {
    for (size_t i = 0; i < lines.size() && i < 3; ++i) text += "\n  " + lines[i];
    if (lines.size() > 3) {
      text += "\n  and " + std::to_string(lines.size() - 3) + " more of \"" + kind + "\"";
    }
  }
  return text;
}

void ExpectGolden(const GoldenRun& run, const std::string& run_directory) {
  const std::string differences =
      GoldenFile().Differences(run.name, run.Describe(), QuantitiesOf(run_directory));
  EXPECT_TRUE(differences.empty()) << differences;
}

}  // namespace fsdp::e2e
