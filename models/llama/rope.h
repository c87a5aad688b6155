// The angles a position turns by, and how each scaling changes them: as transformers'
// modeling_rope_utils.py (github.com/huggingface/transformers, 5.x) has them, in float64.
//   default  f[i] = theta^(-2i / d), i < d / 2, d = head_dim       Su et al. 2021, arXiv:2104.09864
//   linear   f[i] / factor                                  Chen et al. 2023, arXiv:2306.15595
//   dynamic  theta (factor n / L - (factor - 1))^(d / (d - 2)) in place of theta, where the
//            sequence's length n is above L = max_position_embeddings    (Peng et al., appendix
//            B.1)
//   llama3   with wavelengths w = 2 pi / f and the original length L: f where w < L / high_freq,
//            f / factor where w > L / low_freq, between them (1 - s) f / factor + s f with
//            s = (L / w - low_freq) / (high_freq - low_freq)   Dubey et al. 2024, arXiv:2407.21783
//   yarn     (1 - g[i]) f / factor + g[i] f, with a ramp g from 1 to 0 between the dimensions that
//            turn beta_fast and beta_slow times in the original length, and the attention factor
//            0.1 ln(factor) + 1                            Peng et al. 2023, arXiv:2309.00071
#ifndef FSDP_TRAIN_MODELS_LLAMA_ROPE_H_
#define FSDP_TRAIN_MODELS_LLAMA_ROPE_H_

#include <cstdint>
#include <vector>

#include "models/llama/config.h"

namespace fsdp {

struct RopeFrequencies {
  std::vector<double> inverse;  // [head_dim / 2], radians a position.
  double attention_factor = 1;  // Multiplies sines and cosines.
};

// The frequencies for sequences of `seq_len` tokens; only `dynamic` depends on that length.
// transformers takes the longest sequence it has seen. This takes the batch's row, whatever
// documents lie in it, so that the angles do not depend on what else is in a batch. `config` passes
// Validate().
RopeFrequencies RopeFrequenciesOf(const LlamaConfig& config, int64_t seq_len);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_LLAMA_ROPE_H_
