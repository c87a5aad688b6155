#include "trainer/optim/update_rule.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "trainer/fsdp/executor.h"
#include "trainer/ops/state_codes.h"
#include "trainer/ops/update.h"

namespace fsdp {

int64_t KeptState::ElementsPerValue(const FlatParameter& flat) const {
  if (flat.dtypes.whole && !of_whole) return 0;
  return absmax_of == 0 ? 1 : flat.HasCodes() ? kCodeBlock : 0;
}

int64_t KeptState::ShardBytes(const FlatParameter& flat) const {
  const int64_t elements = ElementsPerValue(flat);
  return elements == 0 ? 0 : flat.shard_size / elements * SizeOf(In(flat.dtypes));
}

std::vector<KeptState> KeptStates(const OptimizerOptions& options, const Layout& layout) {
  std::vector<KeptState> kept;
  if (options.kind == OptimizerKind::kAdafactor) {
    kept = {{.name = "v", .of_whole = false}};
  } else if (options.kind != OptimizerKind::kSgd) {
    kept = {{"m", &DTypes::state}, {"v", &DTypes::state, /*of_whole=*/false}};
  } else if (options.momentum > 0) {
    kept = {{"momentum", &DTypes::state}};
  }
  if (std::ranges::any_of(layout.flat_parameters, &FlatParameter::HasCodes)) {
    if (options.kind == OptimizerKind::kSgd) {
      throw std::invalid_argument("[KeptStates] codes are of moments alone");
    }
    kept.push_back({.name = "m_absmax", .absmax_of = 2});
    kept.push_back({.name = "v_absmax", .of_whole = false, .absmax_of = 2});
  }
  if (options.ema) kept.push_back({"ema"});
  return kept;
}

bool UpdatesOnHost(const Executor& executor) {
  for (int f = 0; f < std::ssize(executor.layout().flat_parameters); ++f) {
    const bool frozen = executor.layout().flat_parameters[f].frozen;
    if (!frozen && executor.PlaceOf(f) != MemoryPlace::kDevice) return true;
  }
  return false;
}

void UpdateShard(Stream& stream, const OptimizerOptions& o, uint64_t seed,
                 const ShardOperands& of) {
  const UpdateExtras extras{seed, of.copy, o.ema ? of.kept.back() : View(), o.ema.value_or(0)};
  switch (o.kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kMuon:  // All but the matrices that it updates whole.
      if (of.kept[0].dtype == DType::kUInt8) {
        return AdamWCoded(stream, {o.beta1, o.beta2, o.eps}, of.rules, of.factors, of.coefficient,
                          of.gradient, of.master, {of.kept[0], of.kept[2]},
                          {of.kept[1], of.kept[3]}, extras);
      }
      return AdamW(stream, {o.beta1, o.beta2, o.eps}, of.rules, of.factors, of.coefficient,
                   of.gradient, of.master, of.kept[0], of.kept[1], extras);
    case OptimizerKind::kSgd:
      return Sgd(stream, {o.momentum}, of.rules, of.factors, of.coefficient, of.gradient, of.master,
                 o.momentum > 0 ? of.kept[0] : View(), extras);
    case OptimizerKind::kAdafactor:
      throw std::logic_error("[UpdateShard] Adafactor has an update of its own");
  }
}

}  // namespace fsdp
