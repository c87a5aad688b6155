#include "trainer/weights/hf_hints.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/testing/error_of.h"
#include "tests/testing/fresh_directory.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/weights/hf_weights.h"
#include "trainer/weights/initial_weights.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::ErrorOf;
using testing::FreshDirectory;

void Write(const std::string& path, const std::string& text = "x") {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path) << text;
}

// The words of model.init_from.
std::string Refused(const std::string& directory) {
  return ErrorOf([&] { OpenInitialWeights(directory); }, "none");
}

TEST(HfHints, AFolderOfTheHubsCacheHasSnapshots) {
  const std::string cache = FreshDirectory("hub") + "/models--org--name";
  Write(cache + "/snapshots/bbb/config.json");
  Write(cache + "/snapshots/aaa/config.json");
  EXPECT_TRUE(Refused(cache).ends_with("cache: the model is " + cache + "/snapshots/aaa"))
      << Refused(cache);
  Write(cache + "/refs/main", "bbb\n");
  EXPECT_TRUE(Refused(cache).ends_with("/snapshots/bbb")) << Refused(cache);
  EXPECT_EQ(ErrorOf([&] { RefuseWhatIsNoCheckpoint(cache); }),
            cache +
                ": holds no checkpoint. It is a folder of the Hugging Face Hub's cache: the "
                "model is " +
                cache + "/snapshots/bbb");
  Write(cache + "/refs/main", "gone");
  EXPECT_TRUE(Refused(cache).ends_with("/snapshots/aaa")) << Refused(cache);
}

TEST(HfHints, OtherFormatsAreConverted) {
  const auto words = [](const std::string& file, const std::string& config) {
    const std::string directory = FreshDirectory("format");
    Write(directory + "/" + file);
    if (!config.empty()) Write(directory + "/config.json", config);
    const std::string error = Refused(directory);
    EXPECT_NE(error.find("but " + file + ", which is not read"), std::string::npos) << error;
    EXPECT_NE(error.find(".save_pretrained('" + directory + "-st')"), std::string::npos) << error;
    return error;
  };
  for (const std::string& config : {std::string(), std::string(R"({"model_type": "gpt2"})")}) {
    for (const char* file : {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin"}) {
      EXPECT_EQ(words(file, config).find("gguf_file"), std::string::npos);
    }
    EXPECT_NE(words("model.Q8_0.gguf", config).find("gguf_file='model.Q8_0.gguf'"),
              std::string::npos);
  }
  // Beside what is read they are of no interest.
  const std::string good = FreshDirectory("both");
  fs::copy("tests/fixtures/gpt2/one_head", good);
  Write(good + "/pytorch_model.bin");
  EXPECT_EQ(Refused(good), "none");
  EXPECT_EQ(ErrorOf([&] { RefuseWhatIsNoCheckpoint(good); }, "none"), "none");
  const std::string adapter = FreshDirectory("adapter_bin");
  Write(adapter + "/adapter_model.bin");
  EXPECT_NE(Refused(adapter).find("peft's save_pretrained() writes safetensors"),
            std::string::npos);
}

TEST(HfHints, PointersOfLfsAreNamed) {
  const std::string directory = FreshDirectory("lfs"), file = directory + "/model.safetensors";
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 2336927755\n";
  Write(directory + "/config.json", R"({"model_type": "gpt2"})");
  Write(file, pointer);
  EXPECT_EQ(Refused(directory), file +
                                    ": is a pointer of Git LFS, not the file itself: `git lfs "
                                    "pull` in its directory fetches it");
  Write(directory + "/config.json", pointer);
  EXPECT_EQ(Refused(directory), directory +
                                    "/config.json:1:1: is a pointer of Git LFS, not the file "
                                    "itself: `git lfs pull` in its directory fetches it");
}

}  // namespace
}  // namespace fsdp
