// The tensors whose second moments Adafactor keeps, and where a shard has pieces of them. A tensor
// is a slice of a parameter, as a Hugging Face file has it (nn/parameter.h). A pure function of
// model and layout. Ranks add up one value for each row and column of each tensor, and one for the
// tensor; the order of tensors is the layout's, so it depends on the wrapping, but on no rank.
// Tests: tests/trainer/fsdp/factor_layout_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_FACTOR_LAYOUT_H_
#define FSDP_TRAIN_TRAINER_FSDP_FACTOR_LAYOUT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainer/fsdp/layout.h"
#include "trainer/ops/factored.h"

namespace fsdp {

class Model;

class FactorLayout {
 public:
  struct Tensor {
    std::string name;       // The slice's.
    std::string parameter;  // The name in the layout.
    int flat = 0;
    FactoredTensor shape;
  };

  // lr_scale: of a tensor's name; null: 1.
  FactorLayout(const Model& model, const Layout& layout,
               const std::function<double(const std::string& name)>& lr_scale = nullptr);

  const std::vector<Tensor>& tensors() const { return tensors_; }  // All that train.
  int64_t values() const { return values_; }  // Rows and columns of all of them.
  // fp32 values of the two sums over ranks of a step.
  int64_t FirstSum() const { return values_ + static_cast<int64_t>(tensors_.size()); }
  int64_t SecondSum() const { return static_cast<int64_t>(tensors_.size()); }
  // The pieces of elements [begin, begin + count) of a shard. `at` counts from `begin`.
  std::vector<FactoredPiece> Pieces(const Layout& layout, int flat, int shard, int64_t begin,
                                    int64_t count) const;

 private:
  struct Placed {
    int tensor = 0;
    int64_t begin = 0, end = 0;  // Elements of the flat parameter.
  };
  std::vector<Tensor> tensors_;
  std::vector<std::vector<Placed>> of_flat_;
  int64_t values_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_FACTOR_LAYOUT_H_
