#include "trainer/weights/hf_hints.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/testing/error_of.h"
#include "tests/testing/fresh_directory.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/core/paths.h"
#include "trainer/data/data_files.h"
#include "trainer/data/tokenizers/tokenizer.h"
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
  EXPECT_TRUE(Refused(cache).ends_with("cache: its files are in " + cache + "/snapshots/aaa"))
      << Refused(cache);
  Write(cache + "/refs/main", "bbb\n");
  EXPECT_TRUE(Refused(cache).ends_with("/snapshots/bbb")) << Refused(cache);
  EXPECT_TRUE(Refused(cache + "/snapshots").ends_with("/snapshots/bbb"));
  for (const auto& open : {std::function<void()>([&] { OpenTokenizer(cache); }),
                           std::function<void()>([&] { ExpandTextPaths(std::vector{cache}); })}) {
    const std::string error = ErrorOf<DataError>(open);
    EXPECT_TRUE(error.ends_with("cache: its files are in " + cache + "/snapshots/bbb")) << error;
  }
  EXPECT_EQ(ErrorOf([&] { RefuseWhatIsNoCheckpoint(cache); }),
            cache +
                ": holds no checkpoint. It is a folder of the Hugging Face Hub's cache: its "
                "files are in " +
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
    EXPECT_NE(error.find("]' " + directory + " " + directory + "-st"), std::string::npos) << error;
    return error;
  };
  for (const std::string& config : {std::string(), std::string(R"({"model_type": "gpt2"})")}) {
    for (const char* file : {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin"}) {
      EXPECT_EQ(words(file, config).find("gguf_file"), std::string::npos);
    }
    const std::string gguf = words("model.Q8_0.gguf", config);
    EXPECT_NE(gguf.find("(sys.argv[1], gguf_file=sys.argv[3])"), std::string::npos) << gguf;
    EXPECT_NE(gguf.find("-st model.Q8_0.gguf`"), std::string::npos) << gguf;
  }
  // As a shell reads it, and where the file itself is named.
  const std::string named = FreshDirectory("it's named");
  Write(named + "/a.gguf");
  EXPECT_NE(Refused(named).find(ShellWord(named) + " " + ShellWord(named + "-st") + " a.gguf`"),
            std::string::npos)
      << Refused(named);
  EXPECT_NE(Refused(named + "/a.gguf").find(": is a file, not a directory: " + named + " holds no"),
            std::string::npos)
      << Refused(named + "/a.gguf");
  Write(named + "/model.safetensors");
  EXPECT_TRUE(Refused(named + "/a.gguf").ends_with("the directory that holds it, " + named));
  const std::string keras = FreshDirectory("keras");
  Write(keras + "/tf_model.h5");
  EXPECT_NE(Refused(keras).find(", but tf_model.h5, which is not read"), std::string::npos);
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
