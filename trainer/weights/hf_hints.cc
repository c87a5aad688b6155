#include "trainer/weights/hf_hints.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/paths.h"
#include "trainer/core/read_file.h"
#include "trainer/data/hub_cache.h"

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
  const std::string other = first([](const std::string& n) {
    const std::string end = fs::path(n).extension();
    return end == ".h5" || end == ".msgpack" || end == ".pth" || end == ".pt" || end == ".ckpt";
  });
  const std::string file = torch.empty() ? gguf : torch;
  if (file.empty() && other.empty()) return "";
  if (file.empty()) {
    return ", but " + other +
           ", which is not read: transformers' save_pretrained() writes safetensors";
  }
  if (file.starts_with("adapter_model")) {
    return ", but " + file + ", which is not read: peft's save_pretrained() writes safetensors";
  }
  std::string converted = directory;
  while (converted.size() > 1 && converted.ends_with('/')) converted.pop_back();
  converted += "-st";
  const bool is_gguf = torch.empty();
  return ", but " + file + ", which is not read; transformers converts it to " + converted +
         ": `python3 -c 'import sys, transformers as t; "
         "[getattr(t, n).from_pretrained(sys.argv[1]" +
         (is_gguf ? ", gguf_file=sys.argv[3]" : "") +
         ").save_pretrained(sys.argv[2]) for n in (\"AutoModelForCausalLM\", "
         "\"AutoTokenizer\")]' " +
         ShellWord(directory) + " " + ShellWord(converted) +
         (is_gguf ? " " + ShellWord(gguf) : "") + "` (with the Auto class of its kind of model)";
}

std::string WhatItIs(const std::string& directory) {
  const std::string cache = WhereInHubCache(directory);
  return cache.empty() ? HowToGetWeights(directory) : cache;
}

void RefuseWhatIsNoCheckpoint(const std::string& directory) {
  std::error_code ignored;
  if (fs::is_regular_file(directory, ignored)) {
    const std::string folder = (fs::path(".") / directory).parent_path().lexically_normal();
    std::string cure = folder + " holds no safetensors" + HowToGetWeights(folder);
    for (const char* file : {"/model.safetensors", "/model.safetensors.index.json"}) {
      if (PathExists(folder + file)) cure = "give the directory that holds it, " + folder;
    }
    throw CheckpointError(directory + ": is a file, not a directory: " + cure);
  }
  for (const char* file : {"/manifest.json", "/config.json"}) {
    if (PathExists(directory + file)) return;
  }
  const std::string what = WhatItIs(directory);
  if (!what.empty()) throw CheckpointError(directory + ": holds no checkpoint" + what);
}

}  // namespace fsdp
