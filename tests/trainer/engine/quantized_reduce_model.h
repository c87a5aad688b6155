// The sums that reductions of quantised gradients must give, element by element: a model of the
// blocks, the hops and the orders of sums, on gradients that ranks alone have made.
#ifndef FSDP_TRAIN_TESTS_TRAINER_ENGINE_QUANTIZED_REDUCE_MODEL_H_
#define FSDP_TRAIN_TESTS_TRAINER_ENGINE_QUANTIZED_REDUCE_MODEL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "models/gpt2/gpt2.h"
#include "tests/testing/tiny_run.h"
#include "tests/trainer/ops/quantize_model.h"
#include "trainer/nn/model.h"

namespace fsdp::testing {

inline constexpr int64_t kMinReduced = 700;  // Some matrices of the tiny model are smaller.

struct ReduceSetting {
  int world = 1;
  int inside = 0;  // Ranks of a host, of equal ones; 0: one hop.
  int copies = 1;
  FsdpOptions::Quantize::Reduce reduce = FsdpOptions::Quantize::Reduce::kInt8;
  int block = 64;
  DType params = DType::kFloat32;
  int micro_batches = 1;
  DeviceType device = DeviceType::kCpu;
  TinyRun::Nccl nccl = TinyRun::Nccl::kNo;

  int shards() const { return world / copies; }
};

inline TinyRun RunOf(const ReduceSetting& s) {
  TinyRun run;
  run.world = s.world;
  run.steps = 1;
  run.mean = false;
  run.device = s.device;
  run.nccl = s.nccl;
  if (s.device == DeviceType::kCuda) run.ranks = RunProcessRanks;
  run.options.global_batch_size = 2 * s.world * s.micro_batches;
  ExecutorOptions& o = run.options.executor;
  o.mixed_precision.param_dtype = s.params;
  if (s.copies > 1) {
    o.sharding_strategy = Strategy::kHybridShard;
    o.shard_size = s.shards();
  }
  o.quantize = {.reduce = s.reduce, .block = s.block, .min_size = kMinReduced};
  o.inside = s.inside;
  return run;
}

// The gradients that rank `rank` adds in a micro-batch: the samples of all others weigh nothing,
// and one rank that goes through all of them has nobody to sum with.
inline const Tensors& OwnGradients(const ReduceSetting& s, int rank, int micro_batch) {
  static std::map<std::tuple<int, int, DType, DeviceType, int, int>, Tensors> found;
  const auto [at, added] =
      found.try_emplace({s.world, s.micro_batches, s.params, s.device, rank, micro_batch});
  if (!added) return at->second;
  TinyRun run = RunOf(s);
  const int64_t first = 2 * (micro_batch * s.world + rank);
  run.sample = [first, sample = SampleOf(run)](int64_t step, int64_t number,
                                               std::span<int32_t> tokens,
                                               std::span<float> weights) {
    sample(step, number, tokens, weights);
    if (number < first || number >= first + 2) std::ranges::fill(weights, 0.0f);
  };
  run.world = 1;
  run.options.executor.shard_size.reset();
  run.options.executor.sharding_strategy = Strategy::kFullShard;
  run.options.executor.quantize = {};
  run.nccl = TinyRun::Nccl::kNo;
  return at->second = Train(run).gradients;
}

class ReduceModel {
 public:
  explicit ReduceModel(const ReduceSetting& s) : s_(s) {}

  // The gradient of each parameter, as all ranks sum it.
  Tensors Gradients(const Gpt2& model) const {
    Tensors gradients;
    for (const ModelSegment& segment : model.segments()) {
      for (const Parameter* p : segment.parameters) {
        for (int m = 0; m < s_.micro_batches; ++m) {
          std::vector<std::vector<float>> copies;
          for (int c = 0; c < s_.copies; ++c) copies.push_back(OfCopy(*p, c, m));
          if (m == 0) {
            sums_ = copies;
          } else {
            for (int c = 0; c < s_.copies; ++c) Add(copies[c], sums_[c]);
          }
        }
        gradients[p->name()] = OverCopies(*p);
      }
    }
    return gradients;
  }

 private:
  static void Add(const std::vector<float>& more, std::vector<float>& sum) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  }

  bool IsQuantized(const Parameter& p) const {
    return s_.shards() > 1 && p.shape().rank() > 1 && p.shape().NumElements() >= kMinReduced;
  }

  // As it arrives.
  std::vector<float> Sent(const std::vector<float>& x, const Parameter& p) const {
    if (!IsQuantized(p)) return x;
    const auto form = s_.reduce == FsdpOptions::Quantize::Reduce::kInt8 ? QuantizedForm::kInt8
                                                                        : QuantizedForm::kInt4;
    std::vector<float> y(x.size());
    for (int64_t begin = 0; begin < std::ssize(x);) {
      const int64_t end = std::min<int64_t>(std::ssize(x), begin + s_.block);
      const float scale = ModelScale(form, {x.begin() + begin, x.begin() + end});
      for (; begin < end; ++begin) {
        y[begin] = ModelValue(form, ModelCode(form, x[begin], scale), scale);
      }
    }
    return y;
  }

  // The sum over the ranks of copy `c` in a micro-batch: within each host, then over hosts.
  std::vector<float> OfCopy(const Parameter& p, int c, int m) const {
    const int inside = s_.inside == 0 ? s_.shards() : s_.inside;
    std::vector<float> all;
    for (int host = 0; host < s_.shards() / inside; ++host) {
      std::vector<float> sum;
      for (int l = 0; l < inside; ++l) {
        const int rank = c * s_.shards() + host * inside + l;
        const std::vector<float> own = Sent(OwnGradients(s_, rank, m).at(p.name()), p);
        l == 0 ? void(sum = own) : Add(own, sum);
      }
      if (inside > 1 && inside < s_.shards()) sum = Sent(sum, p);
      host == 0 ? void(all = sum) : Add(sum, all);
    }
    return all;
  }

  // Each copy sums a part of the shard, and gives it to all.
  std::vector<float> OverCopies(const Parameter& p) const {
    if (s_.copies == 1) return sums_[0];
    std::vector<float> all = Sent(sums_[0], p);
    for (int c = 1; c < s_.copies; ++c) Add(Sent(sums_[c], p), all);
    return Sent(all, p);
  }

  const ReduceSetting s_;
  mutable std::vector<std::vector<float>> sums_;  // A parameter's, by copy.
};

inline void ExpectReduceModel(const ReduceSetting& s) {
  SCOPED_TRACE("world " + std::to_string(s.world) + ", " + std::to_string(s.inside) +
               " inside, copies " + std::to_string(s.copies) + ", form " +
               std::to_string(static_cast<int>(s.reduce)) + ", block " + std::to_string(s.block) +
               ", " + std::string(Name(s.params)) + ", micro-batches " +
               std::to_string(s.micro_batches));
  TinyRun run = RunOf(s);
  const TinyResult quantized = Train(run);
  const Tensors want = ReduceModel(s).Gradients(Gpt2(run.config));
  ASSERT_EQ(quantized.gradients.size(), want.size());
  for (const auto& [name, values] : want) {
    const std::vector<float>& got = quantized.gradients.at(name);
    ASSERT_EQ(got.size(), values.size()) << name;
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], values[i]) << name << " at " << i;
    }
  }
  run.options.executor.quantize = {};
  EXPECT_EQ(Train(run).gradients == want, s.shards() == 1);  // It makes a difference.
}

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TRAINER_ENGINE_QUANTIZED_REDUCE_MODEL_H_
