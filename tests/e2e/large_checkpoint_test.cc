// A checkpoint in the shape of Llama 3 70B is resharded, exported, imported and verified in little
// memory, which does not grow with it. Files are sparse (sparse_probe.cc): reading them and hashing
// what they hold is not.
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "models/make_model.h"
#include "models/shape_json.h"
#include "tests/e2e/run_binary.h"
#include "tests/e2e/sparse_values.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/weights/hf_tensors.h"
#include "trainer/weights/hf_weights.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;

// 80 are the whole model; the tensors are as large with one.
int64_t Layers() {
  const char* text = std::getenv("LARGE_CHECKPOINT_LAYERS");
  return text ? std::atoll(text) : 1;
}

struct Measured {
  int status = -1;
  int64_t peak = 0;  // Bytes resident.
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
  std::string what = fs::path(arguments[0]).filename();
  for (size_t i = 1; i < 3; ++i) what += " " + fs::path(arguments[i]).filename().string();
  std::printf("%s: peak %.0f MiB resident, %.1f s\n", what.c_str(),
              static_cast<double>(run.peak) / (1 << 20),
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
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

constexpr int64_t kMost = 2'000'000'000;  // Bytes; what is asked for.

TEST(LargeCheckpoint, TakesLittleMemory) {
  const Directory dir;
  const std::string saved = dir / "saved", resharded = dir / "resharded", theirs = dir / "theirs";
  const std::string imported = dir / "imported";
  const auto command = [](const Strings& arguments) {
    Strings all = {fs::absolute("cmd/fsdp-train"), "checkpoint"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Measured run = RunUnderProbe(all);
    EXPECT_EQ(run.status, 0) << arguments[0];
    EXPECT_LT(run.peak, kMost) << arguments[0];
    EXPECT_GT(run.peak, 1 << 20) << arguments[0];  // It was measured.
  };
  ASSERT_EQ(RunUnderProbe(
                {fs::absolute("tests/e2e/sparse_checkpoint"), saved, std::to_string(Layers()), "8"})
                .status,
            0);
  command({"reshard", saved, "--world-size", "6", "--shard-size", "3", "--out", resharded});
  command({"verify", resharded});
  command({"export", resharded, "--out", theirs, "--dtype", "bf16"});
  command({"import", theirs, "--out", imported});

  CheckpointReader reader(resharded), again(imported);
  EXPECT_EQ(reader.manifest().world, 6);
  EXPECT_EQ(reader.manifest().shards, 3);
  const int64_t bytes = reader.manifest().DataBytes();
  std::printf("%.1f GB of fp32 weights\n", static_cast<double>(bytes) / 1e9);
  EXPECT_GT(bytes, int64_t{10'000'000'000});
  EXPECT_LT(TakenOnDisk(dir.path()), bytes / 10);  // Or a full disk would be next.
  const auto model = MakeModel(ShapeFromJson(reader.manifest().meta.config));
  const HfTensors tensors(*model);
  const HfWeights weights(theirs);
  weights.RequireAll(tensors);
  for (const auto& [tensor, slice] : tensors.tensors()) {
    const Parameter& p = *tensor;
    const int64_t size = p.shape().NumElements();
    for (const bool last : {false, true}) {
      const int64_t at = last ? size - 2 : 0;
      const float value = SparseValue(p.name(), last);
      const std::vector<float> want =
          last ? std::vector<float>{0, value} : std::vector{value, 0.0f};
      std::vector<float> got(2);
      reader.Read("master", p.name(), p.shape(), at, got);
      EXPECT_EQ(got, want) << p.name();
      weights.FillParameter(p, at, got);
      EXPECT_EQ(got, want) << p.name();
      again.Read("master", p.name(), p.shape(), at, got);
      EXPECT_EQ(got, want) << p.name();
    }
  }
}

}  // namespace
}  // namespace fsdp::e2e
