#include "trainer/simulate/step_floor.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "trainer/bench/step_products.h"
#include "trainer/core/errors.h"
#include "trainer/engine/step_resource.h"
#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/loop/place.h"
#include "trainer/loop/resolve.h"
#include "trainer/loop/setup.h"
#include "trainer/recipe/hardware.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/cost.h"
#include "trainer/simulate/price_list.h"

namespace fsdp {
namespace {

constexpr char kLlama[] =
    "model: {family: llama, hidden_size: 24, intermediate_size: 40, num_hidden_layers: 2,\n"
    "  num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8, vocab_size: 101,\n"
    "  max_position_embeddings: 32}\n"
    "data: {train: {source: synthetic}, valid: null, seq_len: 16}\n"
    "train: {micro_batch_size: 2, global_batch_size: 8}\n";
const std::string kHalves =
    "fsdp.mixed_precision={param_dtype: bf16, grad_dtype: bf16, reduce_dtype: bf16, "
    "master_dtype: bf16}";
constexpr double kFast = 1e30;  // Work at this rate takes no time.

Recipe Parse(const std::vector<std::string>& overrides = {}) {
  return ParseRecipe({{"test.yaml", kLlama}}, overrides);
}

Hardware Machine() {
  Hardware machine;
  machine.name = "a machine";
  machine.bf16_flops = machine.fp32_flops = kFast;
  machine.attention_forward_flops = machine.attention_backward_flops = kFast;
  machine.copy_bytes_per_s = kFast;
  return machine;
}

StepFloor FloorOf(const Recipe& recipe, int world, const Hardware& machine) {
  return FloorOf(Resolve(recipe, PlaceToBench(world, machine)), machine);
}

const FloorPart& Find(const StepFloor& floor, const std::string& op) {
  for (const FloorPart& part : floor.parts) {
    if (part.op == op) return part;
  }
  throw std::runtime_error("no op " + op);
}

TEST(StepFloor, ProductsTakeTheirFlops) {
  const StepWork work = StepWorkOf(Resolve(Parse(), PlaceToBench(/*world=*/1, DeviceType::kCpu)));
  double flops = 0;
  for (const StepProduct& p : work.products) flops += p.flops();
  Hardware machine = Machine();
  machine.fp32_flops = 1e6;
  const StepFloor floor = FloorOf(Parse(), 1, machine);
  EXPECT_NEAR(floor.Seconds(), flops / 1e6, 1e-9 * flops / 1e6);
  EXPECT_EQ(floor.tokens, 8 * 16);
  // Four micro-batches of two layers; each has qkv, o, gate and up, down.
  EXPECT_EQ(Find(floor, "linear_forward").launches.kernels, 4 * 2 * 2);
  EXPECT_EQ(Find(floor, "linear_residual_forward").launches.kernels, 4 * 2 * 2);
  EXPECT_EQ(Find(floor, "linear_backward, dw").launches.kernels, 4 * 2 * 4);
  // Products of two bf16 have their own rate.
  machine.fp32_flops = kFast;
  machine.bf16_flops = 1e6;
  EXPECT_NEAR(FloorOf(Parse({kHalves}), 1, machine).Seconds(), flops / 1e6, 1e-9 * flops / 1e6);
}

TEST(StepFloor, AttentionHasRatesOfItsOwn) {
  Hardware machine = Machine();
  machine.attention_forward_flops = 1e6;
  // Four products... of [16, 17 / 2] pairs of tokens, by 4 heads of 8.
  const double pairs = 8 * 4 * 16 * 17 / 2.0;
  EXPECT_NEAR(FloorOf(Parse(), 1, machine).Seconds(), 2 * pairs * 2 * 2 * 8 / 1e6, 1e-6);
  machine = Machine();
  machine.attention_backward_flops = 1e6;
  EXPECT_NEAR(FloorOf(Parse(), 1, machine).Seconds(), 2 * pairs * 5 * 2 * 8 / 1e6, 1e-6);
}

// Attention that keeps its probabilities: products of all pairs, and each kernel its bytes.
TEST(StepFloor, MathHasTheBytesOfItsScores) {
  const Recipe math = Parse({"train.attention=math", kHalves});
  Hardware machine = Machine();
  machine.bf16_flops = 1e6;
  const double pairs = 8 * 4 * 16 * 16.0;
  const auto seconds = [&](const char* op) { return Find(FloorOf(math, 1, machine), op).seconds; };
  EXPECT_NEAR(seconds("attention_math_forward"), 2 * pairs * 2 * 2 * 8 / 1e6, 1e-6);
  EXPECT_NEAR(seconds("attention_math_backward"), 2 * pairs * 4 * 2 * 8 / 1e6, 1e-6);
  const StepFloor floor = FloorOf(math, 1, Machine());
  const FloorPart& forward = Find(floor, "attention_math_forward");
  const double scores = 2 * pairs * 2, rows = 2 * 8 * 16 * 8 * 2;  // A head's rows, of two layers.
  // q, k twice and positions; v is k's size; out.
  EXPECT_EQ(forward.bytes, 4 * scores + rows * (4 + 2 + 2 + 4) + 2 * 8 * 16 * 4);
  EXPECT_EQ(forward.launches.kernels, 4 * 2 * 3);
  EXPECT_EQ(Find(floor, "attention_math_backward").launches.kernels, 4 * 2 * 5);
  EXPECT_THROW(Find(floor, "attention_forward"), std::runtime_error);
}

// Those of heads of up to 64, where the file has them.
TEST(StepFloor, ShortHeadsHaveRatesOfTheirOwn) {
  Hardware machine = Machine();
  machine.attention_forward_flops = machine.attention_backward_flops = 1e6;
  const double all = FloorOf(Parse(), 1, machine).Seconds();
  machine.attention_64_forward_flops = machine.attention_64_backward_flops = 2e6;
  EXPECT_NEAR(FloorOf(Parse(), 1, machine).Seconds(), all / 2, 1e-6 * all);
  machine.attention_64_backward_flops.reset();
  EXPECT_NEAR(Find(FloorOf(Parse(), 1, machine), "attention_backward").seconds * 7, all * 5,
              1e-6 * all);
  const Recipe long_heads = Parse({"model.head_dim=72"});
  const double of_long = FloorOf(long_heads, 1, machine).Seconds();
  machine.attention_64_forward_flops.reset();
  EXPECT_EQ(FloorOf(long_heads, 1, machine).Seconds(), of_long);
}

// With the number of multiprocessors a product's shape decides: 32 rows are part of a tile.
TEST(StepFloor, ProductsTakeTheirWaves) {
  Hardware machine = Machine();
  machine.fp32_flops = 2e6;
  machine.product_share = 0.5;
  const double plain = Find(FloorOf(Parse(), 1, machine), "linear_forward").seconds;
  machine.multiprocessors = 132;
  machine.tile_terms = 100;
  Product qkv, gate_up;
  qkv.m = gate_up.m = 32, qkv.k = gate_up.k = 24, qkv.n = 12 * 8, gate_up.n = 80;
  double want = 0;
  for (const Product& p : {qkv, gate_up}) {
    want += 4 * 2 * p.flops() / ProductRateInWaves(p, 1e6, 132, 100);
  }
  const double got = Find(FloorOf(Parse(), 1, machine), "linear_forward").seconds;
  EXPECT_NEAR(got, want, 1e-9 * want);
  EXPECT_GT(got, 100 * plain);
  machine.tile_terms = 200;
  EXPECT_GT(Find(FloorOf(Parse(), 1, machine), "linear_forward").seconds, 1.5 * got);
}

TEST(StepFloor, AllElseTakesItsBytes) {
  Hardware machine = Machine();
  machine.copy_bytes_per_s = 1e6;
  const StepFloor floor = FloorOf(Parse(), 1, machine);
  for (const FloorPart& part : floor.parts) {
    EXPECT_NEAR(part.seconds, part.bytes / 1e6, 1e-9) << part.op;
  }
  EXPECT_EQ(Find(floor, "rms_norm_forward").launches.kernels, 4 * (2 * 2 + 1));
  // A norm reads and writes 8 x 16 rows of 24, its weight, and writes a number a row.
  EXPECT_EQ(Find(floor, "rms_norm_forward").bytes,
            (2 * 2 + 1) * (4 * 8 * 16 * (2 * 24 + 1) + 4 * 4 * 24));
  // Work that others could do on their way is apart.
  EXPECT_FALSE(Find(floor, "fill").in_the_floor);
  double in = 0, beside = 0;
  for (const FloorPart& part : floor.parts) (part.in_the_floor ? in : beside) += part.seconds;
  EXPECT_GT(beside, 0);
  EXPECT_NEAR(floor.Seconds(), in, 1e-9);
}

// A step on a GPU lists what kernels leave for each other, in time where FLOPs do not take longer.
TEST(StepFloor, NamesWhatNoFloorNeeds) {
  Hardware machine = Machine();
  machine.device = Hardware::Device::kCuda;
  machine.copy_bytes_per_s = 1e6;
  const StepFloor floor = FloorOf(Parse({kHalves}), 1, machine);
  // Four micro-batches of 32 rows: a norm has the sums of two blocks of them.
  const FloorPart& norms = Find(floor, "rms_norm_backward");
  EXPECT_EQ(norms.launches.kernels, 2 * 4 * (2 * 2 + 1));
  EXPECT_EQ(norms.extra_bytes, 4 * (2 * 2 + 1) * 2 * (2 * 4 * 24));
  EXPECT_NEAR(norms.extra_seconds, norms.extra_bytes / 1e6, 1e-9);
  // The head's logits are written, read twice, written, and read by two products.
  double head = 0;
  for (const char* part : {"", ", logits", ", dx", ", dw"}) {
    head += Find(floor, std::string("head_loss_forward_backward") + part).extra_bytes;
  }
  const double logits = 32 * 101 * 2, weight = 101 * 24 * 2, x = 32 * 24 * 2, terms = 2 * 32 * 8;
  EXPECT_EQ(head, 4 * (6 * logits + weight + x + terms));
  EXPECT_EQ(Find(floor, "copy").launches, (Launches{.kernels = 0, .copies = 4 + 2}));
  double bytes = 0, seconds = 0;
  for (const FloorPart& part : floor.parts) {
    bytes += part.extra_bytes + (part.in_the_floor ? 0 : part.bytes);
    seconds += part.extra_seconds + (part.in_the_floor ? 0 : part.seconds);
  }
  EXPECT_EQ(floor.NeedlessBytes(), bytes);
  EXPECT_NEAR(floor.NeedlessSeconds(), seconds, 1e-9);
  // Products that FLOPs decide hide theirs.
  machine.bf16_flops = 1;
  EXPECT_EQ(Find(FloorOf(Parse({kHalves}), 1, machine), "linear_backward, dw").extra_seconds, 0);
}

// A CPU launches nothing and has no extra bytes. The logits of a chunk are in no cache: written and
// read in fp32, their gradients written and read by two products, which read w or add to dw.
TEST(StepFloor, ACpuMovesLogits) {
  Hardware machine = Machine();
  machine.device = Hardware::Device::kCpu;
  machine.copy_bytes_per_s = 1e6;
  for (const bool halves : {true, false}) {
    const Recipe recipe =
        Parse(halves ? std::vector<std::string>{kHalves} : std::vector<std::string>{});
    const StepFloor cpu = FloorOf(recipe, 1, machine);
    for (const FloorPart& part : cpu.parts) {
      EXPECT_EQ(part.launches, Launches{}) << part.op;
      EXPECT_EQ(part.extra_bytes, 0) << part.op;
      EXPECT_NEAR(part.seconds, part.bytes / 1e6, 1e-9) << part.op;
    }
    // Four micro-batches of 32 rows, each one chunk: x, w and dw count anyway, and once more.
    const double logits = 32 * 101, size = halves ? 2 : 4, weight = 101 * 24, x = 32 * 24;
    const auto bytes = [&](const char* part) {
      return Find(cpu, std::string("head_loss_forward_backward") + part).bytes / 4;
    };
    EXPECT_EQ(bytes(", logits"), size * (x + weight) + 4 * logits);
    EXPECT_GE(bytes(""), (4 + size) * logits);
    EXPECT_LE(bytes(""), (4 + size) * logits + 1000);  // Targets, weights and terms of rows.
    EXPECT_EQ(bytes(", dx"), size * (x + weight + logits));
    EXPECT_GE(bytes(", dw"), size * (2 * weight + logits + x));
  }
}

// GELU is a kernel of its own behind a product of a library that is deterministic.
TEST(StepFloor, DeterministicLibrariesTakeALaunchMore) {
  const auto launches = [](bool deterministic) {
    Recipe recipe = ParseRecipe(
        {{"test.yaml",
          "model: {family: gpt2, hidden_size: 24, num_hidden_layers: 2, num_attention_heads: 2,\n"
          "  vocab_size: 101}\n"
          "data: {train: {source: synthetic}, valid: null, seq_len: 16}\n"
          "train: {micro_batch_size: 2, global_batch_size: 8}\n"}},
        {});
    recipe.run.deterministic = deterministic;
    return Find(FloorOf(recipe, 1, Machine()), "linear_gelu_forward").launches.kernels;
  };
  EXPECT_EQ(launches(false), 4 * 2);
  EXPECT_EQ(launches(true), 2 * 4 * 2);
}

TEST(StepFloor, SaysWhichRateIsMissing) {
  Hardware machine = Machine();
  machine.fp32_flops.reset();
  EXPECT_NO_THROW(FloorOf(Parse({kHalves}), 1, machine));
  try {
    FloorOf(Parse(), 1, machine);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("a machine has no fp32_flops, and this step has "),
              std::string::npos)
        << error.what();
  }
}

// Bytes that a rank sends to others are listed, and count for nothing.
TEST(StepFloor, OfSeveralRanks) {
  const StepFloor floor = FloorOf(Parse(), 2, Machine());
  EXPECT_EQ(floor.tokens, 8 * 16);
  EXPECT_EQ(Find(floor, "linear_forward").launches.kernels, 2 * 2 * 2);
  // Three ranks: two rounds each, though some of their places are empty.
  EXPECT_EQ(FloorOf(Parse(), 3, Machine()).tokens, 8 * 16);
  EXPECT_GT(Find(floor, "all_gather").link_bytes, 0);
}

// Muon's products, by the formula of its iteration: in each of two layers q, k, v, o and three of
// the MLP, too small to be multiplied in blocks. The floor lists what travels to owners and back.
TEST(StepFloor, MuonsProductsAndExchanges) {
  const Recipe muon = Parse({"optimizer.name=muon"});
  Hardware machine = Machine();
  machine.fp32_flops = 1e6;
  double flops = 0;
  for (const auto& [m, n] :
       {std::pair(24., 32.), {16, 24}, {16, 24}, {24, 32}, {24, 40}, {24, 40}, {24, 40}}) {
    flops += 2 * 5 * 2 * (m * m * n + m * m * m + m * m * n);
  }
  const double more = FloorOf(muon, 1, machine).Seconds() - FloorOf(Parse(), 1, machine).Seconds();
  EXPECT_NEAR(more, flops / 1e6, 1e-6 * more);
  const StepTraffic traffic = Resolve(muon, PlaceToBench(2, Machine())).plan.traffic;
  EXPECT_GT(traffic.all_to_all_bytes, 0);
  const double sent = Find(FloorOf(muon, 2, Machine()), "all_to_all").link_bytes;
  EXPECT_GE(sent, traffic.all_to_all_bytes);  // The busier direction of each.
  EXPECT_LE(sent, 2 * traffic.all_to_all_bytes);
  EXPECT_FALSE(Find(FloorOf(muon, 1, Machine()), "pack_pieces").in_the_floor);
}

double BytesOn(const StepFloor& floor, StepResource resource) {
  double bytes = 0;
  for (const FloorPart& part : floor.parts) bytes += part.resource == resource ? part.bytes : 0;
  return bytes;
}

// Elements of the model, with the padding of its flat parameters.
double Elements() {
  const auto model = BuildModel(Parse(), ShapeFor(Parse()));
  int64_t elements = 0;
  for (const FlatParameter& flat : MakeLayout(ShapesOf(*model), {}, 1).flat_parameters) {
    elements += flat.size;
  }
  return static_cast<double>(elements);
}

// Offloaded state takes its bytes over the link and in the host's memory, and none of the device.
TEST(StepFloor, OffloadIsBesideTheDevice) {
  const std::vector<std::string> offload = {"fsdp.cpu_offload.optimizer=true",
                                            "train.global_batch_size=2"};
  Hardware machine = Machine();
  EXPECT_THROW(FloorOf(Parse(offload), 1, machine), ConfigError);
  machine.copy_bytes_per_s = 1e6;
  machine.host_link_bytes_per_s = 1e3;
  machine.host_copy_bytes_per_s = 1e30;
  const StepFloor floor = FloorOf(Parse(offload), 1, machine);
  // Gradients leave, weights come back; AdamW reads four numbers and writes three (and reads
  // what tells blocks of elements apart).
  const double weights = 4 * Elements();
  EXPECT_EQ(BytesOn(floor, StepResource::kToHost), weights);
  EXPECT_EQ(BytesOn(floor, StepResource::kToDevice), weights);
  EXPECT_NEAR(BytesOn(floor, StepResource::kHost), (4 + 3) * weights, 0.02 * weights);
  EXPECT_NEAR(floor.Seconds(), weights / 1e3, 1e-9);  // The link is the slowest, each way.
  for (const FloorPart& part : floor.parts) {
    EXPECT_FALSE(part.op == "adamw" && part.resource == StepResource::kDevice);
  }
}

// Updates begin behind the last backward pass, and the first needs them all.
TEST(StepFloor, HostUpdatesRunBesideOneForwardPass) {
  Hardware machine = Machine();
  machine.fp32_flops = 1e6;
  machine.host_link_bytes_per_s = kFast;
  machine.host_copy_bytes_per_s = 1e3;
  const auto floor_of = [&](const char* share) {
    return FloorOf(Parse({"fsdp.cpu_offload.optimizer=true",
                          std::string("fsdp.cpu_offload.optimizer_share=") + share}),
                   1, machine);
  };
  const StepFloor floor = floor_of("0");
  // One of four micro-batches runs beside the updates: its products but the head's.
  double forward = 0;
  for (const char* op : {"linear_forward", "linear_residual_forward"}) {
    forward += Find(floor, op).seconds / 4;
  }
  EXPECT_NEAR(floor.beside_updates, forward, 1e-9);
  const double host = BytesOn(floor, StepResource::kHost) / 1e3;
  EXPECT_NEAR(floor.SecondsOf(StepResource::kHost), host, 1e-9);
  EXPECT_NEAR(floor.Seconds(), floor.SecondsOf(StepResource::kDevice) + host - forward, 1e-6);
  // The host need not update what the device updates itself.
  const StepFloor half = floor_of("0.5");
  EXPECT_LT(BytesOn(half, StepResource::kHost), BytesOn(floor, StepResource::kHost));
  EXPECT_GT(Find(half, "adamw").bytes, 0);
  // Updates that are shorter than it are hidden.
  machine.host_copy_bytes_per_s = kFast;
  const StepFloor hidden = floor_of("0");
  EXPECT_EQ(hidden.Seconds(), hidden.SecondsOf(StepResource::kDevice));
}

// docs/benchmarks/gpu_floor.md, its table's first line: 512 sequences of 1,024 tokens, 16 at a
// time. A kernel or a copy more is one to be named there.
TEST(StepFloor, AStepOfHalfABillionHasSoManyLaunchesAndBytes) {
  Hardware gpu = Machine();
  gpu.device = Hardware::Device::kCuda;
  const StepFloor floor = FloorOf(
      Parse({"model={family: llama, preset: qwen2.5-0.5b}", "data.seq_len=1024",
             "train={micro_batch_size: 16, global_batch_size: 512}",
             "optimizer={name: adamw, state_dtype: bf16}", "schedule.name=constant", kHalves}),
      1, gpu);
  EXPECT_EQ(floor.AllLaunches().kernels, 19816);
  EXPECT_EQ(floor.AllLaunches().copies, 34);
  double needed = 0;
  for (const FloorPart& part : floor.parts) needed += part.in_the_floor ? part.bytes : 0;
  EXPECT_NEAR(needed / 1e9, 2899.765, 0.001);
  EXPECT_NEAR(floor.NeedlessBytes() / 1e9, 1589.1405, 0.001);
}

TEST(StepFloor, SpilledStateTakesTheDisksRates) {
  Hardware machine = Machine();
  machine.host_link_bytes_per_s = machine.host_copy_bytes_per_s = kFast;
  machine.disk_read_bytes_per_s = 2e3;
  machine.disk_write_bytes_per_s = 1e3;
  const StepFloor floor =
      FloorOf(Parse({"fsdp.cpu_offload={optimizer: true, spill: /nowhere}"}), 1, machine);
  // Two moments, and a master that has a copy.
  EXPECT_EQ(BytesOn(floor, StepResource::kDiskRead), 3 * 4 * Elements());
  EXPECT_EQ(BytesOn(floor, StepResource::kDiskWrite), 3 * 4 * Elements());
  EXPECT_NEAR(floor.Seconds(), 3 * 4 * Elements() / 1e3, 1e-9);
}

}  // namespace
}  // namespace fsdp
