// Llama and its relatives (config.h): blocks with one gated MLP each.
// Tests: tests/models/llama/llama_test.cc
#ifndef FSDP_TRAIN_MODELS_LLAMA_LLAMA_H_
#define FSDP_TRAIN_MODELS_LLAMA_LLAMA_H_

#include <string>
#include <vector>

#include "models/llama/decoder.h"

namespace fsdp {

class Llama final : public Decoder {
 public:
  // As Decoder.
  explicit Llama(const LlamaConfig& config) : Decoder(config) { Build(); }

 private:
  void AddMlp(int64_t, const std::string& prefix) override {
    mlps_.push_back(NewMlp(prefix + "mlp.", config_.intermediate_size));
  }
  Var RunMlp(Tape& tape, const Var& normed, const Var& x, const Pass&,
             int64_t layer) const override {
    return Decoder::RunMlp(tape, mlps_[static_cast<size_t>(layer)], normed, x);
  }

  std::vector<Mlp> mlps_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_LLAMA_LLAMA_H_
