#include "trainer/optim/update_rule.h"

#include "trainer/ops/update.h"

namespace fsdp {

std::vector<KeptState> KeptStates(const OptimizerOptions& options) {
  std::vector<KeptState> kept;
  if (options.kind != OptimizerKind::kSgd) {
    kept = {{"m", &DTypes::state}, {"v", &DTypes::state, /*of_whole=*/false}};
  } else if (options.momentum > 0) {
    kept = {{"momentum", &DTypes::state}};
  }
  if (options.ema) kept.push_back({"ema"});
  return kept;
}

void UpdateShard(Stream& stream, const OptimizerOptions& o, uint64_t seed,
                 const ShardOperands& of) {
  const UpdateExtras extras{seed, of.copy, o.ema ? of.kept.back() : View(), o.ema.value_or(0)};
  switch (o.kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kMuon:  // All but the matrices that it updates whole.
      return AdamW(stream, {o.beta1, o.beta2, o.eps}, of.rules, of.factors, of.coefficient,
                   of.gradient, of.master, of.kept[0], of.kept[1], extras);
    case OptimizerKind::kSgd:
      return Sgd(stream, {o.momentum}, of.rules, of.factors, of.coefficient, of.gradient, of.master,
                 o.momentum > 0 ? of.kept[0] : View(), extras);
  }
}

}  // namespace fsdp
