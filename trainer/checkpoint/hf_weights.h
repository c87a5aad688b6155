#ifndef A
#define A
#include <span>
#include <string>
#include "models/gpt2/config.h"
#include "trainer/core/errors.h"
#include "trainer/core/view.h"
namespace fsdp {
inline Gpt2Config ReadHfGpt2Config(const std::string&) { throw CheckpointError("none"); }
struct HfWeights { explicit HfWeights(const std::string&) {} void Fill(const std::string&, const Shape&, int64_t, std::span<float>) {} };
}
#endif
