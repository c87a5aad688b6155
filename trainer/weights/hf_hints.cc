#include "trainer/weights/hf_hints.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/read_file.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// Names in a directory, sorted; none where it cannot be read.
std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The snapshot that refs/main names, or else the first.
std::string SnapshotOf(const std::string& cache) {
  const std::string folder = cache + "/snapshots";
  std::string main = ReadFileText(cache + "/refs/main", kMostTextBytes).text;
  while (!main.empty() && std::isspace(static_cast<unsigned char>(main.back())) != 0) {
    main.pop_back();
  }
  if (!main.empty() && PathExists(folder + "/" + main)) return folder + "/" + main;
  const std::vector<std::string> all = NamesIn(folder);
  return all.empty() ? "" : folder + "/" + all[0];
}

}  // namespace

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

std::string HowToGetWeights(const std::string& directory) {
  const std::vector<std::string> names = NamesIn(directory);
  const auto first = [&](const auto& is) {
    const auto at = std::find_if(names.begin(), names.end(), is);
    return at == names.end() ? std::string() : *at;
  };
  const std::string gguf = first([](const std::string& n) { return n.ends_with(".gguf"); });
  const std::string torch = first([](const std::string& n) {
    return n.ends_with(".bin") &&
           (n.starts_with("pytorch_model") || n.starts_with("adapter_model"));
  });
  const std::string file = torch.empty() ? gguf : torch;
  if (file.empty()) return "";
  if (file.starts_with("adapter_model")) {
    return ", but " + file + ", which is not read: peft's save_pretrained() writes safetensors";
  }
  const std::string from =
      "'" + directory + "'" + (torch.empty() ? ", gguf_file='" + gguf + "'" : std::string());
  const auto convert = [&](const char* what) {
    return std::string("t.") + what + ".from_pretrained(" + from + ").save_pretrained('" +
           directory + "-st')";
  };
  return ", but " + file + ", which is not read; transformers converts it to " + directory +
         "-st: `python3 -c \"import transformers as t; " + convert("AutoModelForCausalLM") + "; " +
         convert("AutoTokenizer") + "\"` (with the Auto class of its kind of model)";
}

std::string WhatItIs(const std::string& directory) {
  if (PathExists(directory + "/snapshots")) {
    const std::string snapshot = SnapshotOf(directory);
    return ". It is a folder of the Hugging Face Hub's cache" +
           (snapshot.empty() ? ", without a snapshot" : ": the model is " + snapshot);
  }
  return HowToGetWeights(directory);
}

void RefuseWhatIsNoCheckpoint(const std::string& directory) {
  for (const char* file : {"/manifest.json", "/config.json"}) {
    if (PathExists(directory + file)) return;
  }
  const std::string what = WhatItIs(directory);
  if (!what.empty()) throw CheckpointError(directory + ": holds no checkpoint" + what);
}

}  // namespace fsdp
