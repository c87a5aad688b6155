#include "trainer/ops/update.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "trainer/core/philox.h"
#include "trainer/core/round_up.h"
#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/update_kernels.h"
#include "trainer/ops/element_backends.h"
#include "trainer/ops/element_rules.h"
#include "trainer/ops/state_codes.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/ops/update_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

// The tensors of update number `update`, in the form for kernels.
UpdateTensors TensorsOf(const UpdateOperands& o, int64_t update) {
  const uint64_t count = update, seed = o.extras.seed;
  UpdateTensors tensors{.g = o.g.data,
                        .p = o.p.data,
                        .states = {o.states[0].data, o.states[1].data},
                        .copy = o.extras.copy.data,
                        .average = o.extras.average.data,
                        .g_dtype = o.g.dtype,
                        .p_dtype = o.p.dtype,
                        .state_dtype = o.states[0].dtype,
                        .copy_dtype = o.extras.copy.dtype,
                        .average_rate = static_cast<float>(1 - o.extras.decay)};
  const PhiloxCounter words =
      Philox({static_cast<uint32_t>(count), static_cast<uint32_t>(count >> 32), 0, 0},
             {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  tensors.draw_key[0] = words[0], tensors.draw_key[1] = words[1];
  return tensors;
}

// Writes the only output of a skipped step: the copy.
void CopyOfSkipped(ThreadPool& pool, const UpdateOperands& o) {
  const View& copy = o.extras.copy;
  if (copy.data == nullptr) return;
  if (copy.dtype != o.p.dtype) return CastCpu(pool, o.p, copy);
  std::copy_n(o.p.data, o.p.bytes(), copy.data);
}

// factors_of(c, rule, factors) returns the factors that `kernel` gets for the elements of a rule.
template <typename Factors, typename FactorsOf>
void UpdateShard(ThreadPool& pool, const UpdateOperands& o,
                 void (*UpdateKernels::*kernel)(const UpdateTensors&, const UpdateRun&,
                                                const Factors&),
                 const FactorsOf& factors_of) {
  constexpr int64_t kGrain = 1024;
  const float c = *o.coefficient.As<float>();
  if (!std::isfinite(c)) return CopyOfSkipped(pool, o);
  const UpdateFactors& factors = *o.factors.As<UpdateFactors>();
  const std::span<const ElementRule> rules = RulesIn(o.rules);
  const UpdateTensors tensors = TensorsOf(o, factors.update);
  const auto update = ForThisCpu(kUpdateAvx2, kUpdateAvx512).*kernel;
  pool.ParallelFor(o.p.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    ForEachRun(rules, begin, end, [&](int64_t at, int64_t stop, int index) {
      const ElementRule rule = index < 0 ? ElementRule() : rules[index];
      const UpdateRun run{at, stop - at, rule.tensor, rule.element + at - rule.begin};
      update(tensors, run, factors_of(c, rule, factors));
    });
  });
}

AdamWFactors FactorsOf(const AdamWConstants& constants, float c, const ElementRule& rule,
                       const UpdateFactors& factors) {
  const double lr = rule.lr_scale * factors.lr;
  return {.c = c,
          .beta1_new = constants.beta1_new,
          .beta2_old = constants.beta2_old,
          .beta2_new = constants.beta2_new,
          .eps = constants.eps,
          .root_factor = factors.root_factor,
          .keep = static_cast<float>(1 - lr * rule.weight_decay),
          .step_size = static_cast<float>(lr / factors.correction1)};
}

void AdamWCpu(ThreadPool& pool, const AdamWConstants& constants, const UpdateOperands& operands) {
  UpdateShard(pool, operands, &UpdateKernels::adamw,
              [&](float c, const ElementRule& rule, const UpdateFactors& factors) {
                return FactorsOf(constants, c, rule, factors);
              });
}

// The same, block by block: a rule's run has whole blocks, with the padding behind it.
template <typename Kernel, typename FactorsOf>
void UpdateShardCoded(ThreadPool& pool, const UpdateOperands& o, Kernel UpdateKernels::*kernel,
                      const FactorsOf& factors_of) {
  const float c = *o.coefficient.As<float>();
  const bool skipped = !std::isfinite(c);
  if (skipped) return CopyOfSkipped(pool, o);
  const UpdateFactors& factors = *o.factors.As<UpdateFactors>();
  const std::span<const ElementRule> rules = RulesIn(o.rules);
  const UpdateTensors tensors = TensorsOf(o, factors.update);
  const CodedTensors coded{{o.states[0].As<uint8_t>(), o.states[1].As<uint8_t>()},
                           {o.absmax[0].As<float>(), o.absmax[1].As<float>()}};
  const auto update = ForThisCpu(kUpdateAvx2, kUpdateAvx512).*kernel;
  const auto block_from = [](int64_t at) { return RoundUp(at, kCodeBlock); };
  pool.ParallelFor(o.p.NumElements() / kCodeBlock, /*grain=*/4, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kCodeBlock, end = last * kCodeBlock;
    ForEachRun(rules, begin, end, [&](int64_t at, int64_t stop, int index) {
      const ElementRule rule = index < 0 ? ElementRule() : rules[index];
      const int64_t from = block_from(at), to = block_from(stop);
      if (from == to) return;
      const UpdateRun run{from, to - from, rule.tensor, rule.element + from - rule.begin};
      update(tensors, coded, run, factors_of(c, rule, factors));
    });
  });
}

void AdamWCodedCpu(ThreadPool& pool, const AdamWConstants& constants, const UpdateOperands& o) {
  UpdateShardCoded(pool, o, &UpdateKernels::adamw_coded,
                   [&](float c, const ElementRule& rule, const UpdateFactors& factors) {
                     return FactorsOf(constants, c, rule, factors);
                   });
}

AdamWConstants Constants(const AdamWOptions& o) {
  return {.beta1_new = static_cast<float>(1 - o.beta1),
          .beta2_old = static_cast<float>(o.beta2),
          .beta2_new = static_cast<float>(1 - o.beta2),
          .eps = static_cast<float>(o.eps)};
}

void SgdCpu(ThreadPool& pool, float momentum, const UpdateOperands& operands) {
  UpdateShard(pool, operands, &UpdateKernels::sgd,
              [&](float c, const ElementRule& rule, const UpdateFactors& factors) -> SgdFactors {
                return {.c = c,
                        .momentum = momentum,
                        .lr = static_cast<float>(rule.lr_scale * factors.lr),
                        .weight_decay = static_cast<float>(rule.weight_decay)};
              });
}

void MomentumCpu(ThreadPool& pool, const MomentumConstants& constants,
                 const UpdateOperands& operands) {
  UpdateShard(pool, operands, &UpdateKernels::momentum,
              [&](float c, const ElementRule&, const UpdateFactors&) -> MomentumFactors {
                return {.c = c, .fresh = constants.fresh, .ahead = constants.ahead};
              });
}

void MomentumCodedCpu(ThreadPool& pool, const MomentumConstants& constants,
                      const UpdateOperands& operands) {
  UpdateShardCoded(pool, operands, &UpdateKernels::momentum_coded,
                   [&](float c, const ElementRule&, const UpdateFactors&) -> MomentumFactors {
                     return {.c = c, .fresh = constants.fresh, .ahead = constants.ahead};
                   });
}

constexpr std::initializer_list<DType> kKept = {DType::kFloat32, DType::kBFloat16};

// Checks the operands. `states`: their names, as many as the rule keeps.
void CheckUpdate(const Arguments& args, const UpdateOperands& o,
                 std::initializer_list<const char*> states) {
  args.CheckDType("p", o.p.dtype, kKept);
  args.CheckRank("p", o.p, o.p.dtype, 1);
  const Shape& shape = o.p.shape;
  args.Check("coefficient", o.coefficient, DType::kFloat32, {1});
  args.CheckGradient("g", o.g, shape);
  std::vector<std::pair<const char*, ConstView>> tensors = {{"p", o.p}};
  const View* state = o.states;
  for (const char* name : states) {
    args.CheckDType(name, state->dtype, kKept);
    args.Check(name, *state, o.states[0].dtype, shape);
    tensors.emplace_back(name, *state++);
  }
  tensors.emplace_back("g", o.g);
  const UpdateExtras& extras = o.extras;
  if (extras.copy.data != nullptr) {
    args.CheckDType("copy", extras.copy.dtype, kFloatDTypes);
    args.Check("copy", extras.copy, extras.copy.dtype, shape);
    tensors.emplace_back("copy", extras.copy);
  }
  if (extras.average.data != nullptr) {
    args.Check("average", extras.average, DType::kFloat32, shape);
    args.Require(extras.decay >= 0 && extras.decay < 1, "decay, want in [0, 1)");
    tensors.emplace_back("average", extras.average);
  }
  for (size_t a = 0; a < tensors.size(); ++a) {
    for (size_t b = a + 1; b < tensors.size(); ++b) {
      args.CheckDisjoint(tensors[a].first, tensors[a].second, tensors[b].first, tensors[b].second);
    }
  }
  CheckRuleTable(args, o.rules);
  args.Check("factors", o.factors, DType::kUInt8, BlockShape<UpdateFactors>());
}

// Checks the codes of an update whose other operands are right. `moments`: m, or m and v.
void CheckCoded(const Arguments& args, const UpdateOperands& o, size_t moments) {
  const int64_t n = o.p.NumElements();
  args.Require(n % kCodeBlock == 0, "the number of elements, want a multiple of kCodeBlock");
  const std::pair<const char*, ConstView> coded[] = {{"codes of m", o.states[0]},
                                                     {"absmax of m", o.absmax[0]},
                                                     {"codes of v", o.states[1]},
                                                     {"absmax of v", o.absmax[1]}};
  for (size_t a = 0; a < 2 * moments; ++a) {
    const auto& [name, view] = coded[a];
    const bool codes = a % 2 == 0;
    args.Check(name, view, codes ? DType::kUInt8 : DType::kFloat32,
               Shape{codes ? n : n / kCodeBlock});
    args.CheckDisjoint(name, view, "p", o.p);
    args.CheckDisjoint(name, view, "g", o.g);
    for (size_t b = 0; b < a; ++b) args.CheckDisjoint(name, view, coded[b].first, coded[b].second);
  }
}

AdamWConstants CheckedConstants(const Arguments& args, const AdamWOptions& o) {
  args.Require(o.beta1 >= 0 && o.beta1 < 1 && o.beta2 >= 0 && o.beta2 < 1,
               "beta1 and beta2, want in [0, 1)");
  const AdamWConstants constants = Constants(o);
  args.Require(constants.eps >= kMinAdamWEps, "eps, want >= kMinAdamWEps");
  return constants;
}

MomentumConstants CheckedConstants(const Arguments& args, const MomentumOptions& o) {
  args.Require(o.momentum >= 0 && o.momentum < 1, "momentum, want in [0, 1)");
  const auto fresh = static_cast<float>(1 - o.momentum);
  return {fresh, o.nesterov ? fresh : 0};
}

// The operation of that name, with the rule's FLOPs for an element, and the ranges read and
// written.
Operation UpdateOperation(const char* op, const UpdateOperands& o, double flops) {
  Operation operation{op, {o.rules, o.factors, o.coefficient, o.g}, {o.p}, {}};
  if (o.extras.average.data != nullptr) flops += 3;
  Cost cost{.flops = flops * static_cast<double>(o.p.NumElements())};
  for (const ConstView& view : {o.rules, o.factors, o.coefficient, o.g}) {
    cost.bytes_read += static_cast<double>(view.bytes());
  }
  for (const View& view :
       {o.p, o.states[0], o.states[1], o.absmax[0], o.absmax[1], o.extras.average, o.extras.copy}) {
    if (view.data == nullptr) continue;
    const double bytes = static_cast<double>(view.bytes());
    if (view.data != o.extras.copy.data) cost.bytes_read += bytes;
    cost.bytes_written += bytes;
    if (view.data != o.p.data) operation.writes.push_back(view);
  }
  operation.costs = {{cost, {.launches = o.p.NumElements() > 0}}};
  return operation;
}

}  // namespace

void AdamW(Stream& stream, const AdamWOptions& options, ConstView rules, ConstView factors,
           ConstView coefficient, ConstView g, View p, View m, View v, const UpdateExtras& extras) {
  constexpr const char* kOp = "adamw";
  const Arguments args(kOp);
  const UpdateOperands operands{rules, factors, coefficient, g, p, {m, v}, extras};
  CheckUpdate(args, operands, {"m", "v"});
  const AdamWConstants constants = CheckedConstants(args, options);
  Operation operation = UpdateOperation(kOp, operands, 16);
  operation.kernels.cpu = OnCpu(AdamWCpu, constants, operands);
  operation.kernels.cuda = OnCuda(AdamWCuda, constants, operands);
  stream.Enqueue(std::move(operation));
}

void AdamWCoded(Stream& stream, const AdamWOptions& options, ConstView rules, ConstView factors,
                ConstView coefficient, ConstView g, View p, const CodedMoment& m,
                const CodedMoment& v, const UpdateExtras& extras) {
  constexpr const char* kOp = "adamw_coded";
  const Arguments args(kOp);
  const UpdateOperands operands{
      rules, factors, coefficient, g, p, {m.codes, v.codes}, extras, {m.absmax, v.absmax}};
  CheckUpdate(args, operands, {});
  CheckCoded(args, operands, /*moments=*/2);
  const AdamWConstants constants = CheckedConstants(args, options);
  Operation operation = UpdateOperation(kOp, operands, 26);
  operation.kernels.cpu = OnCpu(AdamWCodedCpu, constants, operands);
  operation.kernels.cuda = OnCuda(AdamWCodedCuda, constants, operands);
  stream.Enqueue(std::move(operation));
}

void Sgd(Stream& stream, const SgdOptions& options, ConstView rules, ConstView factors,
         ConstView coefficient, ConstView g, View p, View b, const UpdateExtras& extras) {
  constexpr const char* kOp = "sgd";
  const Arguments args(kOp);
  const UpdateOperands operands{rules, factors, coefficient, g, p, {b, View()}, extras};
  args.Require(options.momentum >= 0 && options.momentum < 1, "momentum, want in [0, 1)");
  const bool has_buffer = options.momentum > 0;
  args.Require(has_buffer || b.data == nullptr, "b is given, want View() without momentum");
  if (has_buffer) {
    CheckUpdate(args, operands, {"b"});
  } else {
    CheckUpdate(args, operands, {});
  }
  Operation operation = UpdateOperation(kOp, operands, has_buffer ? 7 : 5);
  const auto momentum = static_cast<float>(options.momentum);
  operation.kernels.cpu = OnCpu(SgdCpu, momentum, operands);
  operation.kernels.cuda = OnCuda(SgdCuda, momentum, operands);
  stream.Enqueue(std::move(operation));
}

void Momentum(Stream& stream, const MomentumOptions& options, uint64_t seed, ConstView rules,
              ConstView factors, ConstView coefficient, ConstView g, View m, View u) {
  constexpr const char* kOp = "momentum";
  const Arguments args(kOp);
  const UpdateOperands operands{rules, factors, coefficient, g, u, {m, View()}, {.seed = seed}};
  args.CheckDType("u", u.dtype, {DType::kFloat32});
  CheckUpdate(args, operands, {"m"});
  const MomentumConstants constants = CheckedConstants(args, options);
  Operation operation = UpdateOperation(kOp, operands, 6);
  operation.kernels.cpu = OnCpu(MomentumCpu, constants, operands);
  operation.kernels.cuda = OnCuda(MomentumCuda, constants, operands);
  stream.Enqueue(std::move(operation));
}

void MomentumCoded(Stream& stream, const MomentumOptions& options, ConstView rules,
                   ConstView factors, ConstView coefficient, ConstView g, const CodedMoment& m,
                   View u) {
  constexpr const char* kOp = "momentum_coded";
  const Arguments args(kOp);
  const UpdateOperands operands{rules, factors,           coefficient, g,
                                u,     {m.codes, View()}, {},          {m.absmax, View()}};
  args.CheckDType("u", u.dtype, {DType::kFloat32});
  CheckUpdate(args, operands, {});
  CheckCoded(args, operands, /*moments=*/1);
  const MomentumConstants constants = CheckedConstants(args, options);
  Operation operation = UpdateOperation(kOp, operands, 11);
  operation.kernels.cpu = OnCpu(MomentumCodedCpu, constants, operands);
  operation.kernels.cuda = OnCuda(MomentumCodedCuda, constants, operands);
  stream.Enqueue(std::move(operation));
}

}  // namespace fsdp
