// Something else has the name of a file that is read whole: every start ends, with one error and
// the exit code of its kind, in the memory that a start takes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr const char* kLimit = "";  // Sanitizers reserve terabytes of addresses.
#else
constexpr const char* kLimit = "ulimit -v 4000000 && ";
#endif

// The binary in so much memory, behind `input`, a shell's words that end in a pipe.
Outcome Limited(const TempDir& dir, const Strings& arguments, const std::string& input = "") {
  std::string command = input + "{ " + kLimit + "exec " + BinaryPath();
  for (const std::string& argument : arguments) command += " '" + argument + "'";
  Process::Options options;
  options.program = "bash";
  options.output_directory = dir.path();
  return Process({"-c", command + "; }"}, options).Wait();
}

struct Thing {
  const char* name;
  std::function<void(const std::string& path)> make;
};

const std::vector<Thing>& Things() {
  static const std::vector<Thing> things = {
      {"a pipe", [](auto& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0666), 0); }},
      {"/dev/zero", [](auto& path) { fs::create_symlink("/dev/zero", path); }},
      {"a directory", [](auto& path) { fs::create_directory(path); }},
      {"a socket",
       [](auto& path) {
         const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
         sockaddr_un address{};
         address.sun_family = AF_UNIX;
         std::strcpy(address.sun_path, "s");
         const fs::path here = fs::current_path();
         fs::current_path(fs::path(path).parent_path());  // Its name must be short.
         const int bound = ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
         fs::rename("s", path);
         fs::current_path(here);
         ::close(fd);
         ASSERT_EQ(bound, 0);
       }},
      {"a sparse TiB",
       [](auto& path) {
         ::close(::creat(path.c_str(), 0666));
         ASSERT_EQ(::truncate(path.c_str(), int64_t{1} << 40), 0);
       }},
  };
  return things;
}

constexpr const char* kSparse = "a sparse TiB";

// In place of `path`, each of them: `call` ends with `code` and one line that names the path. A
// sparse file, where that is a file like any other, ends with `sparse`.
void ExpectRefused(const std::string& path, int code, const std::function<Outcome()>& call,
                   int sparse = -1) {
  for (const Thing& thing : Things()) {
    SCOPED_TRACE(path + " is " + thing.name);
    fs::remove_all(path);
    thing.make(path);
    const Outcome outcome = call();
    EXPECT_FALSE(outcome.timed_out);
    const int want = sparse >= 0 && thing.name == kSparse ? sparse : code;
    EXPECT_EQ(outcome.code, want) << outcome.Text();
    if (want == 0) continue;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_NE(outcome.err.find(path + ": "), std::string::npos) << outcome.err;
  }
  fs::remove_all(path);
}

TEST(WholeFiles, OfTheCommandLine) {
  Job job;
  const std::string path = job.dir() / "given";
  Strings flags = job.Flags();
  flags.insert(flags.begin() + 2, {"--config", path});
  ExpectRefused(path, 2, [&] { return Limited(job.dir(), flags); });
  ExpectRefused(path, 2, [&] {
    return Limited(job.dir(),
                   {"plan", "--config", job.recipe(), "--world-size", "2", "--hardware", path});
  });
  EXPECT_FALSE(Exists(job.run_dir()));
}

TEST(WholeFiles, ARecipeMayComeThroughAPipe) {
  Job job;
  const auto train = [&](const std::string& input, const std::string& config) {
    Strings flags = job.Flags();
    flags.insert(flags.begin() + 2, {"--config", config});
    return Limited(job.dir(), flags, input);
  };
  const std::string steps = "{ sleep 0.1; echo 'train: {steps: 3}'; } | ";
  const Outcome piped = train(steps, "/dev/stdin");
  EXPECT_EQ(piped.code, 0) << piped.Text();
  EXPECT_EQ(LastStep(job.run_dir()), 3);
  // A launcher has read it before its ranks do, who would train by the recipe without it.
  Strings launch = job.LaunchArguments(2, {"run.dir=" + job.RunDir("launched")});
  launch.insert(launch.end(), {"--config", "/dev/stdin"});
  const Outcome launched = Limited(job.dir(), launch, steps);
  EXPECT_EQ(launched.code, 2) << launched.Text();
  EXPECT_NE(launched.err.find("/dev/stdin: is empty: "), std::string::npos) << launched.err;
  EXPECT_FALSE(Exists(job.run_dir()));
  const Outcome endless = train("yes '# a comment' | ", "/dev/stdin");
  EXPECT_EQ(endless.code, 2) << endless.Text();
  EXPECT_NE(endless.err.find("/dev/stdin: has more than 16777216 bytes"), std::string::npos)
      << endless.err;
}

TEST(WholeFiles, OfARunDirectory) {
  Job job;
  const Strings saving = {"checkpoint={every: 5, keep_last: 0}"};
  ASSERT_EQ(job.Train(saving).code, 0);
  const std::string saved = job.run_dir();
  const auto start = [&](const std::string& run) {
    Strings flags = job.Flags({saving[0], "train.steps=12", "run.dir=" + run});
    return Limited(job.dir(), flags);
  };
  struct File {
    const char* name;
    int sparse;  // Exit code with a sparse file; 0: the start replaces it.
  };
  for (const File& file : {File{"recipe.yaml", 0}, File{"provenance.json", 0}, File{".shared", 0},
                           File{"metrics.jsonl", 5}, File{"checkpoints/latest", 5},
                           File{"checkpoints/step_10/manifest.json", 5}}) {
    const std::string run = job.dir() / "copy";
    fs::remove_all(run);
    fs::copy(saved, run, fs::copy_options::recursive);
    ExpectRefused(
        run + "/" + file.name, 5, [&] { return start(run); }, file.sparse);
  }

  // One that came to its end and saved nothing: its recipe is set aside, and nobody reads it.
  job.RunDir("unsaved");
  ASSERT_EQ(job.Train({"checkpoint.every=null"}).code, 0);
  fs::remove(job.run_dir() + "/recipe.yaml");
  ASSERT_EQ(::mkfifo((job.run_dir() + "/recipe.yaml").c_str(), 0666), 0);
  const Outcome over = start(job.run_dir());
  EXPECT_EQ(over.code, 0) << over.Text();
  EXPECT_EQ(Limited(job.dir(), {"report", job.run_dir()}).code, 0);
  for (const char* name : {"recipe.yaml", "provenance.json"}) {  // Left out of the page.
    fs::remove(job.run_dir() + "/" + name);
    ASSERT_EQ(::mkfifo((job.run_dir() + "/" + name).c_str(), 0666), 0);
  }
  EXPECT_EQ(Limited(job.dir(), {"report", job.run_dir()}).code, 0);
  ExpectRefused(
      job.run_dir() + "/metrics.jsonl", 5,
      [&] {
        return Limited(job.dir(), {"report", job.run_dir()});
      },
      0);
}

TEST(WholeFiles, OfAModelToBeginWith) {
  Job job;
  const std::string model = job.dir() / "model";
  fs::create_directory(model);
  const Strings settings = {"model.init_from=" + model};
  Strings check = job.Flags(settings);
  check.insert(check.begin(), {"config", "check"});
  const auto call = [&] {
    EXPECT_FALSE(Limited(job.dir(), check).timed_out);
    return Limited(job.dir(), job.Flags(settings));
  };
  ExpectRefused(model + "/config.json", 5, call);
  job.dir().Write("model/config.json",
                  R"({"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2,
                      "vocab_size": 64, "n_positions": 16, "n_inner": 64})");
  ExpectRefused(model + "/model.safetensors.index.json", 5, call);
  ExpectRefused(model + "/model.safetensors", 5, call);
}

TEST(WholeFiles, OfData) {
  Job job;
  const std::string tokens = job.dir() / "tokens";
  const std::string text = job.dir().Write("text", std::string(3000, 'a'));
  ASSERT_EQ(Call({"tokenize", "--tokenizer", "bytes", "--out", tokens, text}).code, 0);
  const auto train = [&](const std::string& data) {
    return Limited(job.dir(), job.Flags({"model.vocab_size=256", "data.train=" + data}));
  };
  ExpectRefused(tokens + "/tokens.json", 4,
                [&] { return train("{source: tokens, paths: [\"" + tokens + "/*.bin\"]}"); });
  const std::string tokenizer = job.dir() / "tokenizer.json";
  ExpectRefused(tokenizer, 4, [&] {
    return train("{source: text, tokenizer: " + tokenizer + ", paths: [" + text + "]}");
  });
  job.dir().Write("tokenizer.json", "");
  const Outcome empty =
      Limited(job.dir(), {"tokenize", "--tokenizer", tokenizer, "--out", job.dir() / "out", text});
  EXPECT_EQ(empty.code, 4) << empty.Text();
  EXPECT_NE(empty.err.find("tokenizer: " + tokenizer + ": is empty"), std::string::npos)
      << empty.err;
  EXPECT_EQ(empty.err.find("data.*.paths"), std::string::npos) << empty.err;
  job.dir().Write("tokenizer.json", "{}");
  ExpectRefused(job.dir() / "tokenizer_config.json", 4, [&] {
    return train("{source: text, tokenizer: " + tokenizer + ", paths: [" + text + "]}");
  });
}

// As in a cache of the Hugging Face Hub, the files of which are links. Not as if it were absent.
TEST(WholeFiles, ALinkThatLeadsNowhereIsNamed) {
  Job job;
  const std::string model = job.dir() / "model";
  fs::copy("tests/fixtures/gpt2/one_head", model);
  const std::string text = job.dir().Write("text", std::string(3000, 'a'));
  const auto call = [&](Strings arguments) {
    const Strings where = {"--checkpoint", model};
    arguments.insert(arguments.begin() + 1, where.begin(), where.end());
    return Limited(job.dir(), arguments);
  };
  const Strings generate = {"generate", "--prompt-ids", "1,2", "--max-tokens", "2"};
  const Strings prompt = {"generate", "--prompt", "a", "--max-tokens", "2"};
  const std::string recipe = job.dir().Write(
      "eval.yaml", "data: {train: {source: text, paths: [" + text +
                       "], tokenizer: bytes}, valid: {fraction: "
                       "0.5}, seq_len: 8}\ntrain: {micro_batch_size: 2, global_batch_size: 4}\n");
  const Strings eval = {"eval", "--config", recipe};
  const struct {
    const char* name;
    const Strings& arguments;
    int code;
  } cases[] = {{"config.json", generate, 5},
               {"config.json", eval, 5},
               {"model.safetensors", generate, 5},
               {"model.safetensors", eval, 5},
               {"generation_config.json", generate, 5},
               {"tokenizer.json", prompt, 4},
               {"tokenizer.model", prompt, 4},
               {"tokenizer_config.json", prompt, 4}};
  ASSERT_EQ(call(generate).code, 0);
  ASSERT_EQ(call(eval).code, 0);
  for (const auto& c : cases) {
    for (const std::string target : {"/gone/blob", c.name}) {
      SCOPED_TRACE(std::string(c.name) + " -> " + target + ", " + c.arguments[0]);
      const std::string path = model + "/" + c.name, kept = job.dir() / "kept";
      if (fs::exists(path)) fs::rename(path, kept);
      fs::create_symlink(target, path);
      const bool beside = std::string(c.name) == "tokenizer_config.json";
      if (beside) fs::copy("tests/fixtures/tokenizers/gpt2.json", model + "/tokenizer.json");
      const Outcome outcome = call(c.arguments);
      EXPECT_EQ(outcome.code, c.code) << outcome.Text();
      EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
      EXPECT_NE(outcome.err.find(path + ": "), std::string::npos) << outcome.err;
      fs::remove(path);
      if (beside) fs::remove(model + "/tokenizer.json");
      if (fs::exists(kept)) fs::rename(kept, path);
    }
  }
}

}  // namespace
}  // namespace fsdp::e2e
