// `fsdp-train calibrate`: a file that simulates, and one error where there is none to be made.
#include <gtest/gtest.h>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Calibrate, WritesAFileThatAStepIsSimulatedWith) {
  Job job;
  TempDir directory;
  const std::string file = directory / "here.yaml";
  const Outcome made =
      Call({"calibrate", "--small", "--rounds", "1", "--device", "cpu", "--out", file});
  EXPECT_EQ(made.code, 0) << made.Text();
  EXPECT_TRUE(Has(made.err, "calibrate: products and operations in bf16, round 1 of 1\n"));
  EXPECT_TRUE(made.out.starts_with(file + ": ")) << made.out;
  const std::string line = Call({"devices"}).out;
  // The kind, without the way in which it multiplies bf16.
  const std::string kernels = line.substr(0, line.find('\n')).substr(line.find(", kernels ") + 10);
  const std::string kind = kernels.substr(0, kernels.find(' '));
  EXPECT_TRUE(Has(ReadFile(file), "\nkernels: " + kind + "\n")) << kind << "\n" << ReadFile(file);
  for (const char* dtype : {"fp32", "bf16"}) {
    const Outcome said = Call({"simulate", "--config", job.recipe(), "--set",
                               std::string("fsdp.mixed_precision.param_dtype=") + dtype,
                               "--world-size", "2", "--hardware", file, "--json"});
    EXPECT_EQ(said.code, 0) << said.Text();
    const Json step = Json::parse(said.out);
    EXPECT_GT(step["step_time_s"].get<double>(), 0);
    EXPECT_GT(step["floor_s"].get<double>(), 0);
    EXPECT_GE(step["step_time_s"].get<double>(), step["floor_s"].get<double>());
    EXPECT_FALSE(Has(said.err, "kernels")) << said.err;
  }
}

// Whatever reads the file says that this process would take another time, where it would.
TEST(Calibrate, AFileOfOtherKernelsIsNamed) {
  Job job;
  TempDir directory;
  const std::string file = directory / "here.yaml";
  EXPECT_EQ(Call({"calibrate", "--small", "--rounds", "1", "--device", "cpu", "--out", file}).code,
            0);
  // They differ in bf16, and in fp32 too from those of a processor without AVX-512.
  const Variables other = {{"FSDP_TRAIN_ISA", "amx_emulated"}};
  const bool in_fp32 = !__builtin_cpu_supports("avx512f");
  const Strings more[] = {{"simulate", "--world-size", "1"},
                          {"simulate", "--world-size", "1", "--sweep", "world_size=1,2"},
                          {"plan", "--world-size", "1", "--json"},
                          {"plan", "--world-size", "1", "--search"},
                          {"bench", "floor"}};
  for (const Strings& command : more) {
    for (const std::string dtype : {"bf16", "fp32"}) {
      Strings call = command;
      for (const std::string& word :
           {std::string("--config"), job.recipe(), std::string("--set"),
            "fsdp.mixed_precision.param_dtype=" + dtype, std::string("--hardware"), file}) {
        call.push_back(word);
      }
      const Outcome outcome = Call(call, other);
      EXPECT_EQ(outcome.code, 0) << outcome.Text();
      const std::string text = outcome.err + outcome.out;
      const size_t note =
          text.find(" kernels, and this process has amx_emulated: a step in " + dtype);
      EXPECT_EQ(note != std::string::npos, dtype == "bf16" || in_fp32) << outcome.Text();
      EXPECT_FALSE(Has(text.substr(note + 1), " kernels, and this process has")) << "said twice";
    }
  }
}

TEST(Calibrate, AStepSetsWhatIsReached) {
  Job job;
  TempDir directory;
  const std::string plain = directory / "plain.yaml", file = directory / "here.yaml";
  const Strings call = {"calibrate", "--small", "--rounds", "1", "--device", "cpu"};
  const auto calibrate = [&](Strings more) {
    Strings whole = call;
    whole.insert(whole.end(), more.begin(), more.end());
    return Call(whole);
  };
  const Outcome made = calibrate({"--out", file, "--step", job.recipe()});
  EXPECT_EQ(made.code, 0) << made.Text();
  EXPECT_TRUE(Has(made.err, "calibrate: a step of " + job.recipe() + ", round 1\n"));
  const std::string text = ReadFile(file);
  EXPECT_TRUE(Has(text, "reached: \"calibrate: a step of " + job.recipe() + "\"")) << text;
  // Kernels alone, in caches, are faster than those of a step. Nothing of the run is left.
  EXPECT_EQ(calibrate({"--out", plain}).code, 0);
  EXPECT_FALSE(Has(ReadFile(plain), "reached"));
  EXPECT_FALSE(Exists(job.run_dir()));

  const Outcome none = calibrate({"--out", directory / "no.yaml", "--step", "/nowhere.yaml"});
  EXPECT_EQ(none.code, 2);
  EXPECT_TRUE(Has(none.err, "/nowhere.yaml")) << none.err;
  EXPECT_FALSE(Has(none.err, "products")) << "it has begun to measure";
  EXPECT_FALSE(Exists(directory / "no.yaml"));
}

TEST(Calibrate, TakesMeasurementsOfThisProgram) {
  TempDir directory;
  const Outcome ops = Call(
      {"bench", "ops",     "--device", "cpu",     "--json", "--seconds", "0",  "--only",
       "loss",  "--batch", "1",        "--seq",   "8",      "--hidden",  "16", "--intermediate",
       "32",    "--heads", "2",        "--vocab", "64"});
  EXPECT_EQ(ops.code, 0) << ops.Text();
  const std::string file = directory / "from.yaml";
  const Outcome made =
      Call({"calibrate", "--out", file, "--from", directory.Write("ops.json", ops.out)});
  EXPECT_EQ(made.code, 0) << made.Text();
  const std::string text = ReadFile(file);
  EXPECT_TRUE(Has(text, "name: cpu\n")) << text;
  EXPECT_TRUE(Has(text, "kernels: " + Json::parse(ops.out)["kernels"].get<std::string>() + "\n"));
  EXPECT_TRUE(Has(text, "\"head_loss_forward_backward, fp32\": ")) << text;
  EXPECT_TRUE(Has(text, "calibrate: from ")) << text;
  EXPECT_FALSE(Has(text, "launch_s")) << text;
  // --overheads measures what those files lack, if they are of this machine.
  const Strings more = {"calibrate", "--out",    file, "--overheads",
                        "--small",   "--rounds", "1",  "--from"};
  const auto calibrate = [&](const std::string& from) {
    Strings call = more;
    call.push_back(from);
    return Call(call);
  };
  const Outcome both = calibrate(directory / "ops.json");
  EXPECT_EQ(both.code, 0) << both.Text();
  EXPECT_EQ(both.err, "calibrate: copies and overheads, round 1 of 1\n");
  const std::string whole = ReadFile(file);
  for (const char* key : {"head_loss_forward_backward, fp32", "launch_s", "operation_s", "memory",
                          "copy_bytes_per_s", "host_copy_bytes_per_s"}) {
    EXPECT_TRUE(Has(whole, key)) << key << whole;
  }
  std::string other = ops.out;
  other.replace(other.find("\"cpu\""), 5, "\"a GPU\"");
  EXPECT_NE(calibrate(directory.Write("other.json", other)).code, 0);
}

TEST(Calibrate, RefusesWhatIsNoResult) {
  TempDir directory;
  const std::string file = directory / "from.yaml";
  const auto refused = [&](const Strings& from) {
    Strings call = {"calibrate", "--out", file, "--from"};
    call.insert(call.end(), from.begin(), from.end());
    const Outcome outcome = Call(call);
    EXPECT_EQ(outcome.code, 2) << outcome.Text();
    EXPECT_FALSE(Exists(file));
    return outcome.err;
  };
  EXPECT_TRUE(Has(refused({directory.Write("a.json", "{\"loss\": 1}\n")}),
                  "a.json: no result of `bench gemm|ops|comm --json`, nor a result.json"));
  EXPECT_TRUE(Has(refused({directory / "none.json"}), "none.json: "));
  EXPECT_TRUE(Has(refused({directory.Write("empty.json", "{\"parts\": {}, \"missing\": []}\n")}),
                  "--from has no product, operation, copy or collective"));
  const Outcome both = Call({"calibrate", "--out", file, "--from", "a", "--rounds", "2"});
  EXPECT_EQ(both.code, 2) << both.Text();
  EXPECT_EQ(Call({"calibrate", "--out", file, "--overheads"}).code, 2);
}

}  // namespace
}  // namespace fsdp::e2e
