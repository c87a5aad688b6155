#include "trainer/recipe/optimizer_rules.h"

#include <sstream>

#include "trainer/core/units.h"
#include "trainer/ops/factored.h"
#include "trainer/ops/update.h"
#include "trainer/recipe/schema.h"

namespace fsdp::recipe {
namespace {

// The kernel takes a smaller float for 0.
std::string AdamWEpsMessage(double eps) {
  std::ostringstream message;
  message << "optimizer.eps is " << eps
          << ", but adamw divides by it where a moment is 0: at least " << kMinAdamWEps
          << ", the smallest of fp32";
  return message.str();
}

void CheckStateDTypes(const Require& require, const OptimizerRecipe& optimizer) {
  const bool adafactor = optimizer.name == OptimizerRecipe::Kind::kAdafactor;
  const auto require_moments = [&](const std::string& key, DType state) {
    if (adafactor) {
      return require(state == DType::kFloat32, {key, "optimizer.name"},
                     key + " is `" + std::string(state == DType::kUInt8 ? "8bit" : Name(state)) +
                         "`, but `adafactor` keeps a value a row and a column, in fp32: set " +
                         key + " to fp32, or optimizer.name to adamw");
    }
    require(state != DType::kUInt8 || optimizer.name != OptimizerRecipe::Kind::kSgd,
            {key, "optimizer.name"},
            key + " is `8bit`, which is for `adamw` and `muon`, but optimizer.name is `" +
                std::string(Name(optimizer.name)) + "`: set " + key + " to fp32 or bf16");
  };
  require_moments("optimizer.state_dtype", optimizer.state_dtype);
  for (size_t i = 0; i < optimizer.groups.size(); ++i) {
    const GroupRecipe& group = optimizer.groups[i];
    const std::string key = "optimizer.groups[" + std::to_string(i) + "].state_dtype";
    require_moments(key, group.state_dtype.value_or(DType::kFloat32));
    require(!group.frozen || !group.state_dtype, {key},
            key + " is given, but the group is frozen and has no state: leave it out");
  }
}

void CheckMuon(const Require& require, const Recipe& recipe) {
  const OptimizerRecipe& optimizer = recipe.optimizer;
  const bool muon = optimizer.name == OptimizerRecipe::Kind::kMuon;
  require(!muon || optimizer.muon.ns_coefficients[0] > 0, {"optimizer.muon.ns_coefficients"},
          "the first coefficient is " + Shortest(optimizer.muon.ns_coefficients[0]) +
              ", want above 0: the iteration multiplies a small matrix by it");
}

// An optimizer whose update of a matrix depends on all of its elements.
void CheckOffload(const Require& require, const Recipe& recipe) {
  const OptimizerRecipe::Kind kind = recipe.optimizer.name;
  const FsdpOptions::CpuOffload& offload = recipe.fsdp.cpu_offload;
  const bool of_matrices =
      kind == OptimizerRecipe::Kind::kMuon || kind == OptimizerRecipe::Kind::kAdafactor;
  if (!of_matrices || !offload.optimizer) return;
  const std::string name = "`" + std::string(Name(kind)) + "`";
  const double share = offload.optimizer_share;
  require(share == 0 || share == 1, {"fsdp.cpu_offload.optimizer_share", "optimizer.name"},
          "fsdp.cpu_offload.optimizer_share is " + Shortest(share) + ", but " + name +
              " updates all matrices in one place: set that to 0 or 1, or optimizer.name to adamw");
  require(!offload.spill || kind == OptimizerRecipe::Kind::kMuon,
          {"fsdp.cpu_offload.spill", "optimizer.name"},
          "fsdp.cpu_offload.spill takes state to a disk, but " + name +
              " reads a matrix's more than once in an update: set that to null, or "
              "optimizer.name to adamw");
}

void CheckAdafactor(const Require& require, const Recipe& recipe) {
  const OptimizerRecipe& optimizer = recipe.optimizer;
  if (optimizer.name != OptimizerRecipe::Kind::kAdafactor) return;
  require(optimizer.adafactor.eps[0] >= kMinFactoredEps, {"optimizer.adafactor.eps"},
          "the first is " + Shortest(optimizer.adafactor.eps[0]) + ", want at least " +
              Shortest(kMinFactoredEps) +
              ": updates are divided by it where a moment is 0, "
              "and fp32 has no square of less");
}

}  // namespace

void CheckOptimizer(const Recipe& recipe, const Require& require) {
  const OptimizerRecipe& optimizer = recipe.optimizer;
  require(optimizer.name == OptimizerRecipe::Kind::kSgd ||
              optimizer.name == OptimizerRecipe::Kind::kAdafactor || optimizer.eps >= kMinAdamWEps,
          {"optimizer.eps"}, AdamWEpsMessage(optimizer.eps));
  CheckMuon(require, recipe);
  CheckAdafactor(require, recipe);
  CheckOffload(require, recipe);
  require(
      optimizer.name == OptimizerRecipe::Kind::kSgd || optimizer.momentum == 0,
      {"optimizer.momentum", "optimizer.name"},
      "optimizer.momentum belongs to `sgd`, but optimizer.name is `" +
          std::string(Name(optimizer.name)) + "`" +
          (optimizer.name == OptimizerRecipe::Kind::kMuon ? ": set optimizer.muon.momentum" : ""));
  CheckStateDTypes(require, optimizer);
}

}  // namespace fsdp::recipe
