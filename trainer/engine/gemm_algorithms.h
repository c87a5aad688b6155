// The library algorithm for each product of a step, chosen by time, once for a version of the
// library and a kind of GPU.
#ifndef FSDP_TRAIN_TRAINER_ENGINE_GEMM_ALGORITHMS_H_
#define FSDP_TRAIN_TRAINER_ENGINE_GEMM_ALGORITHMS_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/engine/session.h"
#include "trainer/ops/gemm_library.h"
#include "trainer/runtime/device.h"

namespace fsdp {

struct GemmAlgorithms {
  std::string library;         // "cuBLASLt 13.1.0".
  std::string gpu;             // "NVIDIA H200".
  bool deterministic = false;  // As in OpenCublasLt(), and so is what follows.
  int64_t multiprocessors = 0;
  struct Choice {
    GemmAlgorithm algorithm;
    double seconds = 0;  // Time of a call, when it was chosen.
    bool operator==(const Choice&) const = default;
  };
  std::map<std::string, Choice> by_shape;  // By GemmShape::Text().

  bool operator==(const GemmAlgorithms&) const = default;
  // The same library, GPU and mode.
  bool IsOf(const GemmAlgorithms& other) const {
    return library == other.library && gpu == other.gpu && deterministic == other.deterministic &&
           multiprocessors == other.multiprocessors;
  }
};

// JSON, a line for each shape.
std::string ToJson(const GemmAlgorithms& algorithms);
// Empty where the text is none.
std::optional<GemmAlgorithms> ParseGemmAlgorithms(const std::string& json);

// The products of a step of rank 0 of `world` as `library` computes them, each once. Those of
// groups are computed by kernels of our own.
std::vector<GemmShape> StepGemmShapes(Model& model, const SessionOptions& options, int world,
                                      GemmLibrary& library);

// Gives the library the algorithms that `known` has for the shapes, as far as the library still
// accepts them. Returns the other shapes.
std::vector<GemmShape> UseKnown(const GemmAlgorithms& known, const std::vector<GemmShape>& shapes,
                                GemmLibrary& library);

// Times the library's candidates for each shape, at most 16, gives the library the fastest and adds
// it to `to`. Runs one product at a time on memory of its own (the largest shape's operands). The
// GPU first multiplies for 300 ms; then each candidate runs for at least 2 ms, and the two best
// again, by turns. Blocks for some 40 ms a shape. Throws MemoryError, DeviceError.
void TimeAlgorithms(Device& device, const std::vector<GemmShape>& shapes, GemmLibrary& library,
                    GemmAlgorithms* to);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_GEMM_ALGORITHMS_H_
