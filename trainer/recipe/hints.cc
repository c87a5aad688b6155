#include "trainer/recipe/hints.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "models/family.h"

namespace fsdp::recipe {

namespace {

std::string Fold(std::string_view word) {
  std::string folded(word);
  for (char& c : folded) {
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return folded;
}

}  // namespace

int EditDistance(std::string_view a, std::string_view b) {
  const size_t columns = b.size() + 1;
  std::vector<int> before2(columns), before(columns), row(columns);
  for (size_t j = 0; j < columns; ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    before2.swap(before);
    before.swap(row);
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j < columns; ++j) {
      const int substitute = before[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({before[j] + 1, row[j - 1] + 1, substitute});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before2[j - 2] + 1);
      }
    }
  }
  return row.back();
}

std::string Nearest(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr size_t kLongestWord = 100;  // No key is near to anything longer.
  if (word.empty() || word.size() > kLongestWord) return "";
  const std::string folded = Fold(word);
  const int limit = std::max<int>(1, static_cast<int>(word.size()) / 3);
  std::string best;
  int least = limit + 1;
  for (const std::string& candidate : candidates) {
    const size_t longer = std::max(candidate.size(), word.size());
    const size_t shorter = std::min(candidate.size(), word.size());
    if (longer - shorter >= static_cast<size_t>(least)) continue;  // The distance is at least that.
    const int distance = EditDistance(folded, Fold(candidate));
    // A word with every letter changed is not near: "x" is no misspelt "y".
    if (distance < least && distance < static_cast<int>(word.size())) {
      best = candidate;
      least = distance;
    }
  }
  if (!best.empty()) return best;
  for (const std::string& candidate : candidates) {
    const std::string known = Fold(candidate);
    const std::string& held = known.size() < folded.size() ? known : folded;
    const std::string& holder = known.size() < folded.size() ? folded : known;
    if (held.size() < 4 || holder.find(held) == std::string::npos) continue;
    if (best.empty() || candidate.size() < best.size()) best = candidate;
  }
  return best;
}

std::span<const PeersWord> PeersWords() {
  static constexpr auto words = std::to_array<PeersWord>({
      // PEFT's LoraConfig.
      {"r", "model.lora.rank", ""},
      {"lora_r", "model.lora.rank", ""},
      {"lora_rank", "model.lora.rank", ""},
      {"lora_alpha", "model.lora.alpha", ""},
      {"target_modules", "model.lora.targets", ""},
      {"lora_target_modules", "model.lora.targets", ""},
      {"lora_config", "model.lora", ""},
      {"peft_config", "model.lora", ""},
      {"lora_dropout", "", "adapters have no dropout here, as with PEFT's 0"},
      {"bias", "", "biases are frozen with the weights, as with PEFT's `none`"},
      {"use_rslora", "", "alpha / rank scales adapters here; alpha x sqrt(rank) gives rsLoRA's"},
      {"use_dora", "", "there is no DoRA here"},
      {"modules_to_save", "", "with model.lora adapters alone train"},
      {"task_type", "", "every model is a causal language model"},
      {"load_in_4bit", "",
       "weights are not quantised; optimizer.groups and model.lora freeze them"},
      {"load_in_8bit", "",
       "weights are not quantised; optimizer.groups and model.lora freeze them"},
      // Files in and out.
      {"model_name_or_path", "model.init_from", "a directory, not a hub's name"},
      {"pretrained_model_name_or_path", "model.init_from", "a directory, not a hub's name"},
      {"base_model", "model.init_from", "a directory, not a hub's name"},
      {"tokenizer_name", "data.train.tokenizer", "a tokenizer.json or a SentencePiece .model"},
      {"tokenizer_name_or_path", "data.train.tokenizer", "a tokenizer.json or a .model"},
      {"train_file", "data.train.paths", ""},
      {"train_files", "data.train.paths", ""},
      {"validation_file", "data.valid.paths", ""},
      {"chat_template", "data.train.template", "a file, in the language of Jinja"},
      {"chat_template_path", "data.train.template", ""},
      {"chat_template_jinja", "data.train.template", "a file"},
      {"assistant_only_loss", "data.train.train_on", "assistant, which is the default, or all"},
      {"train_on_inputs", "data.train.train_on", "all; the default is assistant"},
      {"train_on_input", "data.train.train_on", "all; the default is assistant"},
      {"completion_only_loss", "data.train.source", "`pairs`: the loss counts completions alone"},
      {"sample_packing", "data.packing", ""},
      {"max_seq_length", "data.seq_len", ""},
      {"max_length", "data.seq_len", ""},
      {"output_dir", "run.dir", ""},
      {"resume_from_checkpoint", "checkpoint.resume", ""},
      {"save_steps", "checkpoint.every", ""},
      {"save_total_limit", "checkpoint.keep_last", ""},
      {"logging_steps", "log.every", ""},
      {"eval_steps", "eval.every", ""},
      // Steps, batches and the optimizer.
      {"num_train_epochs", "train.epochs", ""},
      {"max_steps", "train.steps", ""},
      {"per_device_train_batch_size", "train.micro_batch_size", ""},
      {"gradient_accumulation_steps", "train.global_batch_size", ""},
      {"gradient_checkpointing", "train.activation_checkpointing", ""},
      {"max_grad_norm", "train.grad_clip", ""},
      {"learning_rate", "optimizer.lr", ""},
      {"optim", "optimizer.name", ""},
      {"adam_beta1", "optimizer.betas", ""},
      {"adam_beta2", "optimizer.betas", ""},
      {"adam_epsilon", "optimizer.eps", ""},
      {"lr_scheduler_type", "schedule.name", ""},
      {"warmup_ratio", "schedule.warmup_steps", ""},
      {"bf16", "fsdp.mixed_precision.param_dtype", ""},
      {"fp16", "fsdp.mixed_precision.param_dtype", ""},
      {"precision", "fsdp.mixed_precision.param_dtype", ""},
      {"num_epochs", "train.epochs", ""},
      {"batch_size", "train.micro_batch_size", "of a rank; train.global_batch_size is of all"},
      {"local_batch_size", "train.micro_batch_size", ""},
      {"activation_checkpoint", "train.activation_checkpointing", ""},
      {"attn_implementation", "train.attention", ""},
      {"flash_attention", "train.attention", "flash, which is the default"},
      {"sequence_len", "data.seq_len", ""},
      {"val_set_size", "data.valid.fraction", ""},
      {"datasets", "data.train", "a map with source and paths, or a list of them"},
      {"dataset_prepared_path", "data.cache", ""},
      {"evals_per_epoch", "eval.every", "in steps"},
      {"saves_per_epoch", "checkpoint.every", "in steps"},
      {"early_stopping_patience", "eval.stop_after", ""},
      {"lora_target_linear", "model.lora.targets", "`*` is all of them"},
      {"zero_stage", "fsdp.sharding_strategy", "3: full_shard, 2: shard_grad_op, 0: no_shard"},
      {"deepspeed", "fsdp", "its ZeRO-3 is the default here"},
      // In a section whose key has another name.
      {"schedule.type", "schedule.name", ""},
      {"schedule.lr_min", "schedule.min_lr_ratio", "a share of optimizer.lr"},
      {"data.train.type", "data.train.source", ""},
      {"data.valid.type", "data.valid.source", ""},
      {"eval.patience", "eval.stop_after", ""},
      {"eval.interval", "eval.every", ""},
      {"checkpoint.interval", "checkpoint.every", ""},
      {"log.freq", "log.every", ""},
      {"model.name", "model.preset", ""},
      {"model.flavor", "model.preset", ""},
      {"model.name_or_path", "model.init_from", "a directory, not a hub's name"},
      {"model.tokenizer_path", "data.train.tokenizer", ""},
      // Nothing here does these.
      {"hub_model_id", "", "nothing is uploaded; `checkpoint export` writes what the Hub takes"},
      {"push_to_hub", "", "nothing is uploaded; `checkpoint export` writes what the Hub takes"},
      {"wandb_project", "", "not in this version: metrics.jsonl and TensorBoard have the records"},
      {"report_to", "", "not in this version: metrics.jsonl and TensorBoard have the records"},
      {"tensor_parallel_degree", "", "not in this version: ranks share parameters and batches"},
      {"pipeline_parallel_degree", "", "not in this version: ranks share parameters and batches"},
      {"rl", "", "not in this version: training is supervised, by text, chat or pairs"},
      {"compile", "", "not in this version: kernels are compiled before"},
      {"torch_compile", "", "not in this version: kernels are compiled before"},
      {"neftune_noise_alpha", "", "not in this version"},
  });
  return words;
}

const PeersWord* FindPeersWord(std::string_view word) {
  const std::span<const PeersWord> words = PeersWords();
  const auto found = std::find_if(words.begin(), words.end(),
                                  [&](const PeersWord& known) { return known.word == word; });
  return found == words.end() ? nullptr : &*found;
}

std::span<const PeersValue> PeersValues() {
  static const std::vector<PeersValue> values = [] {
    std::vector<PeersValue> all = {
        {"run.device", "gpu", "cuda"},
        {"run.device", "nvidia", "cuda"},
        {"optimizer.name", "adam", "adamw"},
        {"optimizer.name", "adamw_torch", "adamw"},
        {"optimizer.name", "adamw_torch_fused", "adamw"},
    };
    for (const ModelFamily* family : Families()) {
      for (const std::string_view name : family->kin()) {
        all.push_back({"model.family", name, family->name()});
      }
    }
    return all;
  }();
  return values;
}

std::string_view FindPeersValue(std::string_view key, std::string_view word) {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) ==
           std::tolower(static_cast<unsigned char>(b));
  };
  for (const PeersValue& value : PeersValues()) {
    if (value.key == key &&
        std::equal(word.begin(), word.end(), value.word.begin(), value.word.end(), same)) {
      return value.ours;
    }
  }
  return "";
}

}  // namespace fsdp::recipe
