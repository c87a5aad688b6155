#ifndef B
#define B
#include <span>
#include <string>
#include "models/gpt2/config.h"
#include "trainer/core/errors.h"
#include "trainer/core/view.h"
namespace fsdp {
struct CheckpointWeights { explicit CheckpointWeights(const std::string&) {} void Fill(const std::string&, const Shape&, int64_t, std::span<float>) {} };
}
#endif
