#include "trainer/bench/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>

#include "tests/testing/error_of.h"
#include "trainer/bench/calibrate.h"
#include "trainer/bench/op_bench.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

constexpr char kSource[] = "calibrate: a test";
constexpr char kSamples[] = "tests/trainer/bench/testdata/";

Measurements Some() {
  Measurements measured;
  measured.name = "a machine";
  measured.kernels = "avx512";
  measured.memory = 1000;
  measured.cores = 4;
  measured.products = {{.multiplies = true, .flops = 30, .seconds = 1},
                       {.multiplies = true, .flops = 10, .seconds = 3},
                       {.dtype = DType::kBFloat16, .multiplies = true, .flops = 7, .seconds = 1}};
  measured.ops = {{.op = "gelu_forward", .bytes = 20, .seconds = 2},
                  {.op = "gelu_forward", .bytes = 40, .seconds = 1},
                  {.op = "gelu_forward", .dtype = DType::kFloat16, .bytes = 5, .seconds = 1},
                  {.op = "attention_backward", .multiplies = true, .flops = 9, .seconds = 3}};
  measured.copies = {3, 5, 4};
  measured.launch_s = 2e-6;
  measured.host.event_s = 3e-6;
  measured.groups = {{.ranks = 4,
                      .times = {{Collective::kAllGather, 1024, 3e-6, 0},
                                {Collective::kReduceScatter, 1024, 6e-6, 0},
                                {Collective::kAllGather, 1 << 20, 3e-6 + 1e-3, 0},
                                {Collective::kAllToAll, 1 << 20, 2e-3, 0},
                                {Collective::kAllReduce, 1 << 20, 9.0, 0}}}};
  return measured;
}

TEST(Calibration, RatesAreOfAllFlopsAndBytesOverAllSeconds) {
  const Hardware machine = HardwareOf(Some(), kSource);
  EXPECT_EQ(machine.kernels, "avx512");
  EXPECT_EQ(machine.fp32_flops, 10);
  EXPECT_EQ(machine.bf16_flops, 7);
  EXPECT_FALSE(machine.fp16_flops.has_value());
  EXPECT_EQ(machine.product_share, 1);
  EXPECT_EQ(machine.op_bytes_per_s.at("gelu_forward, fp32"), 20);
  EXPECT_EQ(machine.op_bytes_per_s.at("gelu_forward, fp16"), 5);
  EXPECT_EQ(machine.op_flops_per_s.at("attention_backward, fp32"), 3);
  EXPECT_EQ(machine.op_flops_per_s.size(), 1u);
  EXPECT_EQ(machine.attention_backward_flops, 3);
  EXPECT_FALSE(machine.attention_forward_flops.has_value());
  EXPECT_EQ(machine.copy_bytes_per_s, 5);
  EXPECT_EQ(machine.launch_s, 2e-6);
  EXPECT_EQ(machine.host.event_s, 3e-6);
}

TEST(Calibration, RatesOfAttentionAreThoseOfBf16) {
  Measurements measured = Some();  // Its own backward pass is in fp32, at 3.
  measured.ops.push_back({.op = "attention_forward", .multiplies = true, .flops = 8, .seconds = 2});
  for (const double flops : {50, 70}) {
    measured.ops.push_back({.op = "attention_forward",
                            .dtype = DType::kBFloat16,
                            .multiplies = true,
                            .flops = flops,
                            .seconds = 1});
  }
  const Hardware machine = HardwareOf(measured, kSource);
  EXPECT_EQ(machine.attention_forward_flops, 60);
  EXPECT_EQ(machine.attention_backward_flops, 3);
}

TEST(Calibration, ARingHasAStepAndARate) {
  const Hardware machine = HardwareOf(Some(), kSource);
  ASSERT_TRUE(machine.network.has_value());
  EXPECT_EQ(machine.network->ranks_per_host, 4);
  const LinkRates& inside = machine.network->inside;
  EXPECT_DOUBLE_EQ(*inside.ring_step_s, 1e-6);
  EXPECT_NEAR(*inside.ring_bytes_per_s, 0.75 * (1 << 20) / 1e-3, 1);
  EXPECT_NEAR(*inside.all_to_all_bytes_per_s, 0.75 * (1 << 20) / 2e-3, 1);
  EXPECT_FALSE(inside.all_to_all_step_s.has_value());  // There was no short one.
}

// On a busy machine the shortest message may take longer than a long one.
TEST(Calibration, ARingHasARateWhateverItsStep) {
  Measurements measured = Some();
  measured.groups = {
      {.ranks = 2,
       .times = {{Collective::kAllGather, 1024, 1, 0}, {Collective::kAllGather, 1 << 20, 0.5, 0}}}};
  const Hardware machine = HardwareOf(measured, kSource);
  EXPECT_NEAR(*machine.network->inside.ring_bytes_per_s, (1 << 20) / 2 / 0.25, 1);
}

TEST(Calibration, EveryNumberHasItsSourceAndTheFileIsReadBack) {
  const Hardware machine = HardwareOf(Some(), kSource);
  for (const auto& [key, source] : machine.sources) EXPECT_EQ(source, kSource) << key;
  const std::string path = ::testing::TempDir() + "/calibrated.yaml";
  std::ofstream(path) << WriteHardware(machine);  // Throws where a number has none.
  const Hardware again = ReadHardware(path);
  EXPECT_EQ(WriteHardware(again), WriteHardware(machine));
  EXPECT_EQ(again.op_bytes_per_s, machine.op_bytes_per_s);
  EXPECT_EQ(again.op_flops_per_s, machine.op_flops_per_s);
}

TEST(Calibration, NothingMeasuredIsRefused) {
  Measurements nothing;
  nothing.name = "a machine";
  EXPECT_THROW(HardwareOf(nothing, kSource), std::invalid_argument);
}

TEST(Calibration, OperationsHaveTheNamesThatAStepHas) {
  const OpBenchOptions fp32;
  OpBenchOptions bf16;
  bf16.dtype = DType::kBFloat16;
  const auto gelu = MainOperationOf("gelu, forward", fp32);
  ASSERT_TRUE(gelu.has_value());
  EXPECT_EQ(gelu->op, "gelu_forward");
  EXPECT_FALSE(gelu->multiplies);
  const auto attention = MainOperationOf("attention, backward", bf16);
  ASSERT_TRUE(attention.has_value());
  EXPECT_EQ(attention->op, "attention_backward");
  EXPECT_TRUE(attention->multiplies);
  EXPECT_FALSE(MainOperationOf("adamw, all bf16", bf16).has_value());
  EXPECT_TRUE(MainOperationOf("adamw, bf16 copy", bf16).has_value());
  EXPECT_FALSE(MainOperationOf("no such case", fp32).has_value());
}

// Small shapes whose times would fit a rate of 1,000 FLOP/s and long sides, on a machine where no
// product has more than 100.
TEST(Calibration, NoRateIsAboveTheBestOfProducts) {
  const auto seconds = [](double m, double sides) {
    const double flops = m * m * 64;
    return TimedWork{.op = "linear_forward",
                     .multiplies = true,
                     .flops = flops,
                     .seconds = (flops + sides * 2 * flops / m) / 1000,
                     .ends = m * m,
                     .sides = 2 * flops / m};
  };
  Measurements measured = Some();
  measured.products.clear();  // Nobody knows better then.
  measured.ops = {seconds(16, 160), seconds(32, 160)};
  for (const TimedWork& work : measured.ops) EXPECT_LT(work.flops / work.seconds, 100);
  Hardware machine = HardwareOf(measured, kSource);
  EXPECT_NEAR(machine.op_flops_per_s.at("linear_forward, fp32"), 1000, 1e-6);
  EXPECT_NEAR(machine.op_sides.at("linear_forward, fp32"), 160, 1e-6);
  measured.products = {{.multiplies = true, .flops = 100, .seconds = 1}};
  machine = HardwareOf(measured, kSource);
  EXPECT_NEAR(machine.op_flops_per_s.at("linear_forward, fp32"), 100, 1e-9);
  EXPECT_GT(machine.op_sides.at("linear_forward, fp32"), 0);
}

TEST(Calibration, ThisMachineIsMeasured) {
  Measurements measured;
  measured.name = "here";
  int lines = 0;
  Measure(
      {.ranks = 2, .rounds = 2, .seconds = 0, .small = true}, [&](const std::string&) { ++lines; },
      measured);
  EXPECT_EQ(lines, 1 + 2 * (1 + 3));
  const Hardware machine = HardwareOf(measured, kSource);
  EXPECT_TRUE(machine.fp32_flops && machine.bf16_flops && machine.fp16_flops);
  EXPECT_TRUE(machine.copy_bytes_per_s && machine.host_copy_bytes_per_s);
  EXPECT_TRUE(machine.attention_forward_flops && machine.attention_backward_flops);
  EXPECT_GT(machine.launch_s, 0);
  EXPECT_GT(machine.host.operation_s, 0);
  EXPECT_GT(machine.host.wait_s, 0);
  EXPECT_TRUE(machine.network->inside.ring_step_s && machine.network->inside.ring_bytes_per_s);
  EXPECT_TRUE(machine.network->inside.all_to_all_bytes_per_s.has_value());
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    for (const char* op : {"layer_norm_forward", "adamw", "rope", "embedding_backward"}) {
      EXPECT_TRUE(machine.op_bytes_per_s.contains(std::string(op) + ", " + dtype)) << op;
    }
    for (const char* op : {"linear_forward", "linear_backward", "head_loss_forward_backward"}) {
      EXPECT_TRUE(machine.op_flops_per_s.contains(std::string(op) + ", " + dtype)) << op;
    }
  }
  EXPECT_FALSE(WriteHardware(machine).empty());
}

// Products alone, as fast as those of the operations can be.
Measurements OfProductsAt(double rate) {
  Measurements measured = Some();
  measured.products.push_back({.multiplies = true, .flops = rate, .seconds = 1});
  measured.ops.clear();
  return measured;
}

// Sums of 8 and of 128 terms at 100 FLOP/s, where their ends take as long as 24 terms.
TEST(Calibration, FindsTheEndsOfShortSums) {
  Measurements measured = OfProductsAt(110);
  const auto add = [&](double k, double miss) {
    const double ends = 50, flops = ends * k;
    measured.ops.push_back({.op = "linear_forward",
                            .multiplies = true,
                            .flops = flops,
                            .seconds = (flops + 24 * ends) / 100 * miss,
                            .ends = ends});
  };
  add(8, 1);
  add(128, 1);
  Hardware machine = HardwareOf(measured, kSource);
  EXPECT_NEAR(machine.op_flops_per_s.at("linear_forward, fp32"), 100, 1e-9);
  EXPECT_NEAR(machine.op_terms.at("linear_forward, fp32"), 24, 1e-9);
  // A shape that is off by a tenth moves both by about as much.
  add(32, 1.1);
  machine = HardwareOf(measured, kSource);
  EXPECT_NEAR(machine.op_flops_per_s.at("linear_forward, fp32"), 100, 10);
  EXPECT_NEAR(machine.op_terms.at("linear_forward, fp32"), 24, 4);
  // Sums of one length alone: a rate, and no ends.
  measured.ops.clear();
  add(8, 1);
  add(8, 1);
  machine = HardwareOf(measured, kSource);
  EXPECT_NEAR(machine.op_flops_per_s.at("linear_forward, fp32"), 25, 1e-9);
  EXPECT_TRUE(machine.op_terms.empty());
}

// At 100 FLOP/s, where ends take as long as 24 terms and sides as long as 6 rows and columns.
TEST(Calibration, FindsTheSidesOfNarrowResults) {
  Measurements measured = OfProductsAt(110);
  const auto add = [&](double m, double n, double k) {
    const double ends = m * n, flops = ends * k, sides = flops * (1 / m + 1 / n);
    measured.ops.push_back({.op = "linear_forward",
                            .multiplies = true,
                            .flops = flops,
                            .seconds = (flops + 24 * ends + 6 * sides) / 100,
                            .ends = ends,
                            .sides = sides});
  };
  add(64, 8, 8);
  add(64, 64, 8);
  add(64, 8, 128);
  add(32, 32, 32);
  Hardware machine = HardwareOf(measured, kSource);
  EXPECT_NEAR(machine.op_flops_per_s.at("linear_forward, fp32"), 100, 1e-6);
  EXPECT_NEAR(machine.op_terms.at("linear_forward, fp32"), 24, 1e-6);
  EXPECT_NEAR(machine.op_sides.at("linear_forward, fp32"), 6, 1e-6);
  // One shape is fitted by its rate, whatever it is made of.
  measured.ops.resize(1);
  machine = HardwareOf(measured, kSource);
  EXPECT_NEAR(machine.op_flops_per_s.at("linear_forward, fp32"),
              measured.ops[0].flops / measured.ops[0].seconds, 1e-6);
  EXPECT_TRUE(machine.op_terms.empty());
  EXPECT_TRUE(machine.op_sides.empty());
}

TEST(CalibrationFiles, ReadsWhatBenchAndTheKitSay) {
  Measurements measured;
  for (const char* name : {"ops.json", "gemm.json", "comm.json"}) {
    AddMeasurements(std::string(kSamples) + name, measured);
  }
  const Hardware machine = HardwareOf(measured, kSource);
  EXPECT_EQ(machine.name, "NVIDIA Sample");
  EXPECT_EQ(machine.device, Hardware::Device::kCuda);
  EXPECT_EQ(machine.bf16_flops, 3e12 / 0.5);
  EXPECT_EQ(machine.copy_bytes_per_s, 2.5e12);
  EXPECT_EQ(machine.op_bytes_per_s.at("layer_norm_forward, bf16"), 1e9 / 1e-3);
  EXPECT_EQ(machine.op_flops_per_s.at("attention_forward, bf16"), 4e9 / 1e-3);
  EXPECT_EQ(machine.attention_forward_flops, 4e9 / 1e-3);
  EXPECT_EQ(machine.network->ranks_per_host, 2);
  EXPECT_DOUBLE_EQ(*machine.network->inside.ring_step_s, 2e-5);
}

constexpr char kLinear[] = "linear up, forward";

// That case on a GPU at 100 TFLOP/s, where the ends of sums take as long as 24 terms.
TimedWork LinearAt(const OpShapes& shapes) {
  TimedWork work = *MainOperationOf(
      kLinear, {.shapes = shapes, .dtype = DType::kBFloat16, .device = DeviceType::kCuda});
  work.seconds = (work.flops + 24 * work.flops / static_cast<double>(shapes.hidden)) / 100e12;
  return work;
}

// The file that `bench ops` writes of it.
std::string FileOf(const TimedWork& work, const OpShapes& shapes, bool name_shapes) {
  std::ostringstream text;
  text.precision(17);
  text << R"({"device": "GPU", "dtype": "bf16", "copy_gb_per_s": 1, )";
  if (name_shapes) {
    text << R"("shapes": {"batch": )" << shapes.batch << R"(, "seq": )" << shapes.seq
         << R"(, "hidden": )" << shapes.hidden << R"(, "intermediate": )" << shapes.intermediate
         << R"(, "heads": )" << shapes.heads << R"(, "vocab": )" << shapes.vocab << "}, ";
  }
  text << R"("ops": [{"name": ")" << kLinear << R"(", "flops": )" << work.flops
       << R"(, "bytes": 1, "seconds": )" << work.seconds << "}]}";
  std::string path = ::testing::TempDir() + "/linear.json";
  std::ofstream(path) << text.str();
  return path;
}

TEST(CalibrationFiles, LengthsOfSumsAreThoseOfTheShapes) {
  for (const bool name_shapes : {true, false}) {
    Measurements measured;
    double flops = 0, seconds = 0;
    for (const int64_t hidden : {96, 960}) {
      const OpShapes shapes{.hidden = hidden};
      const TimedWork work = LinearAt(shapes);
      AddMeasurements(FileOf(work, shapes, name_shapes), measured);
      flops += work.flops;
      seconds += work.seconds;
    }
    const Hardware machine = HardwareOf(measured, kSource);
    const double rate = machine.op_flops_per_s.at("linear_forward, bf16");
    if (name_shapes) {
      EXPECT_NEAR(rate, 100e12, 1e6);
      EXPECT_NEAR(machine.op_terms.at("linear_forward, bf16"), 24, 1e-6);
    } else {  // All FLOPs over all seconds, for nobody knows how long the sums were.
      EXPECT_NEAR(rate, flops / seconds, 1e6);
      EXPECT_TRUE(machine.op_terms.empty());
    }
  }
}

TEST(CalibrationFiles, ReadsTheKit) {
  Measurements measured;
  AddMeasurements(std::string(kSamples) + "kit.json", measured);
  const Hardware machine = HardwareOf(measured, kSource);
  EXPECT_EQ(machine.name, "NVIDIA Sample 80GB");
  EXPECT_EQ(machine.bf16_flops, 500e12);  // A row that is not fine counts for nothing.
  EXPECT_EQ(machine.copy_bytes_per_s, 2e12);
  EXPECT_EQ(machine.op_bytes_per_s.at("rope, bf16"), 1e9 / 2e-3);
  EXPECT_FALSE(machine.network.has_value());
}

// A CPU's results name their kind of kernels, and no two kinds go into one file.
TEST(CalibrationFiles, AreOfOneKindOfKernels) {
  const std::string path = ::testing::TempDir() + "/kinds.json";
  const auto write = [&](const std::string& device) {
    std::ofstream(path) << "{" + device + R"("dtype": "fp32", "copy_gb_per_s": 1, "ops": []})";
  };
  Measurements measured;
  write(R"("device": "cpu", )");  // By an older program.
  AddMeasurements(path, measured);
  EXPECT_EQ(measured.kernels, std::nullopt);
  write(R"("device": "cpu", "kernels": "amx", )");
  AddMeasurements(path, measured);
  AddMeasurements(path, measured);
  EXPECT_EQ(HardwareOf(measured, kSource).kernels, "amx");
  const auto why = [&] {
    return testing::ErrorOf<ConfigError>([&] { AddMeasurements(path, measured); });
  };
  write(R"("device": "cpu", "kernels": "avx2", )");
  EXPECT_THAT(why(), HasSubstr("is of avx2 kernels, and what was read before of amx"));
  write(R"("device": "cpu", "kernels": "axm", )");
  EXPECT_THAT(why(), HasSubstr("kernels: is no kind of kernels"));
}

std::string WhyNot(const std::string& text) {
  const std::string path = ::testing::TempDir() + "/result.json";
  std::ofstream(path) << text;
  Measurements measured;
  return testing::ErrorOf<ConfigError>([&] { AddMeasurements(path, measured); });
}

TEST(CalibrationFiles, RefusesWhatIsNoResult) {
  for (const char* text : {"", "{}", "[1]", "no json", R"({"seconds": 1})"}) {
    EXPECT_THAT(WhyNot(text), HasSubstr("result.json: ")) << text;
    EXPECT_THAT(WhyNot(text), HasSubstr("no result of `bench gemm|ops|comm --json`")) << text;
  }
  EXPECT_THAT(WhyNot(R"({"products": "own", "parts": [{"dtype": "fp8", "flops": 1}]})"),
              HasSubstr("parts[0].dtype: want fp32, bf16 or fp16"));
  EXPECT_THAT(WhyNot(R"({"products": "own", "parts": [{"dtype": "bf16", "flops": 0}]})"),
              HasSubstr("parts[0].flops: want a number above 0"));
  const auto of_shapes = [](const std::string& shapes) {
    return WhyNot(R"({"device": "cpu", "dtype": "fp32", "copy_gb_per_s": 1, "shapes": {)" + shapes +
                  R"(, "intermediate": 32, "vocab": 64},
                     "ops": [{"name": "rope", "seconds": 1}]})");
  };
  EXPECT_EQ(of_shapes(R"("batch": 1, "seq": 8, "hidden": 16, "heads": 2)"), "");
  EXPECT_THAT(of_shapes(R"("batch": 1, "seq": 8, "hidden": 16)"), HasSubstr("heads"));
  EXPECT_THAT(of_shapes(R"("batch": 1, "seq": 0, "hidden": 16, "heads": 2)"), HasSubstr("seq"));
  EXPECT_THAT(of_shapes(R"("batch": 1, "seq": 8, "hidden": 16, "heads": 3)"),
              HasSubstr("want an even number for each of 3 heads"));
  EXPECT_THAT(of_shapes(R"("batch": 65536, "seq": 65536, "hidden": 16, "heads": 2)"),
              HasSubstr("shapes: are too many tokens"));
  Measurements measured;
  EXPECT_THROW(AddMeasurements("no/such/file.json", measured), ConfigError);
  measured.name = "another";
  EXPECT_THROW(AddMeasurements(std::string(kSamples) + "ops.json", measured), ConfigError);
}

}  // namespace
}  // namespace fsdp
