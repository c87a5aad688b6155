#include "trainer/ops/row_adagrad.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "trainer/core/philox.h"
#include "trainer/ops/arguments.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/ops/table_rows.h"
#include "trainer/ops/update_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr int kLanes = 32;  // A warp's on CUDA: sums of squares have its order.

// Where `id` stands among a rank's rows; -1: it has sent none for it.
int64_t Find(const int64_t* ids, int64_t capacity, int64_t id) {
  const auto key = [](int64_t row) {
    return row < 0 ? std::numeric_limits<uint64_t>::max() : RowKey(row);
  };
  const int64_t* const at = std::partition_point(
      ids, ids + capacity, [&, of = RowKey(id)](int64_t row) { return row >= 0 && key(row) < of; });
  return at < ids + capacity && *at == id ? at - ids : -1;
}

float MeanOfSquares(const float* g, int64_t width) {
  float lanes[kLanes] = {};
  for (int64_t j = 0; j < width; j += kLanes) {
    const int64_t n = std::min<int64_t>(kLanes, width - j);
    for (int64_t lane = 0; lane < n; ++lane) lanes[lane] += g[j + lane] * g[j + lane];
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0] / static_cast<float>(width);
}

// The draws of a row's elements, which are numbered through the whole table. Each block of eight
// elements has one Philox block, whose words have two draws each.
class Draws {
 public:
  Draws(const RowAdagradOptions& options, int64_t update) {
    const auto count = static_cast<uint64_t>(update);
    constexpr uint32_t kTables = 3;  // Behind what update.h rounds.
    const PhiloxCounter words =
        Philox({static_cast<uint32_t>(count), static_cast<uint32_t>(count >> 32), kTables, 0},
               {static_cast<uint32_t>(options.seed), static_cast<uint32_t>(options.seed >> 32)});
    key_ = {words[0], words[1]};
  }
  uint32_t Next(uint64_t element) {
    if (element / 8 != block_) {
      block_ = element / 8;
      words_ =
          Philox({static_cast<uint32_t>(block_), static_cast<uint32_t>(block_ >> 32), 0, 0}, key_);
    }
    return words_[element % 8 / 2] >> (element % 2 * 16) & 0xffff;
  }

 private:
  PhiloxKey key_;
  uint64_t block_ = std::numeric_limits<uint64_t>::max();
  PhiloxCounter words_{};
};

BFloat16 Round(float value, uint32_t draw) {
  constexpr uint32_t kLargest = 0x7f7f0000;  // Values of this magnitude or more stay as they are.
  const auto bits = std::bit_cast<uint32_t>(value);
  const bool rounds = (bits & 0x7fff0000) < kLargest;
  const uint32_t up = rounds && (bits & 0xffff) + draw > 0xffff ? 1 : 0;
  return std::bit_cast<BFloat16>(static_cast<uint16_t>((bits >> 16) + up));
}

void RowAdagradCpu(ThreadPool& pool, const RowAdagradOptions& options,
                   const RowAdagradOperands& o) {
  if (!std::isfinite(*o.coefficient.As<float>())) return;
  const int64_t ranks = o.ids.shape[0], capacity = o.ids.shape[1], width = o.table.shape[1];
  const UpdateFactors& factors = *o.factors.As<UpdateFactors>();
  const float scale =
      *o.mean_scale.As<float>() / (o.loss_scale ? *o.loss_scale->As<float>() : 1.0f);
  const auto lr = static_cast<float>(options.lr_scale * factors.lr);
  const auto eps = static_cast<float>(options.eps);
  const int64_t* const ids = o.ids.As<int64_t>();
  pool.ParallelFor(ranks * capacity, 16, [&](int64_t begin, int64_t end) {
    Draws draws(options, factors.update);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = ids[i], rank = i / capacity;
      if (id < 0) continue;
      // The first rank that has sent something for a row has it.
      bool first = true;
      for (int64_t r = 0; r < rank && first; ++r) {
        first = Find(ids + r * capacity, capacity, id) < 0;
      }
      if (!first) continue;
      float* const g = o.gradients.As<float>() + i * width;
      for (int64_t r = rank + 1; r < ranks; ++r) {
        const int64_t at = Find(ids + r * capacity, capacity, id);
        if (at < 0) continue;
        const float* const more = o.gradients.As<float>() + (r * capacity + at) * width;
#pragma omp simd
        for (int64_t j = 0; j < width; ++j) g[j] += more[j];
      }
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) g[j] *= scale;
      float& sum = o.sums.As<float>()[id];
      sum += MeanOfSquares(g, width);
      const float step = lr / (std::sqrt(sum) + eps);
      if (o.table.dtype == DType::kFloat32) {
        float* const row = o.table.As<float>() + id * width;
#pragma omp simd
        for (int64_t j = 0; j < width; ++j) row[j] -= step * g[j];
        continue;
      }
      BFloat16* const row = o.table.As<BFloat16>() + id * width;
      const auto element = static_cast<uint64_t>((id * options.world + options.rank) * width);
      for (int64_t j = 0; j < width; ++j) {
        row[j] = Round(static_cast<float>(row[j]) - step * g[j],
                       draws.Next(element + static_cast<uint64_t>(j)));
      }
    }
  });
}

}  // namespace

void RowAdagrad(Stream& stream, const RowAdagradOptions& options, const RowAdagradOperands& o) {
  constexpr const char* kOp = "row_adagrad";
  const Arguments args(kOp);
  args.Require(options.lr_scale >= 0, "lr_scale, want at least 0");
  args.Require(options.eps > 0, "eps, want more than 0");
  args.Require(options.rank >= 0 && options.rank < options.world, "rank, want in [0, world)");
  args.CheckDType("table", o.table.dtype, {DType::kFloat32, DType::kBFloat16});
  args.CheckRank("table", o.table, o.table.dtype, 2);
  args.CheckRank("ids", o.ids, DType::kInt64, 2);
  const int64_t width = o.table.shape[1];
  args.Check("sums", o.sums, DType::kFloat32, {o.table.shape[0]});
  args.Check("gradients", o.gradients, DType::kFloat32, {o.ids.shape[0], o.ids.shape[1], width});
  args.Check("factors", o.factors, DType::kUInt8, BlockShape<UpdateFactors>());
  args.Check("coefficient", o.coefficient, DType::kFloat32, {1});
  args.Check("mean_scale", o.mean_scale, DType::kFloat32, {1});
  if (o.loss_scale) args.Check("loss_scale", *o.loss_scale, DType::kFloat32, {1});
  const std::pair<const char*, ConstView> written[] = {
      {"table", o.table}, {"sums", o.sums}, {"gradients", o.gradients}};
  for (const auto& [name, view] : written) {
    args.CheckDisjoint(name, view, "ids", o.ids);
    args.CheckDisjoint(name, view, "factors", o.factors);
    args.CheckDisjoint(name, view, "coefficient", o.coefficient);
    args.CheckDisjoint(name, view, "mean_scale", o.mean_scale);
  }
  args.CheckDisjoint("table", o.table, "sums", o.sums);
  args.CheckDisjoint("table", o.table, "gradients", o.gradients);
  args.CheckDisjoint("sums", o.sums, "gradients", o.gradients);
  const auto rows = static_cast<double>(o.ids.NumElements());
  const double table = rows * static_cast<double>(width * SizeOf(o.table.dtype));
  const auto gradients = static_cast<double>(o.gradients.bytes());
  const Cost cost{.flops = 6 * rows * static_cast<double>(width),
                  .bytes_read = static_cast<double>(o.ids.bytes()) + gradients + table + 4 * rows,
                  .bytes_written = gradients + table + 4 * rows};
  Operation operation{
      kOp,
      {o.ids, o.gradients, o.factors, o.coefficient, o.mean_scale, o.table, o.sums},
      {o.gradients, o.table, o.sums},
      {cost},
      {.cpu = OnCpu(RowAdagradCpu, options, o), .cuda = OnCuda(RowAdagradCuda, options, o)}};
  if (o.loss_scale) operation.reads.push_back(*o.loss_scale);
  stream.Enqueue(std::move(operation));
}

}  // namespace fsdp
