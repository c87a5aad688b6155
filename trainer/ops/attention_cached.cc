#include "trainer/ops/attention_cached.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "trainer/core/view.h"
#include "trainer/ops/arguments.h"
#include "trainer/ops/attention_backends.h"
#include "trainer/ops/attention_checks.h"
#include "trainer/ops/cpu/head_rows.h"
#include "trainer/ops/cpu/vector_math.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

// Floats of a group's scores: whole cache lines, so that no two threads write to one line.
inline int64_t ScoresOfAGroup(const AttentionCachedDims& dims) {
  return (dims.capacity + 15) / 16 * 16;
}

float Dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// The bias of a query's scores: table[buckets[j]] for key j. Null: none.
struct BiasRow {
  const float* table = nullptr;
  const int32_t* buckets = nullptr;
};

// One query over `count` keys and values.
void AttendOne(const float* q, const HeadRows<const float>& k, const HeadRows<const float>& v,
               int64_t count, int64_t head_dim, float scale, const BiasRow& bias, float* scores,
               float* out) {
  float max = -INFINITY;
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = scale * Dot(q, k.data + j * k.stride, head_dim);
    if (bias.table != nullptr) scores[j] += bias.table[bias.buckets[j]];
    max = std::max(max, scores[j]);
  }
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = Exp(scores[j] - max);
    sum += scores[j];
  }
  std::fill_n(out, head_dim, 0.0f);
  if (count == 0) return;
  const float normalise = 1 / sum;
  for (int64_t j = 0; j < count; ++j) {
    const float p = scores[j] * normalise;
    const float* row = v.data + j * v.stride;
#pragma omp simd
    for (int64_t i = 0; i < head_dim; ++i) out[i] += p * row[i];
  }
}

// Row t of a head of new keys or values becomes row positions[t] of the cache.
void Remember(const AttentionCachedDims& s, const ConstHeads& x, int64_t sample, int64_t head,
              const int32_t* positions, const Heads& cache) {
  const int64_t size = SizeOf(x.tensor.dtype);
  const std::byte* const from = x.tensor.data + HeadBegin(x, sample, head) * size;
  std::byte* const to = cache.tensor.data + HeadBegin(cache, sample, head) * size;
  for (int64_t t = 0; t < s.n; ++t) {
    std::memcpy(to + positions[t] * cache.stride() * size, from + t * x.stride() * size,
                s.head_dim * size);
  }
}

void AttentionCachedCpu(ThreadPool& pool, const AttentionCachedDims& s, const AttentionInputs& in,
                        const View& cache_k, const View& cache_v, const View& out_view,
                        const View& workspace) {
  const bool causal = in.mask == AttentionMask::kCausal;
  const int64_t group = s.heads / s.kv_heads;
  const Heads cached_keys(cache_k, 0, s.kv_heads), cached_values(cache_v, 0, s.kv_heads);
  const ConstHeads all_keys = causal ? ConstHeads(cached_keys) : in.k;
  const ConstHeads all_values = causal ? ConstHeads(cached_values) : in.v;
  const Heads out(out_view, 0, s.heads);
  const int64_t columns = in.HasBias() ? in.bias.table.shape[1] : 0;
  pool.ParallelFor(s.batch * s.kv_heads, 1, [&](int64_t begin, int64_t end) {
    RowBuffers cached(out_view.dtype, 2, s.capacity * s.head_dim);
    RowBuffers rows(out_view.dtype, 2, s.n * s.head_dim);
    RowBuffers table(out_view.dtype, 1, columns);
    for (int64_t task = begin; task < end; ++task) {
      float* const scores = workspace.As<float>() + task * ScoresOfAGroup(s);
      const int64_t b = task / s.kv_heads, head = task % s.kv_heads;
      const int32_t* const positions =
          in.HasPositions() ? in.positions.As<int32_t>() + b * s.n : nullptr;
      int64_t count = s.capacity;  // Keys that some query sees.
      if (causal) {
        Remember(s, in.k, b, head, positions, cached_keys);
        Remember(s, in.v, b, head, positions, cached_values);
        count = s.n == 0 ? 0 : 1 + *std::max_element(positions, positions + s.n);
      } else if (in.HasLengths()) {
        count = std::clamp<int64_t>(in.lengths.As<int32_t>()[b], 0, s.capacity);
      }
      const HeadRows<const float> keys = ReadHead(all_keys, b, head, count, cached[0]);
      const HeadRows<const float> values = ReadHead(all_values, b, head, count, cached[1]);
      for (int64_t h = head * group; h < (head + 1) * group; ++h) {
        const HeadRows<const float> q = ReadHead(in.q, b, h, s.n, rows[0]);
        const HeadRows<float> to = HeadToWrite(out, b, h, rows[1]);
        BiasRow bias;
        if (in.HasBias()) {
          bias.table = ReadFloats(in.bias.table, h * columns, columns, table[0]);
        }
        for (int64_t t = 0; t < s.n; ++t) {
          if (in.HasBias()) {
            const int64_t of_positions = in.bias.buckets.shape[0] - s.capacity + 1;
            bias.buckets = in.bias.buckets.As<int32_t>() + of_positions - 1 - positions[t];
          }
          AttendOne(q.data + t * q.stride, keys, values, causal ? positions[t] + 1 : count,
                    s.head_dim, in.Scale(), bias, scores, to.data + t * to.stride);
        }
        WriteHead(to, s.n, out, b, h);
      }
    }
  });
}

constexpr const char* kOp = "attention_cached";

}  // namespace

int64_t AttentionCachedWorkspaceBytes(const AttentionCachedDims& dims, DType dtype,
                                      DeviceType device) {
  Arguments(kOp).CheckHasKernels("q", dtype, kFloatDTypes, device);
  if (device != DeviceType::kCpu) return 0;
  return dims.batch * dims.kv_heads * ScoresOfAGroup(dims) * static_cast<int64_t>(sizeof(float));
}

void AttentionCached(Stream& stream, const AttentionInputs& in, View cache_k, View cache_v,
                     View out, View workspace) {
  const Arguments args(kOp);
  const DType dtype = in.q.tensor.dtype;
  args.CheckDType("q", dtype, kFloatDTypes);
  CheckHeads(args, "q", in.q, dtype);
  CheckHeads(args, "k", in.k, dtype);
  CheckHeads(args, "v", in.v, dtype);
  args.Require(in.dropout.rate == 0, "dropout.rate, want 0: nothing is trained over a cache");
  const bool causal = in.mask == AttentionMask::kCausal;
  args.Require(!causal || !in.HasLengths(), "lengths, which a cache of its own tokens has not");
  if (in.scale) {
    args.Require(*in.scale > 0 && std::isfinite(*in.scale), "scale, want a positive number");
  }
  if (causal) {
    args.CheckRank("cache_k", cache_k, dtype, 4);
  } else {
    args.Require(cache_k.data == nullptr && cache_v.data == nullptr,
                 "a cache, where all keys are there");
  }
  const Shape& q = in.q.tensor.shape;
  const AttentionCachedDims shape{q[0],       q[1], in.q.count,
                                  in.k.count, q[3], (causal ? cache_k : in.k.tensor).shape[1]};
  for (const auto& [name, heads] : {std::pair("k", in.k), std::pair("v", in.v)}) {
    const Shape& other = heads.tensor.shape;
    if (other[0] != shape.batch || other[1] != (causal ? shape.n : shape.capacity) ||
        other[3] != shape.head_dim || heads.count != shape.kv_heads) {
      args.Fail(std::string(name) + " is " + std::to_string(heads.count) + " heads of " +
                other.ToString() + ", q of " + q.ToString());
    }
  }
  args.Require(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
               "the heads of k, want a divisor of those of q");
  args.Require(shape.head_dim >= 1 && shape.head_dim <= kMaxHeadDim, "head_dim, want in [1, 256]");
  args.Check("out", out, dtype, {shape.batch, shape.n, shape.heads, shape.head_dim});
  NamedViews read = {{"q", in.q.tensor}, {"k", in.k.tensor}, {"v", in.v.tensor}};
  NamedViews results = {{"out", out}, {"workspace", workspace}};
  if (causal) {
    const Shape cache{shape.batch, shape.capacity, shape.kv_heads, shape.head_dim};
    args.Check("cache_k", cache_k, dtype, cache);
    args.Check("cache_v", cache_v, dtype, cache);
    results.insert(results.begin(), {{"cache_k", cache_k}, {"cache_v", cache_v}});
  }
  if (causal || in.HasBias()) {
    args.Check("positions", in.positions, DType::kInt32, {shape.batch, shape.n});
    read.emplace_back("positions", in.positions);
  } else {
    args.Require(!in.HasPositions(), "positions, which a full mask has with a bias alone");
  }
  if (in.HasLengths()) {
    args.Check("lengths", in.lengths, DType::kInt32, {shape.batch});
    read.emplace_back("lengths", in.lengths);
  }
  if (in.HasBias()) {
    args.CheckRank("bias.table", in.bias.table, dtype, 2);
    args.Check("bias.table", in.bias.table, dtype, {shape.heads, in.bias.table.shape[1]});
    args.CheckRank("bias.buckets", in.bias.buckets, DType::kInt32, 1);
    args.Require(in.bias.buckets.shape[0] >= shape.capacity,
                 "bias.buckets, want one for each key and position");
    read.emplace_back("bias.table", in.bias.table);
    read.emplace_back("bias.buckets", in.bias.buckets);
  }
  for (const auto& [name, result] : results) {
    for (const auto& [of, view] : read) args.CheckDisjoint(name, result, of, view);
    for (const auto& [other_name, other] : results) {
      if (other_name == name) break;
      args.CheckDisjoint(other_name, other, name, result);
    }
  }
  args.CheckWorkspace(workspace,
                      AttentionCachedWorkspaceBytes(shape, dtype, stream.device().kernel_type()));

  const auto out_bytes = static_cast<double>(out.bytes());
  const double keys =
      2.0 * shape.batch * shape.capacity * shape.kv_heads * shape.head_dim * SizeOf(dtype);
  const double bias =
      in.HasBias() ? static_cast<double>(in.bias.table.bytes() + in.bias.buckets.bytes()) : 0;
  const Cost cost{.flops = 4 * static_cast<double>(out.NumElements() * shape.capacity),
                  .bytes_read = (causal ? 2 : 1) * out_bytes + keys + bias,
                  .bytes_written = (causal ? 2 : 1) * out_bytes};
  const OnGpu gpu{.launches = out.NumElements() > 0 ? (causal ? 2 : 1) : 0};  // Remember, attend.
  Operation operation{kOp, {in.q.tensor, in.k.tensor, in.v.tensor}, {}, {}};
  for (size_t i = 3; i < read.size(); ++i) operation.reads.push_back(read[i].second);
  if (causal) operation.writes = {cache_k, cache_v};
  operation.writes.insert(operation.writes.end(), {out, workspace});
  operation.costs = {{KernelKind::kAttention, cost, gpu}};
  operation.kernels = {
      .cpu = OnCpu(AttentionCachedCpu, shape, in, cache_k, cache_v, out, workspace),
      .cuda = OnCuda(AttentionCachedCuda, shape, in, cache_k, cache_v, out)};
  stream.Enqueue(std::move(operation));
}

}  // namespace fsdp
