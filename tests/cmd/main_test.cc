// The binary as a shell sees it: what goes to which stream, and the exit codes.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/everything.h"
#include "tests/testing/json.h"
#include "tests/testing/peers_typed.h"

namespace {

struct Result {
  int code = -1;  // 128 + signal where one ended it.
  std::string out, err;
};

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string Path(const std::string& name) { return ::testing::TempDir() + "/" + name; }

// `arguments` as typed in a shell.
Result Call(const std::string& arguments) {
  const std::string command =
      "cmd/fsdp-train " + arguments + " >'" + Path("out") + "' 2>'" + Path("err") + "'";
  const int status = std::system(command.c_str());
  Result result;
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = Read(Path("out"));
  result.err = Read(Path("err"));
  return result;
}

std::string Write(const std::string& name, const std::string& text) {
  std::ofstream(Path(name)) << text;
  return Path(name);
}

std::string Good() {
  return Write("good.yaml",
               "model: {family: gpt2, hidden_size: 8, num_hidden_layers: 1, num_attention_heads: "
               "1}\ndata: {train: {paths: [" +
                   Write("x.txt", std::string(200, 'x')) + "]}}\n");
}

TEST(Cli, ConfigCheckSaysOk) {
  const Result result = Call("config check --config " + Good());
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out.substr(0, 3), "ok\n");
  // (256 + 1024) 8 + 12 8 8 + 13 8 + 2 8
  EXPECT_NE(result.out.find("vocabulary 256: 11,128 parameters"), std::string::npos) << result.out;
  EXPECT_EQ(result.err, "");
}

// Every flag with a number, of every command: found in the helps.
TEST(Cli, NumbersThatAreNoneAreUsageErrors) {
  const std::regex flag(R"((?:^|\n) +(--[a-z-]+) (\S*(?:FLOAT|POSITIVE|INT)\S*))");
  int flags = 0, of_fractions = 0;
  for (const char* command :
       {"plan", "simulate", "collective", "generate", "tokenize", "bench ops", "bench comm",
        "bench gemm", "bench floor", "calibrate", "checkpoint reshard", "launch"}) {
    const std::string help = Call(std::string(command) + " --help").out;
    for (std::sregex_iterator at(help.begin(), help.end(), flag), end; at != end; ++at) {
      const std::string name = (*at)[1], type = (*at)[2];
      const bool fractions = type.find("INT") == std::string::npos;
      std::vector<std::string> values = {"nan", "1e308", std::string(300, '9')};
      if (fractions) values = {"nan", "-nan", "inf", "-inf", "1e999", "infinity"};
      if (!fsdp::testing::AllCases())
        values = {values[(fsdp::testing::Part(6) + flags) % values.size()]};
      ++flags;
      of_fractions += fractions ? 1 : 0;
      for (const std::string& value : values) {
        SCOPED_TRACE(std::string(command) + " " + name + " " + value);
        const Result result = Call(std::string(command) + " " + name + " " + value);
        EXPECT_EQ(result.code, 2) << result.err;
        EXPECT_NE(result.err.find(name), std::string::npos) << result.err;
        EXPECT_LT(result.err.size(), 300) << result.err;
      }
    }
  }
  EXPECT_GE(of_fractions, 6);
  EXPECT_GE(flags, 35);
}

TEST(Cli, ConfigCheckListsEveryMistakeOnce) {
  const std::string bad = Write("bad.yaml", "train: {steps: x}\n");
  const Result result = Call("config check --config " + Good() + " --config " + bad +
                             " --set optimizer.lr=-1 --set optimizer.state_dtype=fp8");
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err,
            bad + ":1:16: train.steps: want an integer of at least 1, got the text `x`\n" +
                "--set optimizer.lr=-1: optimizer.lr: want a number of at least 0, got -1\n" +
                "--set optimizer.state_dtype=fp8: optimizer.state_dtype: want `fp32`, `bf16` or "
                "`8bit`, got the text `fp8`\n");
}

TEST(Cli, ConfigPrintReadsBack) {
  const Result first = Call("config print --config " + Good() +
                            " --set 'data.train.paths=[a, \"b c\"]' --set train.steps=5");
  EXPECT_EQ(first.code, 0);
  EXPECT_NE(first.out.find("    paths: [a, \"b c\"]\n"), std::string::npos) << first.out;
  EXPECT_NE(first.out.find("  steps: 5\n"), std::string::npos);
  const Result second = Call("config print --config " + Write("printed.yaml", first.out));
  EXPECT_EQ(second.code, 0);
  EXPECT_EQ(second.out, first.out);
}

TEST(Cli, SchemaAndDocsNeedNoRecipe) {
  const Result schema = Call("config schema");
  EXPECT_EQ(schema.code, 0);
  EXPECT_EQ(schema.out.substr(0, 16), "{\n  \"$schema\": \"");
  const Result docs = Call("config docs");
  EXPECT_EQ(docs.code, 0);
  EXPECT_EQ(docs.out, Read("docs/recipe.md"));
}

TEST(Cli, ListsWhatThereIs) {
  const Result version = Call("--version");
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out.substr(0, 11), "fsdp-train ");
  const Result models = Call("models");
  EXPECT_EQ(models.code, 0);
  EXPECT_NE(models.out.find("gpt2-124m"), std::string::npos);
  EXPECT_NE(models.out.find("1557611200\n"), std::string::npos);
  const auto found = fsdp::testing::Json::parse(Call("models --json").out);
  EXPECT_EQ(found.size(), static_cast<size_t>(std::ranges::count(models.out, '\n') - 1));
  const auto of = [&](const std::string& name) {
    return *std::ranges::find_if(found, [&](const auto& one) { return one["name"] == name; });
  };
  EXPECT_EQ(of("gpt2-1.5b")["parameters"], 1557611200);
  // 6 N S, and 6 L H S^2 of causal attention.
  const double gpt2 = of("gpt2-124m")["flops_per_sample"];
  EXPECT_NEAR(gpt2, 6 * 123.6e6 * 1024 + 6.0 * 12 * 768 * 1024 * 1024, 0.005 * gpt2);
  EXPECT_EQ(of("gpt2-124m")["seq_len"], 1024);
  EXPECT_EQ(of("vit-base")["family"], "vit");
  EXPECT_TRUE(of("vit-base")["seq_len"].is_null());
  const Result devices = Call("devices");
  EXPECT_EQ(devices.code, 0);
  EXPECT_EQ(devices.out.substr(0, 6), "cpu   ");
  EXPECT_NE(devices.out.find("\ncuda  "), std::string::npos);  // GPUs, or why there are none.
  EXPECT_NE(devices.out.find("libnccl.so.2: "), std::string::npos);
  EXPECT_NE(devices.out.find("\nsim "), std::string::npos);
  const Result help = Call("--help");
  EXPECT_EQ(help.code, 0);
  EXPECT_NE(help.out.find("75 stopped early"), std::string::npos);
  EXPECT_NE(help.out.find("128 + n where signal n ended it"), std::string::npos);
}

TEST(Cli, HelpPrintsPages) {
  const Result list = Call("help");
  EXPECT_EQ(list.code, 0);
  EXPECT_NE(list.out.find("\n  benchmarks/cpu         The CPU device, measured\n"),
            std::string::npos)
      << list.out;
  // A page without links is as it is; its topic and its file are names of it.
  const std::string metrics = Read("docs/metrics.md");
  const std::string said = Call("help metrics").out;
  EXPECT_EQ(said.substr(0, 250), metrics.substr(0, 250));
  EXPECT_EQ(Call("help docs/metrics.md").out, said);
  EXPECT_EQ(Call("help cpu.md").out, Call("help benchmarks/cpu").out);
  // Links name files; what looks like a link in code is code.
  EXPECT_NE(said.find("(docs/training.md)"), std::string::npos);
  EXPECT_NE(said.find("(tests/e2e/metrics_doc_test.cc)"), std::string::npos);
  EXPECT_EQ(said.find("](training.md"), std::string::npos);
  EXPECT_NE(Call("help adding_a_model").out.find("[&](Tape& t, const Var&)"), std::string::npos);
  EXPECT_EQ(Call("help plan").out, Call("plan --help").out);
  EXPECT_EQ(Call("help plann").err,
            "help: there is no page `plann`: did you mean `plan`? `fsdp-train help` lists them\n");
  EXPECT_EQ(Call("help plann").code, 2);
}

// All flags whose value is any text, as "command --flag", and all commands below this one.
void VisitHelp(const std::string& command, std::set<std::string>& texts, int& paths) {
  const Result help = Call(command + " --help");
  ASSERT_EQ(help.code, 0) << command;
  std::istringstream lines(help.out);
  bool commands = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with(":") && line[0] != ' ') commands = line == "Subcommands:";
    if (!line.starts_with("  ") || line[2] == ' ') continue;
    std::istringstream words(line);
    std::string name, value;
    words >> name >> value;
    if (commands) {
      VisitHelp(command + " " + name, texts, paths);
      continue;
    }
    if (value.starts_with("TEXT") && !value.starts_with("TEXT:"))
      texts.insert(command + " " + name);
    paths += value.starts_with("FILE") || value.starts_with("DIR") || value.starts_with("PATH");
  }
}

// A new flag is put on this list, or its value is called FILE, DIR or PATH: then it is a path.
TEST(Cli, FlagsThatArePathsSaySo) {
  std::set<std::string> texts;
  int paths = 0;
  VisitHelp("", texts, paths);
  EXPECT_EQ(texts,
            (std::set<std::string>{" bench ops --only", " checkpoint export --max-shard-size",
                                   " generate --prompt", " launch --rdzv-endpoint",
                                   " launch --rdzv-id", " tokenize --column"}));
  EXPECT_GE(paths, 30);
}

TEST(Cli, ATildeIsTheHomeDirectory) {
  const std::string good = Good();
  const std::string home = good.substr(0, good.rfind('/'));
  ::setenv("HOME", home.c_str(), 1);
  EXPECT_EQ(Call("config check --config='~/good.yaml'").code, 0);
  EXPECT_EQ(Call("config check --config '~/good.yaml' --set run.dir='~/a b'").out.substr(0, 3),
            "ok\n");
  EXPECT_NE(Call("config print --config '~/good.yaml' --set run.dir='~/a b'")
                .out.find("  dir: \"" + home + "/a b\"\n"),
            std::string::npos);
  EXPECT_NE(Call("checkpoint ls '~/none'").err.find(home + "/none"), std::string::npos);
  EXPECT_NE(Call("generate --prompt x --checkpoint='~/none'").err.find(home + "/none"),
            std::string::npos);
  for (const char* command : {"generate --prompt x", "eval", "report", "checkpoint ls",
                              "checkpoint verify", "checkpoint export --out o"}) {
    for (const char* before : {" ", " --checkpoint "}) {  // Either way of naming a run.
      const std::string err = Call(std::string(command) + before + "'~/none'").err;
      EXPECT_NE(err.find(home + "/none"), std::string::npos) << command << before << err;
    }
  }
  EXPECT_NE(Call("plan --config '~/good.yaml' --world-size 1 --hardware='~/none.yaml'")
                .err.find(home + "/none.yaml"),
            std::string::npos);
  EXPECT_EQ(Call("tokenize --tokenizer bytes --out='~/shards' '~/x.txt'").code, 0);
  EXPECT_TRUE(std::filesystem::is_directory(home + "/shards"));
  EXPECT_FALSE(std::filesystem::exists("~"));
}

TEST(Cli, UsageErrorsExitWith2) {
  for (const std::string arguments :
       {"", "--nonsense", "nonsense", "config", "config nonsense", "config check", "config print",
        "config check --config", "config check --config /nonexistent.yaml", "config check --set",
        "config check --config a extra"}) {
    const Result result = Call(arguments);
    EXPECT_EQ(result.code, 2) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
    EXPECT_NE(result.err, "") << arguments;
  }
  EXPECT_EQ(Call("config check --config " + Good() + " --set steps").err,
            "--set steps: want KEY=VALUE\n");
  EXPECT_EQ(Call("--config " + Good() + " config check").code, 2);
}

// Flags and commands of other trainers, by a table that was written by hand.
TEST(Cli, OtherTrainersWordsAreKnown) {
  int commands = 0;
  for (const fsdp::testing::PeersTyped& peers : fsdp::testing::ReadPeersTyped()) {
    if (!peers.is_command) continue;
    ++commands;
    const Result result = Call(peers.typed);
    EXPECT_EQ(result.code, 2) << peers.typed;
    EXPECT_TRUE(peers.IsIn(result.err)) << peers.typed << "\n" << result.err;
  }
  EXPECT_GE(commands, 25);
}

TEST(Cli, DeviceIsARecipeKey) {
  const Result result = Call("--config " + Good() + " --device gpu");
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.err,
            "--set run.device=gpu: run.device: want `auto`, `cpu`, `cuda` or `sim`, got the text "
            "`gpu`; did you mean `cuda`?\n");
}

TEST(Cli, AFullDiskIsAnError) {
  const int status = std::system("cmd/fsdp-train config docs >/dev/full 2>/dev/null");
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

TEST(Cli, OutputHasNoColours) {
  for (const char* arguments : {"models", "config", "config docs", "--help"}) {
    const Result result = Call(arguments);
    EXPECT_EQ((result.out + result.err).find('\x1b'), std::string::npos) << arguments;
  }
}

}  // namespace
