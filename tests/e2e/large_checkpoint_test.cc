// Weights in the shape of Llama 3 70B, in bf16, are imported, resharded, exported and verified in
// little memory, which does not grow with them. Files are sparse (sparse_probe.cc): reading them,
// converting and hashing what they hold is not.
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <variant>

#include "models/llama/config.h"
#include "models/shape.h"
#include "tests/e2e/run_binary.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/core/dtype.h"
#include "trainer/core/philox.h"
#include "trainer/weights/hf_config.h"
#include "trainer/weights/hf_tensors.h"
#include "trainer/weights/hf_weights.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;

// LARGE_CHECKPOINT_LAYERS layers, 80 of which are the whole model. Without it there is one, and the
// vocabulary's tables are as large as the layer's matrices, 0.9 GB each in fp32.
LlamaConfig Shape() {
  LlamaConfig shape = *FindModelPreset("llama3-70b")->As<LlamaConfig>();
  const char* layers = std::getenv("LARGE_CHECKPOINT_LAYERS");
  shape.num_hidden_layers = layers ? std::atoll(layers) : 1;
  if (layers == nullptr) shape.vocab_size = shape.intermediate_size;
  return shape;
}

struct Measured {
  int status = -1;
  int64_t peak = 0;  // Bytes resident.
  double seconds = 0, cpu_seconds = 0;
};

// In an environment of its own, with the probe.
Measured RunUnderProbe(const Strings& arguments) {
  Strings environment = {"LD_PRELOAD=" + fs::absolute("tests/e2e/sparse_probe.so").string()};
  std::vector<char*> argv, envp;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  for (const std::string& e : environment) envp.push_back(const_cast<char*>(e.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  const auto begin = std::chrono::steady_clock::now();
  pid_t pid = 0;
  Measured run;
  if (posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), envp.data()) != 0) return run;
  rusage usage{};
  if (wait4(pid, &run.status, 0, &usage) != pid) return run;
  run.peak = usage.ru_maxrss * 1024;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  run.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return run;
}

// In memory where that can be: reading holes of a disk's file fills the page cache, at a tenth of
// the speed.
class Directory {
 public:
  Directory() {
    for (const std::string& parent : {std::string("/dev/shm"), ::testing::TempDir()}) {
      path_ = parent + "/large_checkpoint_XXXXXX";
      if (mkdtemp(path_.data()) != nullptr) return;
    }
    throw std::runtime_error("no directory for the test");
  }
  ~Directory() { fs::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

int64_t TakenOnDisk(const std::string& directory) {
  int64_t bytes = 0;
  struct stat status;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (stat(entry.path().c_str(), &status) == 0) bytes += status.st_blocks * 512;
  }
  return bytes;
}

// The first or last element of a tensor: a whole number from 1 to 128, which bf16 holds.
float ValueOf(std::string_view tensor, bool last) {
  return static_cast<float>(1 + HashBytes(tensor, last ? 2 : 1) % 128);
}

// A Hugging Face directory in bf16, holes but for each tensor's first and last element. Returns the
// elements there are.
int64_t WriteSparse(const std::string& directory, const ModelShape& shape) {
  fs::create_directories(directory);
  std::ofstream(directory + "/config.json") << HfConfigToJson(shape, "bfloat16");
  const auto model = MakeModel(shape);
  const HfTensors tensors(*model);
  Json header;
  int64_t bytes = 0;
  for (const auto& [parameter, slice, buffer, table] : tensors.tensors()) {
    Json dims;
    for (int i = 0; i < slice->shape.rank(); ++i) dims.push_back(slice->shape[i]);
    const int64_t end = bytes + 2 * slice->shape.NumElements();
    header[slice->name] = {{"dtype", "BF16"}, {"shape", dims}, {"data_offsets", {bytes, end}}};
    bytes = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::ofstream file(directory + "/model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length)) << text;
  auto at = static_cast<int64_t>(sizeof(length) + length);
  const auto put = [&](int64_t offset, float value) {
    const BFloat16 half(value);
    file.seekp(offset).write(reinterpret_cast<const char*>(&half), sizeof(half));
  };
  for (const auto& [parameter, slice, buffer, table] : tensors.tensors()) {
    const int64_t end = at + 2 * slice->shape.NumElements();
    put(at, ValueOf(slice->name, false));
    put(end - 2, ValueOf(slice->name, true));
    at = end;
  }
  EXPECT_TRUE(file.flush());
  return bytes / 2;
}

constexpr int64_t kMost = 200'000'000;  // Bytes: chunks of 64 MiB are the most that is held.

TEST(LargeCheckpoint, TakesLittleMemory) {
  const Directory dir;
  const std::string theirs = dir / "theirs", imported = dir / "imported";
  const std::string resharded = dir / "resharded", ours = dir / "ours";
  const LlamaConfig shape = Shape();
  const auto elements = static_cast<double>(WriteSparse(theirs, shape));
  std::printf("%.1f GB of bf16 weights\n", elements * 2 / 1e9);
  EXPECT_GT(elements, 1.3e9);
  // `bytes`: what an element has in all that is read and written.
  const auto command = [elements](double bytes, const Strings& arguments) {
    Strings all = {fs::absolute("cmd/fsdp-train"), "checkpoint"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Measured run = RunUnderProbe(all);
    EXPECT_EQ(run.status, 0) << arguments[0];
    EXPECT_LT(run.peak, kMost) << arguments[0];
    EXPECT_GT(run.peak, 1 << 20) << arguments[0];  // It was measured.
    std::printf(
        "%s: %.1f s, CPU %.1f s, %.0f MiB/s of bf16 weights, %.0f MiB/s read and written, "
        "peak %.0f MiB resident\n",
        arguments[0].c_str(), run.seconds, run.cpu_seconds, elements * 2 / run.seconds / (1 << 20),
        elements * bytes / run.seconds / (1 << 20), static_cast<double>(run.peak) / (1 << 20));
    std::fflush(stdout);
  };
  command(6, {"import", theirs, "--out", imported});
  command(8, {"reshard", imported, "--world-size", "6", "--shard-size", "3", "--out", resharded});
  command(6, {"export", resharded, "--out", ours, "--dtype", "bf16"});
  command(4, {"verify", resharded});

  CheckpointReader one(imported), six(resharded);
  EXPECT_EQ(six.manifest().world, 6);
  EXPECT_EQ(six.manifest().shards, 3);
  EXPECT_LT(TakenOnDisk(dir.path()), static_cast<int64_t>(elements));  // Or a full disk is next.
  const auto model = MakeModel(shape);
  const HfTensors tensors(*model);
  const HfWeights before(theirs), after(ours);
  after.RequireAll(tensors);
  for (const auto& [parameter, slice, buffer, table] : tensors.tensors()) {
    for (const bool last : {false, true}) {
      const int64_t at = last ? slice->shape.NumElements() - 2 : 0;
      const float value = ValueOf(slice->name, last);
      const std::vector<float> want =
          last ? std::vector<float>{0, value} : std::vector{value, 0.0f};
      std::vector<float> got(2);
      for (const HfWeights* weights : {&before, &after}) {
        weights->Fill(slice->name, slice->shape, at, got);
        EXPECT_EQ(got, want) << slice->name;
      }
      for (CheckpointReader* reader : {&one, &six}) {
        reader->Read("master", parameter->name(), parameter->shape(), slice->begin + at, got);
        EXPECT_EQ(got, want) << slice->name;
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::e2e
