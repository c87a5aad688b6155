#include "trainer/recipe/hardware.h"

#include <fnmatch.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/testing/error_of.h"
#include "tests/testing/hardware_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/units.h"
#include "trainer/ops/cpu/kinds.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string File(const std::string& text) {
  const std::string path = ::testing::TempDir() + "/hardware.yaml";
  std::ofstream(path) << text;
  return path;
}

std::string MistakesOf(const std::string& text) {
  return testing::ErrorOf<ConfigError>([&] { ReadHardware(File(text)); }, "none");
}

// Every key; sources of maps, and of single numbers.
constexpr char kAll[] = R"(name: a GPU
device: cuda
memory: 1000
outside: 10
host_memory: 5
bf16_flops: 1.5e+12
fp16_flops: 2
fp32_flops: 3
product_share: 0.5
multiprocessors: 7
tile_terms: 0
attention_forward_flops: 4
attention_backward_flops: 5
attention_64_forward_flops: 6
attention_64_backward_flops: 7
copy_bytes_per_s: 8
launch_s: 9
cores: 3
op_bytes_per_s: {adamw: 10, "linear_backward, dw": 11}
op_flops_per_s: {"linear_backward, bf16": 12}
op_terms: {"linear_backward, bf16": 48}
op_sides: {"linear_backward, bf16": 5}
reached: 1
unfused_bytes: 1.5
kernels_beside_collectives: 0.75
collectives_beside_kernels: 0.25
host_link_bytes_per_s: 12
host_copy_bytes_per_s: 13
disk_read_bytes_per_s: 14
disk_write_bytes_per_s: 15
host: {operation_s: 1, event_s: 2, wait_s: 3, allocation_s: 4, segment_s: 5, segment_s_per_byte: 0.5}
network:
  ranks_per_host: 8
  collective_s: 16
  inside: {ring_bytes_per_s: 1, ring_step_s: 0, all_to_all_bytes_per_s: 3, all_to_all_step_s: 4,
           ramp_bytes: 5}
  between: {ring_bytes_per_s: 6, ring_step_s: null}
sources: {memory: "data sheet: a", outside: "measured: b", host_memory: "assumed: c",
  bf16_flops: "data sheet: a", fp16_flops: "data sheet: a", fp32_flops: "data sheet: a",
  product_share: "calibrate: d", multiprocessors: "data sheet: a", tile_terms: "assumed: e",
  attention_forward_flops: "publication: f", attention_backward_flops: "publication: f",
  attention_64_forward_flops: "publication: f", attention_64_backward_flops: "publication: f",
  copy_bytes_per_s: "measured: g", launch_s: "assumed: h", cores: "assumed: h",
  op_flops_per_s: "calibrate: e", op_terms: "calibrate: e", op_sides: "calibrate: e",
  op_bytes_per_s: "calibrate: d", op_bytes_per_s.adamw: "measured: g",
  reached: "seen: 7b batch_2 256", unfused_bytes: "seen: 7c batch_16 64",
  kernels_beside_collectives: "seen: 7b batch_2 256", collectives_beside_kernels: "assumed: h",
  host_link_bytes_per_s: "publication: f", host_copy_bytes_per_s: "assumed: h",
  disk_read_bytes_per_s: "assumed: h", disk_write_bytes_per_s: "assumed: h", host: "calibrate: d",
  network: "assumed: h", network.inside: "publication: f",
  network.inside.ring_step_s: "publication: i"}
)";

TEST(HardwareTest, TakesWhatTheFileSays) {
  const Hardware gpu =
      ReadHardware(File("{name: a GPU, memory: 1000, sources: {memory: 'measured: here'}}"));
  EXPECT_EQ(gpu.name, "a GPU");
  EXPECT_EQ(gpu.device, Hardware::Device::kCuda);
  EXPECT_EQ(gpu.memory, 1000);
  EXPECT_EQ(gpu.host_link_bytes_per_s, std::nullopt);
  EXPECT_EQ(gpu.tile_terms, Hardware{}.tile_terms);
  EXPECT_EQ(gpu.reached, 1);
  EXPECT_FALSE(gpu.network);

  const Hardware all = ReadHardware(File(kAll));
  EXPECT_EQ(all.outside, 10);
  EXPECT_EQ(all.bf16_flops, 1.5e12);
  EXPECT_EQ(all.product_share, 0.5);
  EXPECT_EQ(all.tile_terms, 0);
  EXPECT_EQ(all.attention_64_backward_flops, 7);
  EXPECT_EQ(all.launch_s, 9);
  EXPECT_EQ(all.cores, 3);
  EXPECT_EQ(all.op_bytes_per_s,
            (std::map<std::string, double>{{"adamw", 10}, {"linear_backward, dw", 11}}));
  EXPECT_EQ(all.unfused_bytes, 1.5);
  EXPECT_EQ(all.collectives_beside_kernels, 0.25);
  EXPECT_EQ(all.disk_write_bytes_per_s, 15);
  EXPECT_EQ(all.host.allocation_s, 4);
  EXPECT_EQ(all.host.segment_s_per_byte, 0.5);
  ASSERT_TRUE(all.network);
  EXPECT_EQ(all.network->ranks_per_host, 8);
  EXPECT_EQ(all.network->inside.ring_step_s, 0);
  EXPECT_EQ(all.network->inside.ramp_bytes, 5);
  EXPECT_EQ(all.network->between.ring_bytes_per_s, 6);
  EXPECT_EQ(all.network->between.ring_step_s, std::nullopt);
  EXPECT_EQ(ReadHardware(File("{name: b, device: cpu, network: null}")).device,
            Hardware::Device::kCpu);
}

TEST(HardwareTest, ANumberHasItsOwnSourceOrThatOfItsMap) {
  const Hardware all = ReadHardware(File(kAll));
  EXPECT_EQ(SourceOf(all, "memory"), "data sheet: a");
  EXPECT_EQ(SourceOf(all, "op_bytes_per_s.adamw"), "measured: g");
  EXPECT_EQ(SourceOf(all, "op_bytes_per_s.linear_backward, dw"), "calibrate: d");
  EXPECT_EQ(SourceOf(all, "network.inside.ring_step_s"), "publication: i");
  EXPECT_EQ(SourceOf(all, "network.inside.ramp_bytes"), "publication: f");
  EXPECT_EQ(SourceOf(all, "network.between.ring_bytes_per_s"), "assumed: h");
  EXPECT_EQ(SourceOf(all, "nothing"), "");
  EXPECT_EQ(PointsSeen(all), (std::vector<std::string>{"7b batch_2 256", "7c batch_16 64"}));
  EXPECT_TRUE(PointsSeen(Hardware{}).empty());
}

TEST(HardwareTest, EveryMistakeHasItsPlace) {
  EXPECT_THAT(MistakesOf("name: a\nmemry: 5\nmemory: no\n"),
              AllOf(HasSubstr("hardware.yaml:2:1: memry: "), HasSubstr("did you mean `memory`?"),
                    HasSubstr("hardware.yaml:3:9: memory: want")));
  EXPECT_THAT(MistakesOf("device: cpu\n"), HasSubstr("hardware.yaml:1:1: name: missing"));
  EXPECT_THAT(MistakesOf("name: [\n"), HasSubstr("hardware.yaml:"));
  EXPECT_THROW(ReadHardware("/no/such/file.yaml"), ConfigError);
  // Inside of maps.
  EXPECT_THAT(
      MistakesOf("name: a\nnetwork:\n  inside: {ring_step: 1}\n  ranks_per_host: 0\nhost: 3\n"),
      AllOf(HasSubstr("hardware.yaml:3:12: network.inside.ring_step: unknown key; did you mean "
                      "`ring_step_s`?"),
            HasSubstr("hardware.yaml:4:19: network.ranks_per_host: want an integer of at least 1"),
            HasSubstr("hardware.yaml:5:7: host: want a map")));
  EXPECT_THAT(
      MistakesOf("name: a\nop_bytes_per_s: {adamw: 0, gemm: x, '': 1}\n"),
      AllOf(
          HasSubstr("hardware.yaml:2:25: op_bytes_per_s.adamw: want a number of at least 1 and of "
                    "at most 1e+18, got 0"),
          HasSubstr(
              "hardware.yaml:2:34: op_bytes_per_s.gemm: want a number of at least 1 and of at most "
              "1e+18, got the text `x`"),
          HasSubstr("hardware.yaml:2:37: op_bytes_per_s: a key is empty")));
  EXPECT_THAT(MistakesOf("name: a\nop_bytes_per_s: 5\nsources: []\n"),
              AllOf(HasSubstr("hardware.yaml:2:17: op_bytes_per_s: want a map"),
                    HasSubstr("hardware.yaml:3:10: sources: want a map")));
}

// "hardware.yaml:LINE:COLUMN: KEY: " of a value in HardwareYaml().
std::string PlaceOf(const std::string& text, const std::string& key, const std::string& value) {
  const size_t at = text.rfind(": " + value) + 2;
  const size_t line = text.rfind('\n', at);
  return "hardware.yaml:" +
         std::to_string(1 +
                        std::count(text.begin(), text.begin() + static_cast<int64_t>(at), '\n')) +
         ":" + std::to_string(at - line) + ": " + key + ": ";
}

TEST(HardwareTest, ANumberBeyondItsBoundsIsAMistakeThatNamesThem) {
  const std::vector<testing::HardwareNumber> numbers = testing::HardwareNumbers();
  EXPECT_GE(numbers.size(), 45);
  int refused = 0, taken = 0;
  for (const testing::HardwareNumber& number : numbers) {
    const std::string bounds = "want a number of at least " + Shortest(number.least) +
                               " and of at most " + Shortest(number.most) + ", got ";
    const double inf = HUGE_VAL;
    for (const double value : {number.least, number.most, std::nextafter(number.least, -inf),
                               std::nextafter(number.most, inf), 0.0, -1.0, 0.5, 1e-308, 5e-324,
                               1e300, 1e308, inf, -inf, std::nan("")}) {
      std::string word = std::isnan(value) ? ".nan" : value == inf ? ".inf" : Shortest(value);
      if (value == -inf) word = "-.inf";
      if (number.whole && std::abs(value) <= 0x1p60 && value == std::floor(value)) {
        word = std::to_string(static_cast<int64_t>(value));
      }
      const std::string text = testing::HardwareYaml({{number.key, word}});
      SCOPED_TRACE(text);
      const std::string mistake = MistakesOf(text);
      const bool is_whole = word.find_first_of(".e") == std::string::npos;
      if (value >= number.least && value <= number.most && (is_whole || !number.whole)) {
        EXPECT_EQ(mistake, "none");
        ++taken;
        continue;
      }
      EXPECT_THAT(mistake,
                  HasSubstr(PlaceOf(text, number.key, word) + (number.whole ? "want" : bounds)));
      EXPECT_LT(mistake.size(), 300);
      ++refused;
    }
  }
  EXPECT_GT(refused, 300);
  EXPECT_GT(taken, 100);
}

// The table of docs/simulator.md: patterns of keys, the least and the most. The first that matches.
TEST(HardwareTest, ThePageHasTheBounds) {
  std::ifstream page("docs/simulator.md");
  struct Row {
    std::vector<std::string> patterns;
    double least, most;
  };
  std::vector<Row> rows;
  const std::regex row_form(R"(\| (`[^|]*`) \| ([0-9.e+-]+) \| ([0-9.e+-]+) \|.*)"),
      word("`([^`]+)`");
  std::smatch found;
  for (std::string line; std::getline(page, line);) {
    if (!std::regex_match(line, found, row_form)) continue;
    Row row{{}, std::stod(found[2]), std::stod(found[3])};
    const std::string patterns = found[1];
    for (std::sregex_iterator at(patterns.begin(), patterns.end(), word), end; at != end; ++at) {
      row.patterns.push_back((*at)[1]);
    }
    rows.push_back(row);
  }
  EXPECT_GE(rows.size(), 8);
  for (const testing::HardwareNumber& number : testing::HardwareNumbers()) {
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& one) {
      return std::any_of(one.patterns.begin(), one.patterns.end(), [&](const std::string& pattern) {
        return ::fnmatch(pattern.c_str(), number.key.c_str(), 0) == 0;
      });
    });
    ASSERT_NE(row, rows.end()) << number.key;
    EXPECT_EQ(row->least, number.least) << number.key;
    EXPECT_EQ(row->most, number.most) << number.key;
  }
}

// Shares are at most 1, rates at least 1, times at least 0.
TEST(HardwareTest, NumbersHaveTheirIntervals) {
  for (const std::string key :
       {"product_share", "reached", "kernels_beside_collectives", "collectives_beside_kernels"}) {
    for (const std::string value : {"1.01", "0", "-0.5"}) {
      EXPECT_THAT(MistakesOf("name: a\n" + key + ": " + value + "\n"),
                  HasSubstr("hardware.yaml:2:" + std::to_string(key.size() + 3) + ": " + key +
                            ": want a number of at least 1e-06 and of at most 1, got " + value));
    }
  }
  for (const std::string key : {"ring_step_s", "all_to_all_step_s", "ramp_bytes"}) {
    EXPECT_THAT(MistakesOf("{name: a, network: {between: {" + key + ": -1}}}"),
                HasSubstr("network.between." + key + ": want a number of at least 0"));
  }
  EXPECT_THAT(MistakesOf("{name: a, launch_s: -1, host: {wait_s: -1}, tile_terms: -1}"),
              AllOf(HasSubstr("launch_s: want a number of at least 0"),
                    HasSubstr("host.wait_s: want a number of at least 0"),
                    HasSubstr("tile_terms: want an integer")));
}

TEST(HardwareTest, ANumberNeedsASource) {
  const std::string missing = MistakesOf(
      "name: a\nmemory: 5\noutside: null\nhost: {wait_s: 1}\nop_bytes_per_s: {adamw: 2}\n");
  EXPECT_EQ(std::count(missing.begin(), missing.end(), '\n'), 2) << missing;
  EXPECT_THAT(missing, HasSubstr("hardware.yaml:2:9: memory: no source: say under `sources` where "
                                 "it is from, as in `memory: \"data sheet: ...\"`"));
  EXPECT_THAT(missing, HasSubstr("hardware.yaml:4:16: host.wait_s: no source"));
  EXPECT_THAT(missing, HasSubstr("hardware.yaml:5:25: op_bytes_per_s.adamw: no source"));
  // Not beside a mistake of the number's own.
  EXPECT_THAT(MistakesOf("{name: a, memory: -5}"), Not(HasSubstr("no source")));
}

TEST(HardwareTest, ASourceNeedsANumber) {
  EXPECT_THAT(
      MistakesOf(
          "name: a\nmemory: 5\noutside: null\n"
          "sources:\n  memory: 'assumed: x'\n  memroy: 'assumed: x'\n  outside: 'assumed: x'\n"
          "  name: 'assumed: x'\n"),
      AllOf(HasSubstr("hardware.yaml:6:3: sources.memroy: this file has no such number; did you "
                      "mean `memory`?"),
            HasSubstr("hardware.yaml:7:3: sources.outside: this file has no such number"),
            HasSubstr("hardware.yaml:8:3: sources.name: this file has no such number")));
}

TEST(HardwareTest, ASourceHasAForm) {
  const auto of = [](const std::string& source) {
    return MistakesOf("name: a\nmemory: 5\nsources: {memory: \"" + source + "\"}\n");
  };
  for (const char* form : {"data sheet: x", "publication: x", "measured: x", "calibrate: x",
                           "seen: 7b batch_2 256", "assumed: x"}) {
    EXPECT_EQ(of(form), "none") << form;
  }
  for (const char* form : {"guessed: x", "assumed", "assumed: ", "x", "Assumed: x"}) {
    EXPECT_THAT(of(form),
                HasSubstr("hardware.yaml:3:19: sources.memory: want `data sheet: ...`, "
                          "`publication: ...`, `measured: ...`, `calibrate: ...`, `seen: FIGURE "
                          "CURVE X` or `assumed: ...`, got the text `"))
        << form;
  }
  EXPECT_THAT(of("seen: 7b 256"),
              HasSubstr("sources.memory: want a point of the paper, `seen: FIGURE CURVE X`, got"));
  EXPECT_THAT(MistakesOf("{name: a, memory: 5, sources: {memory: 5}}"),
              AllOf(HasSubstr("sources.memory: want text"), Not(HasSubstr("no source"))));
}

TEST(HardwareTest, WhatIsWrittenReadsTheSame) {
  const Hardware all = ReadHardware(File(kAll));
  const std::string text = WriteHardware(all);
  const Hardware again = ReadHardware(File(text));
  EXPECT_EQ(WriteHardware(again), text);
  EXPECT_EQ(again.sources, all.sources);
  EXPECT_EQ(again.op_bytes_per_s, all.op_bytes_per_s);
  EXPECT_EQ(again.op_flops_per_s, all.op_flops_per_s);
  EXPECT_EQ(again.op_terms, all.op_terms);
  EXPECT_EQ(again.op_sides, all.op_sides);
  EXPECT_EQ(again.bf16_flops, all.bf16_flops);
  EXPECT_EQ(again.tile_terms, all.tile_terms);
  EXPECT_EQ(again.host.segment_s_per_byte, all.host.segment_s_per_byte);
  EXPECT_EQ(again.network->between.ring_bytes_per_s, all.network->between.ring_bytes_per_s);
  EXPECT_THAT(text, HasSubstr("  inside:\n    ring_bytes_per_s: 1.0\n"));

  // Values that the file does not have stay unwritten; a network without a number is kept.
  Hardware bare;
  bare.name = "b: #1";
  bare.device = Hardware::Device::kCpu;
  bare.network.emplace();
  const Hardware same = ReadHardware(File(WriteHardware(bare)));
  EXPECT_EQ(same.name, "b: #1");
  EXPECT_EQ(same.device, Hardware::Device::kCpu);
  EXPECT_TRUE(same.network);
  EXPECT_EQ(WriteHardware(bare), "name: \"b: #1\"\ndevice: cpu\nnetwork: {}\n");
}

// The file names the kinds of ops/cpu/kinds.h, each of which a processor with tiles can take.
TEST(HardwareTest, ACpuNamesItsKindOfKernels) {
  const Processor best{.best = Isa::kAmx, .take_tiles = [] { return ""; }};
  for (const std::string& kind : KindsOfKernels()) {
    EXPECT_EQ(ChooseIsa(kind.c_str(), best).name, kind);
    const Hardware cpu = ReadHardware(File("{name: a, device: cpu, kernels: " + kind + "}"));
    EXPECT_EQ(cpu.kernels, kind);
    EXPECT_EQ(WriteHardware(cpu), "name: a\ndevice: cpu\nkernels: " + kind + "\n");
  }
  EXPECT_TRUE(std::count(KindsOfKernels().begin(), KindsOfKernels().end(), ThisIsa().name));
  EXPECT_EQ(ReadHardware(File("{name: a, device: cpu, kernels: null}")).kernels, std::nullopt);
  EXPECT_THAT(MistakesOf("{name: a, device: cpu, kernels: axm}"),
              AllOf(HasSubstr("kernels"), HasSubstr("`amx`")));
  EXPECT_THAT(MistakesOf("name: a\nkernels: amx\n"),
              HasSubstr("hardware.yaml:2:1: kernels: the machine is a GPU"));
}

// VDPBF16PS and tiles are for bf16 alone.
TEST(HardwareTest, KindsDifferWhereTheyComputeAnotherWay) {
  EXPECT_TRUE(SameRates("amx", "amx", /*bf16=*/true));
  EXPECT_FALSE(SameRates("amx", "avx512_bf16", /*bf16=*/true));
  EXPECT_FALSE(SameRates("avx512", "avx512_bf16", /*bf16=*/true));
  EXPECT_TRUE(SameRates("amx", "avx512", /*bf16=*/false));
  EXPECT_TRUE(SameRates("amx_emulated_on_avx2", "avx2", /*bf16=*/false));
  EXPECT_FALSE(SameRates("amx", "avx2", /*bf16=*/false));
}

TEST(HardwareTest, NothingIsWrittenWithoutASource) {
  Hardware machine;
  machine.name = "a";
  machine.network.emplace();
  machine.network->inside.ring_step_s = 1;
  EXPECT_THROW(WriteHardware(machine), std::invalid_argument);
  machine.sources["network.inside"] = "guessed";
  EXPECT_THROW(WriteHardware(machine), std::invalid_argument);
  machine.sources["network.inside"] = "calibrate: here";
  EXPECT_EQ(ReadHardware(File(WriteHardware(machine))).network->inside.ring_step_s, 1);
}

TEST(HardwareTest, ThoseOfTheRepositoryAreRead) {
  int seen = 0;
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("configs/hardware")) {
    SCOPED_TRACE(entry.path());
    const Hardware hardware = ReadHardware(entry.path().string());
    EXPECT_GT(hardware.memory.value_or(0), int64_t{1} << 30);
    EXPECT_TRUE(hardware.network);
    EXPECT_GT(hardware.host.operation_s, 0);
    const Hardware again = ReadHardware(File(WriteHardware(hardware)));
    EXPECT_EQ(WriteHardware(again), WriteHardware(hardware));
    seen += PointsSeen(hardware).empty() ? 0 : 1;
    EXPECT_TRUE(names.insert(hardware.name).second) << hardware.name;
  }
  EXPECT_GE(names.size(), 11);
  EXPECT_EQ(seen, 2) << "the paper's cluster and Figure 2's alone are set from what was seen";
}

}  // namespace
}  // namespace fsdp
