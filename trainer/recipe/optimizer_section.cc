// Tests: tests/trainer/recipe/load_test.cc
#include <algorithm>

#include "trainer/recipe/containers.h"
#include "trainer/recipe/sections.h"

namespace fsdp::recipe {
namespace {

// DType::kUInt8 is `8bit`.
Type<DType> StateDType() {
  static constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kUInt8};
  static constexpr EnumOps kOps = {
      [](const void* value) {
        return static_cast<size_t>(std::ranges::find(kDTypes, *static_cast<const DType*>(value)) -
                                   kDTypes);
      },
      [](void* value, size_t index) { *static_cast<DType*>(value) = kDTypes[index]; }};
  return Type<DType>(OneOfNames({"fp32", "bf16", "8bit"}, Later(), kOps));
}

Type<GroupRecipe> GroupType() {
  using R = GroupRecipe;
  return Map<R>({
      Key("match", &R::match, Text(),
          "A glob over the Hugging Face names of parameters: * stands for any characters.")
          .Required(),
      Key("weight_decay", &R::weight_decay, Nullable(Number({.at_least = 0, .fp32 = true})),
          "Weight decay of every parameter that matches, biases and norms included. null: as "
          "without the group."),
      Key("lr_scale", &R::lr_scale, Number({.at_least = 0, .fp32 = true}),
          "Multiplies the learning rate."),
      Key("frozen", &R::frozen, Boolean(),
          "true: not trained, with neither gradient nor optimizer state."),
      Key("rule", &R::rule, Nullable(OneOf<GroupRule>()),
          "adamw: updated by AdamW where optimizer.name is muon, all slices of a matrix or none. "
          "null: by optimizer.name's rule. Other optimizers do not read it."),
      Key("state_dtype", &R::state_dtype, Nullable(StateDType()),
          "dtype of the optimizer state of the parameters that match. null: as without the group."),
  });
}

Type<MuonOptions> MuonType() {
  using R = MuonOptions;
  return Map<R>({
      Key("momentum", &R::momentum, Number({.at_least = 0, .below = 1, .fp32 = true}),
          "Decay of the mean of gradients."),
      Key("nesterov", &R::nesterov, Boolean(), "true: Nesterov's momentum."),
      Key("ns_steps", &R::ns_steps, Integer(1, 100), "Steps of Newton and Schulz's iteration."),
      Key("ns_coefficients", &R::ns_coefficients, ArrayOf<3>(Number({.fp32 = true})),
          "The iteration's a, b and c: X becomes a X + (b A + c A^2) X, with A = X X^T. a is above "
          "0."),
      Key("ns_dtype", &R::ns_dtype, Nullable(OneOf<DType>({"fp32", "bf16"}, Later())),
          "dtype of the iteration, and of what ranks send each other for it. null: fp32 if "
          "fsdp.mixed_precision.param_dtype is fp32, otherwise bf16."),
      Key("adjust_lr", &R::adjust_lr, OneOf<AdjustLr>(),
          "The factor of a matrix's learning rate. original: the root of outputs / inputs, "
          "at least 1. match_rms_adamw: 0.2 times the root of the larger of the two, so that "
          "AdamW's rate fits."),
      Key("row_beta2", &R::row_beta2, Nullable(Number({.at_least = 0, .below = 1, .fp32 = true})),
          "NorMuon: decay of the second moment of each output's update, by whose root the update "
          "is divided. null: no such moment."),
  });
}

Type<AdafactorOptions> AdafactorType() {
  using R = AdafactorOptions;
  return Map<R>({
      Key("beta2_decay", &R::beta2_decay, Number({.at_least = -100, .at_most = 0}),
          "Step t weighs its own squares by t to this power: second moments are means over all "
          "steps at -1, of the last step alone at 0."),
      Key("eps", &R::eps, ArrayOf<2>(Number({.at_least = 0, .fp32 = true})),
          "The least root of a second moment, at least 1.1e-19; and the least root mean square of "
          "a tensor, by which its updates are multiplied."),
      Key("d", &R::d, Number({.at_least = 1, .fp32 = true}),
          "The largest root mean square of a tensor's update before it is multiplied."),
  });
}

}  // namespace

Type<OptimizerRecipe> OptimizerType() {
  using R = OptimizerRecipe;
  return Map<R>({
      Key("name", &R::name, OneOf<R::Kind>(),
          "The update rule. muon: for the weights of linear layers in blocks; all else is updated "
          "as by adamw. adafactor: one second moment for each row and column of a matrix."),
      Key("lr", &R::lr, Number({.at_least = 0, .fp32 = true}), "Highest learning rate."),
      Key("betas", &R::betas, ArrayOf<2>(Number({.at_least = 0, .below = 1, .fp32 = true})),
          "adamw, muon: decay of the first and of the second moment. Others do not read it."),
      Key("eps", &R::eps, Number({.at_least = 0, .fp32 = true}),
          "adamw, muon: added to the root of the second moment; at least 1.2e-38, the smallest "
          "normal number of fp32. Others do not read it."),
      Key("momentum", &R::momentum, Number({.at_least = 0, .below = 1, .fp32 = true}),
          "sgd: decay of the momentum. 0: no momentum. Others take only 0."),
      Key("weight_decay", &R::weight_decay, Number({.at_least = 0, .fp32 = true}),
          "Weight decay of matrices and embeddings. Biases and norms have none."),
      Key("state_dtype", &R::state_dtype, StateDType(),
          "dtype of moments and momentum. bf16 is rounded stochastically. 8bit, for adamw and "
          "muon, keeps a byte an element and a scale for 256 of them; vectors, and tensors of "
          "fewer than 4,096 elements, stay fp32. Parameters in fsdp.mixed_precision.keep_fp32 have "
          "fp32 state. adafactor takes only fp32."),
      Key("table_lr", &R::table_lr, Nullable(Number({.at_least = 0, .fp32 = true})),
          "Highest learning rate of embedding tables outside FSDP; it rises and falls with lr. "
          "Their rows are always updated by row-wise Adagrad, whatever optimizer.name says. "
          "null: lr."),
      Key("groups", &R::groups, ListOf(GroupType()),
          "Parameters with settings of their own. The first group that matches a name counts."),
      Key("muon", &R::muon, MuonType(),
          "muon: settings of its matrices, the weights of linear layers in blocks. Others "
          "do not read them."),
      Key("adafactor", &R::adafactor, AdafactorType(),
          "adafactor: its settings, those of torch.optim.Adafactor. Others do not read them."),
  });
}

}  // namespace fsdp::recipe
