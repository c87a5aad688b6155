#include "trainer/bench/step_products.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "trainer/comm/hosts/host_placement.h"
#include "trainer/comm/sim/sim_communicator.h"
#include "trainer/engine/session.h"
#include "trainer/loop/setup.h"
#include "trainer/ops/cpu/gemm.h"
#include "trainer/runtime/device_factory.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {
namespace {

void Add(std::vector<StepProduct>& products, StepProduct product) {
  for (StepProduct& p : products) {
    if (p.name == product.name && p.m == product.m && p.n == product.n && p.k == product.k) {
      p.count += product.count;
      return;
    }
  }
  if (product.count > 0) products.push_back(std::move(product));
}

std::string Times(int64_t in, int64_t out) {
  return std::to_string(in) + " to " + std::to_string(out);
}

// Linear layers by their width, where weights lie as `layout` says.
std::string GroupOf(const std::string& op, const Product& p, WeightLayout layout) {
  if (op.starts_with("head_loss")) return "head";
  if (op.starts_with("lora")) return "lora";
  const std::string name = p.name;
  if (name == "forward") return "linear " + Times(p.k, p.n);
  if (name == "dx") return "linear " + Times(p.n, p.k);
  return "linear " + (layout == WeightLayout::kInOut ? Times(p.m, p.n) : Times(p.n, p.m));
}

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

// Rank 0's step on the simulated device, as the plan runs it: its ops say what they multiply.
StepWork StepWorkOf(const Recipe& recipe, int world) {
  const std::unique_ptr<Model> model = BuildModel(recipe, ShapeFor(recipe));
  const SessionOptions options =
      SessionOptionsFor(recipe, HostPlacement::InOrder(world, world), /*threads=*/1);
  std::vector<std::string> groups;  // In the order of the forward pass.
  std::vector<std::vector<StepProduct>> products;
  SimDevice device;
  PlanRecorder recorder;
  const MeshCommunicators communicators(MeshFor(options.executor, /*rank=*/0, world),
                                        options.executor.communicators, ConnectSim);
  Session session(device, recorder, *model, options, communicators);
  device.Observe([&](const Operation& operation) {
    for (const KernelCost& kernel : operation.costs) {
      if (kernel.kind != KernelKind::kProduct) continue;
      const Product& p = kernel.product;
      const std::string group = GroupOf(operation.name, p, model->linear_layout());
      const auto at = std::find(groups.begin(), groups.end(), group) - groups.begin();
      if (at == static_cast<ptrdiff_t>(groups.size())) {
        groups.push_back(group);
        products.emplace_back();
      }
      Add(products[at],
          {group + ", " + p.name, p.m, p.n, p.k, p.a_transposed, p.b_transposed, p.adds, p.count});
    }
  });
  session.Train(1, options.FullTargets(), {}, [](int, const Batch&) {});
  StepWork work;
  for (const std::vector<StepProduct>& group : products) {
    work.products.insert(work.products.end(), group.begin(), group.end());
  }
  const int64_t seq = recipe.data.seq_len;
  const int64_t tokens = recipe.train.micro_batch_size * seq * options.executor.micro_batches;
  work.attention_flops =
      (model->FlopsPerToken(seq) - model->FlopsPerToken(0)) * static_cast<double>(tokens);
  return work;
}

namespace {

float* Floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

}  // namespace

StepProductsBench::StepProductsBench(StepWork work, int threads)
    : work_(std::move(work)),
      pool_(threads, /*spin=*/true),
      device_(CreateDevice(DeviceType::kCpu)) {
  int64_t a = 0, b = 0, c = 0;
  for (const StepProduct& p : work_.products) {
    a = std::max(a, p.m * p.k);
    b = std::max(b, p.k * p.n);
    c = std::max(c, p.m * p.n);
  }
  const auto filled = [&](int64_t n, float value) {
    Buffer buffer = device_->Allocate(n * int64_t{sizeof(float)}, MemoryPlace::kHost);
    std::fill_n(Floats(buffer), n, value);
    return buffer;
  };
  a_ = filled(a, 0.5f);
  b_ = filled(b, 0.25f);
  c_ = filled(c, 0.0f);
}

std::vector<double> StepProductsBench::Run() {
  std::vector<double> seconds;
  for (const StepProduct& p : work_.products) {
    const GemmOperand a{Floats(a_), p.a_transposed ? p.m : p.k, p.a_transposed};
    const GemmOperand b{Floats(b_), p.b_transposed ? p.k : p.n, p.b_transposed};
    const double begin = Seconds();
    for (int64_t i = 0; i < p.count; ++i) {
      Gemm(pool_, p.m, p.n, p.k, a, b, {Floats(c_), p.n}, {.beta = p.adds ? 1.0f : 0.0f});
    }
    seconds.push_back(Seconds() - begin);
  }
  return seconds;
}

double StepProductsBench::StepSeconds(const std::vector<double>& seconds) const {
  const double products = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  double flops = 0;
  for (const StepProduct& p : work_.products) flops += p.flops();
  return products * (1 + work_.attention_flops / flops);
}

}  // namespace fsdp
