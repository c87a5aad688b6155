#include "trainer/bench/step_products.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/loop/setup.h"
#include "trainer/ops/cpu/gemm.h"
#include "trainer/ops/head_loss.h"

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

// y = x W, dx = dy W^T, dW += x^T dy, for `count` layers of this shape: as ops/linear_cpu.cc.
void AddLinear(std::vector<StepProduct>& products, WeightLayout layout, const Shape& weight,
               int64_t rows, int64_t count) {
  const bool in_out = layout == WeightLayout::kInOut;
  const int64_t in = weight[in_out ? 0 : 1], out = weight[in_out ? 1 : 0];
  const std::string name = "linear " + Times(in, out);
  Add(products, {name + ", forward", rows, out, in, false, !in_out, false, count});
  Add(products, {name + ", dx", rows, in, out, false, in_out, false, count});
  if (in_out) {
    Add(products, {name + ", dw", in, out, rows, true, false, true, count});
  } else {
    Add(products, {name + ", dw", out, in, rows, true, false, true, count});
  }
}

// A chunk of rows of logits, and both gradients: as ops/head_loss_cpu.cc.
void AddHead(std::vector<StepProduct>& products, int64_t vocab, int64_t hidden, int64_t rows,
             int64_t count) {
  Add(products, {"head, logits", rows, vocab, hidden, false, true, false, count});
  Add(products, {"head, dx", rows, hidden, vocab, false, false, false, count});
  Add(products, {"head, dw", vocab, hidden, rows, true, false, true, count});
}

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

StepWork StepWorkOf(const Model& model, int64_t micro_batch_size, int64_t seq_len,
                    int64_t micro_batches) {
  StepWork work;
  const int64_t rows = micro_batch_size * seq_len;
  int64_t hidden = 0;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* parameter : segment.parameters) {
      const Shape& shape = parameter->shape();
      if (shape.rank() != 2) continue;
      if (segment.is_block) {
        AddLinear(work.products, model.linear_layout(), shape, rows, micro_batches);
      } else if (shape[0] == model.vocab_size()) {
        hidden = shape[1];
      }
    }
  }
  const int64_t chunk = HeadLossChunkRows(rows, model.vocab_size());
  AddHead(work.products, model.vocab_size(), hidden, chunk, rows / chunk * micro_batches);
  if (rows % chunk > 0) {
    AddHead(work.products, model.vocab_size(), hidden, rows % chunk, micro_batches);
  }
  work.attention_flops = model.FlopsPerToken(seq_len) * static_cast<double>(rows * micro_batches);
  for (const StepProduct& product : work.products) work.attention_flops -= product.flops();
  return work;
}

StepWork StepWorkOf(const Recipe& recipe, int world) {
  if (recipe.model.lora) {
    throw ConfigError("model.lora: the products of a step with adapters are not known here");
  }
  if (recipe.train.activation_checkpointing != Recompute::kNone) {
    throw ConfigError(
        "train.activation_checkpointing: the products of recomputation are not known here; set it "
        "to none");
  }
  const std::unique_ptr<Model> model = BuildModel(recipe, ShapeFor(recipe));
  for (const ModelSegment& segment : model->segments()) {
    for (const Parameter* parameter : segment.parameters) {
      if (parameter->trainable()) continue;
      throw ConfigError("optimizer.groups: " + parameter->name() +
                        " is frozen; the products of such a step are not known here");
    }
  }
  const SessionOptions options = SessionOptionsFor(recipe, world, /*threads=*/1);
  return StepWorkOf(*model, recipe.train.micro_batch_size, recipe.data.seq_len,
                    options.executor.micro_batches);
}

namespace {

float* Floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

}  // namespace

StepProductsBench::StepProductsBench(StepWork work, int threads)
    : work_(std::move(work)), pool_(threads, /*spin=*/true) {
  int64_t a = 0, b = 0, c = 0;
  for (const StepProduct& p : work_.products) {
    a = std::max(a, p.m * p.k);
    b = std::max(b, p.k * p.n);
    c = std::max(c, p.m * p.n);
  }
  const auto filled = [&](int64_t n, float value) {
    Buffer buffer = device_.Allocate(n * int64_t{sizeof(float)}, MemoryPlace::kHost);
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
      Gemm(pool_, p.m, p.n, p.k, a, b, Floats(c_), p.n, {.beta = p.adds ? 1.0f : 0.0f});
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
