#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cmd/commands.h"
#include "cmd/shared_flags.h"
#include "trainer/bench/comm_bench.h"
#include "trainer/bench/op_bench.h"
#include "trainer/bench/step_products.h"
#include "trainer/core/errors.h"
#include "trainer/core/json.h"
#include "trainer/loop/place.h"
#include "trainer/loop/resolve.h"
#include "trainer/loop/setup.h"
#include "trainer/ops/cpu/kinds.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/choose_device.h"

namespace fsdp {
namespace {

constexpr char kOnlyDevice[] = "auto: a GPU if one can be used, otherwise the CPU";

Flag OwnKernelsFlag(bool* own_kernels) {
  return {"--own-kernels", own_kernels,
          "On a GPU: use this program's kernels, not cuBLASLt and cuDNN"};
}

struct GemmFlags {
  RecipeFlags recipe;
  std::string device = "auto";
  int world = 1, threads = 0, rounds = 3;
  bool ask = false, json = false, own_kernels = false;
};

std::string ProductsToJson(const StepProductsBench& bench, const std::vector<double>& seconds) {
  std::vector<std::string> products;
  for (size_t i = 0; i < seconds.size(); ++i) {
    const StepProduct& p = bench.work().products[i];
    products.push_back(JsonObject()
                           .Add("name", p.name)
                           .Add("m", p.m)
                           .Add("n", p.n)
                           .Add("k", p.k)
                           .Add("groups", p.groups)
                           .Add("dtype", Name(p.dtype))
                           .Add("result", Name(p.result))
                           .Add("count", p.count)
                           .Add("flops", p.flops())
                           .Add("seconds", seconds[i])
                           .Text());
  }
  return JsonArray(products);
}

JsonObject GemmToJson(const StepProductsBench& bench,
                      const std::vector<std::vector<double>>& rounds) {
  std::vector<std::string> steps;
  std::vector<double> best = rounds.front();
  for (const std::vector<double>& seconds : rounds) {
    steps.push_back(JsonNumber(bench.StepSeconds(seconds)));
    for (size_t i = 0; i < best.size(); ++i) best[i] = std::min(best[i], seconds[i]);
  }
  return JsonObject()
      .Add("products", bench.library())
      .AddRaw("seconds", JsonArray(steps))
      .Add("attention_flops", bench.work().attention_flops)
      .AddRaw("parts", ProductsToJson(bench, best));
}

void PrintGemm(const StepProductsBench& bench, std::vector<std::vector<double>> rounds) {
  std::sort(rounds.begin(), rounds.end(), [&](const auto& a, const auto& b) {
    return bench.StepSeconds(a) < bench.StepSeconds(b);
  });
  const std::vector<double>& seconds = rounds[rounds.size() / 2];
  std::printf("%-32s %6s %6s %6s %6s %10s %9s\n", "", "m", "n", "k", "calls", "ms", "GFLOP/s");
  double flops = 0;
  for (size_t i = 0; i < seconds.size(); ++i) {
    const StepProduct& p = bench.work().products[i];
    flops += p.flops();
    std::printf("%-32s %6lld %6lld %6lld %6lld %10.3f %9.1f\n", p.name.c_str(),
                static_cast<long long>(p.m), static_cast<long long>(p.n),
                static_cast<long long>(p.k), static_cast<long long>(p.count), seconds[i] * 1e3,
                p.flops() / seconds[i] * 1e-9);
  }
  const double products = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  const double step = bench.StepSeconds(seconds);
  std::printf("%-59s %10.3f %9.1f\n", "all of them", products * 1e3, flops / products * 1e-9);
  std::printf("%-59s %10.3f\n", "attention's, at that rate", (step - products) * 1e3);
  std::printf("%-59s %10.3f\n", "the products of a step", step * 1e3);
}

void RunGemm(const GemmFlags& flags) {
  const Recipe recipe = LoadRecipe(flags.recipe);
  const int threads =
      flags.threads > 0 ? flags.threads : ThreadsFor(recipe, /*local_world=*/1, /*sharers=*/1);
  const ChosenDevice device = DeviceHere(flags.device);
  const ResolvedRun step = Resolve(recipe, PlaceToBench(flags.world, device.type));
  StepProductsBench bench(StepWorkOf(step), threads, device.type, device.gpu, flags.own_kernels);
  const auto run = [&](int rounds) {
    std::vector<std::vector<double>> all;
    for (int i = 0; i < rounds; ++i) all.push_back(bench.Run());
    return all;
  };
  if (flags.ask) {
    std::string line;
    while (std::getline(std::cin, line)) {
      std::istringstream words(line);
      int64_t rounds = 0, product = 0;
      if (!(words >> rounds) || rounds < 1) return;
      if (!(words >> product)) {
        std::printf("%s\n", GemmToJson(bench, run(static_cast<int>(rounds))).Text().c_str());
      } else if (product >= 0 && product < static_cast<int64_t>(bench.work().products.size())) {
        std::vector<std::string> seconds;
        for (int64_t i = 0; i < rounds; ++i)
          seconds.push_back(JsonNumber(bench.Run(static_cast<size_t>(product))));
        std::printf("%s\n", JsonObject().AddRaw("seconds", JsonArray(seconds)).Text().c_str());
      } else {
        throw ConfigError("bench gemm: there is no product " + std::to_string(product) +
                          ", this step has " + std::to_string(bench.work().products.size()));
      }
      std::fflush(stdout);
    }
    return;
  }
  bench.Run();  // Touches the memory.
  const auto rounds = run(flags.rounds);
  if (flags.json) {
    std::printf("%s\n", GemmToJson(bench, rounds).Text().c_str());
  } else {
    PrintGemm(bench, rounds);
  }
}

Command GemmCommand() {
  const auto flags = std::make_shared<GemmFlags>();
  Command command{"gemm",
                  "Time the matrix products of a recipe's step alone, which bound the step"};
  command.flags = {
      ConfigFlag(&flags->recipe.files),
      SetFlag(&flags->recipe.overrides),
      {"--world-size", &flags->world, "Ranks that share the global batch",
       FlagRules{.range = {1, 1 << 20}, .shows_default = true}},
      {"--device", &flags->device, kOnlyDevice,
       FlagRules{.choices = kDevices, .shows_default = true}},
      {"--threads", &flags->threads, "CPU threads; 0: run.threads, or one per core",
       FlagRules{.range = {0, 1 << 16}, .shows_default = true}},
      OwnKernelsFlag(&flags->own_kernels),
      {"--rounds", &flags->rounds, "Times through the step's products; the median is shown",
       FlagRules{.range = {1, 1 << 20}, .shows_default = true}},
      {"--json", &flags->json, "One JSON object"},
      {"--ask", &flags->ask,
       "Read a number of rounds per line and answer each line with a JSON object. A second number "
       "chooses one product, counted from 0 in the order of `parts`",
       FlagRules{.excludes = "--json"}},
  };
  command.run = [flags] { RunGemm(*flags); };
  return command;
}

// A flag's value that only the callee could check: its message without the brackets.
ConfigError FlagError(const std::string& bench, const std::invalid_argument& error) {
  const std::string what = error.what(), callee = "[" + bench + "] ";
  return ConfigError(bench + ": " +
                     (what.rfind(callee, 0) == 0 ? what.substr(callee.size()) : what));
}

struct OpsFlags {
  OpBenchOptions options;
  std::string device = "auto", dtype = "fp32";
  int threads = 0;
  bool json = false, list = false, ask = false;
};

JsonObject OpToJson(const OpTime& op) {
  return JsonObject()
      .Add("name", op.name)
      .Add("flops", op.cost.flops)
      .Add("bytes", op.cost.bytes)
      .Add("seconds", op.seconds)
      .Add("gflops", op.cost.flops / op.seconds * 1e-9)
      .Add("gb_per_s", op.cost.bytes / op.seconds * 1e-9);
}

std::string OpToJson(const OpTime& op, const OpLimits& limits) {
  return OpToJson(op).Add("share_of_limit", limits.Seconds(op.cost) / op.seconds).Text();
}

void AnswerOps(const OpBenchOptions& options) {
  const auto next = [] {
    std::string line;
    std::getline(std::cin, line);
    return line;
  };
  AskOps(options, next, [](const OpTime& op) {
    std::printf("%s\n", OpToJson(op).Text().c_str());
    std::fflush(stdout);
  });
}

std::string ShapesToJson(const OpShapes& shapes) {
  return JsonObject()
      .Add("batch", shapes.batch)
      .Add("seq", shapes.seq)
      .Add("hidden", shapes.hidden)
      .Add("intermediate", shapes.intermediate)
      .Add("heads", shapes.heads)
      .Add("vocab", shapes.vocab)
      .Text();
}

void PrintOp(const OpTime& op, const OpLimits& limits) {
  const bool bound_by_flops =
      op.cost.flops / limits.flops_per_s > op.cost.bytes / limits.bytes_per_s;
  std::printf("%-40s %10.3f ms %8.1f GFLOP/s %7.1f GB/s  %6.1f %% of %s\n", op.name.c_str(),
              op.seconds * 1e3, op.cost.flops / op.seconds * 1e-9,
              op.cost.bytes / op.seconds * 1e-9, limits.Seconds(op.cost) / op.seconds * 100,
              bound_by_flops ? "products" : "copies");
  std::fflush(stdout);
}

void RunOps(const OpsFlags& flags) {
  OpBenchOptions options = flags.options;
  options.threads =
      flags.threads > 0 ? flags.threads : ThreadsFor(Recipe(), /*local_world=*/1, /*sharers=*/1);
  options.dtype = FloatNamed(flags.dtype);
  const ChosenDevice device = DeviceHere(flags.device);
  options.device = device.type;
  options.gpu = device.gpu;
  try {
    const std::vector<std::string> names = BenchedOps(options);
    if (flags.list) {
      for (const std::string& name : names) std::printf("%s\n", name.c_str());
      return;
    }
    const FoundAttention attention = BenchedAttention(options);
    options.attention = attention.backend;
    const FoundConvolutions convolutions = BenchedConvolutions(options);
    options.convolution = convolutions.backend;
    if (flags.ask) {
      AnswerOps(options);
      return;
    }
    const OpLimits limits = MeasureLimits(options);
    std::vector<std::string> ops;
    if (!flags.json) {
      const std::string what = device.type == DeviceType::kCuda
                                   ? device.name
                                   : std::to_string(options.threads) + " threads";
      std::printf("%s, %s; products alone %.1f GFLOP/s, copies of large tensors %.1f GB/s\n",
                  what.c_str(), flags.dtype.c_str(), limits.flops_per_s * 1e-9,
                  limits.bytes_per_s * 1e-9);
      if (!attention.name.empty()) std::printf("attention: %s\n", attention.name.c_str());
      if (!convolutions.name.empty()) std::printf("convolutions: %s\n", convolutions.name.c_str());
    }
    MeasureOps(options, [&](const OpTime& op) {
      if (flags.json) {
        ops.push_back(OpToJson(op, limits));
      } else {
        PrintOp(op, limits);
      }
    });
    if (flags.json) {
      JsonObject object;
      object.Add("device", device.name);
      if (device.type == DeviceType::kCpu) object.Add("kernels", ThisIsa().name);
      std::printf(
          "%s\n",
          object.Add("dtype", flags.dtype)
              .Add("threads", options.threads)
              .AddRaw("shapes", ShapesToJson(options.shapes))
              .Add("attention", attention.name.empty() ? "own kernels" : attention.name)
              .Add("convolutions", convolutions.name.empty() ? "own kernels" : convolutions.name)
              .Add("gemm_gflops", limits.flops_per_s * 1e-9)
              .Add("copy_gb_per_s", limits.bytes_per_s * 1e-9)
              .AddRaw("ops", JsonArray(ops))
              .Text()
              .c_str());
    }
  } catch (const std::invalid_argument& error) {
    throw FlagError("bench ops", error);
  }
}

Command OpsCommand() {
  const auto flags = std::make_shared<OpsFlags>();
  OpShapes& shapes = flags->options.shapes;
  const FlagRules size{.range = {1, 1 << 24}, .shows_default = true};
  Command command{"ops", "Time each op of a step, by default at the shapes of GPT-2 124M"};
  command.flags = {
      {"--batch", &shapes.batch, "Sequences", size},
      {"--seq", &shapes.seq, "Tokens of a sequence", size},
      {"--hidden", &shapes.hidden, "Width of the residual stream", size},
      {"--intermediate", &shapes.intermediate, "Width of a block's feed-forward layer", size},
      {"--heads", &shapes.heads, "Attention heads", size},
      {"--vocab", &shapes.vocab, "Vocabulary", size},
      {"--device", &flags->device, kOnlyDevice,
       FlagRules{.choices = kDevices, .shows_default = true}},
      {"--dtype", &flags->dtype, "dtype of activations and weights",
       FlagRules{.choices = kFloats, .shows_default = true}},
      {"--threads", &flags->threads, "CPU threads; 0: one per core",
       FlagRules{.range = {0, 1 << 16}, .shows_default = true}},
      {"--seconds", &flags->options.seconds, "Least seconds of calling each op",
       FlagRules{.range = {0, 1e6}, .shows_default = true}},
      {"--only", &flags->options.only, "Only ops with this text in their names"},
      OwnKernelsFlag(&flags->options.own_kernels),
      {"--json", &flags->json, "One JSON object"},
      {"--ask", &flags->ask,
       "Read an op's name per line, call it, and answer each line with a JSON object",
       FlagRules{.excludes = "--json"}},
      {"--list", &flags->list, "List the names of the ops and time nothing",
       FlagRules{.excludes = "--json"}},
  };
  command.footer =
      "The time is that of the fastest call. The limit of an op is the time of its FLOPs at the\n"
      "rate of a plain matrix product, or of its bytes at the rate of copying tensors that no\n"
      "cache holds, whichever is longer; above 100 % operands were in a cache.";
  command.run = [flags] { RunOps(*flags); };
  return command;
}

struct CommFlags {
  CommBenchOptions options;
  std::string transport = "shm", device = "auto", dtype = "fp32";
  bool ask = false, json = false;
};

std::string CommToJson(const CommFlags& flags, const std::vector<CommTime>& times) {
  std::vector<std::string> collectives;
  for (const CommTime& t : times) {
    collectives.push_back(JsonObject()
                              .Add("collective", Name(t.collective))
                              .Add("bytes", t.bytes)
                              .Add("seconds", t.seconds)
                              .Add("gb_per_s", t.bytes_per_s() * 1e-9)
                              .Add("memcpy_seconds", t.memcpy_seconds)
                              .Text());
  }
  return JsonObject()
      .Add("transport", flags.transport)
      .Add("device", DeviceHere(flags.device).name)
      .Add("ranks", flags.options.ranks)
      .Add("dtype", flags.dtype)
      .AddRaw("collectives", JsonArray(collectives))
      .Text();
}

void PrintComm(const CommTime& t) {
  std::printf("%-15s %12lld %12.1f us %8.2f GB/s %8.2f of memcpy\n", Name(t.collective),
              static_cast<long long>(t.bytes), t.seconds * 1e6, t.bytes_per_s() * 1e-9,
              t.memcpy_seconds / t.seconds);
}

void RunComm(const CommFlags& flags) {
  int rounds = flags.ask ? 0 : 1;
  const auto next = [&] {
    if (rounds == 0 && flags.ask && !(std::cin >> rounds && rounds > 0)) return false;
    return rounds-- > 0;
  };
  try {
    CommBenchOptions options = flags.options;
    using Transport = CommBenchOptions::Transport;
    options.transport = flags.transport == "shm"    ? Transport::kShm
                        : flags.transport == "nccl" ? Transport::kNccl
                                                    : Transport::kThread;
    options.device = WantedOf(flags.device);
    options.dtype = FloatNamed(flags.dtype);
    MeasureCollectives(options, next, [&](const std::vector<CommTime>& times) {
      if (flags.ask || flags.json) {
        std::printf("%s\n", CommToJson(flags, times).c_str());
      } else {
        std::printf("%-15s %12s %15s %13s\n", "", "bytes", "a call", "bytes / s");
        for (const CommTime& t : times) PrintComm(t);
      }
      std::fflush(stdout);
    });
  } catch (const std::invalid_argument& error) {
    throw FlagError("bench comm", error);
  }
}

Command CommCommand() {
  const auto flags = std::make_shared<CommFlags>();
  Command command{"comm", "Time the collectives and, beside them, a memcpy by every rank"};
  command.flags = {
      {"--ranks", &flags->options.ranks, "Ranks of the group",
       FlagRules{.range = {1, 1023}, .shows_default = true}},
      {"--transport", &flags->transport,
       "shm: ranks are processes; thread: ranks are threads; nccl: processes with a GPU each",
       FlagRules{.choices = "shm,thread,nccl", .shows_default = true}},
      {"--device", &flags->device,
       "Device of the tensors. auto: GPUs if there are any. Only nccl sends without going through "
       "host memory",
       FlagRules{.choices = kDevices, .shows_default = true}},
      {"--dtype", &flags->dtype, "dtype of what moves; a reduce-scatter leaves fp32",
       FlagRules{.choices = kFloats, .shows_default = true}},
      {"--sizes", &flags->options.sizes,
       "Bytes of the full tensor in that dtype; suffixes k and m are powers of 1024",
       FlagRules{.range = {2, int64_t{1} << 36}, .byte_units = true, .shows_default = true}},
      {"--batches", &flags->options.batches, "Batches of calls; the median counts",
       FlagRules{.range = {1, 1 << 20}, .shows_default = true}},
      {"--deterministic", &flags->options.deterministic,
       "With nccl: sums in rank order, as run.deterministic makes them"},
      {"--json", &flags->json, "One JSON object"},
      {"--ask", &flags->ask,
       "Read a number of rounds per line and answer each round with a JSON object",
       FlagRules{.excludes = "--json"}},
  };
  command.footer =
      "A rate is the bytes of the full tensor divided by the time of a call: it says how soon a\n"
      "unit of that size arrives.";
  command.run = [flags] { RunComm(*flags); };
  return command;
}

}  // namespace

Command BenchCommand() {
  Command command{"bench", "Time the parts of a training step on this machine"};
  command.commands = {OpsCommand(), CommCommand(), GemmCommand(), BenchFloorCommand()};
  return command;
}

}  // namespace fsdp
