// What multiplies matrices in a run: on a GPU a library, and the algorithms that it uses.
// Tests: tests/e2e/cuda_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_PRODUCTS_H_
#define FSDP_TRAIN_TRAINER_LOOP_PRODUCTS_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "trainer/engine/gemm_algorithms.h"
#include "trainer/engine/session.h"
#include "trainer/loop/job.h"
#include "trainer/ops/gemm_library.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/gpu_libraries.h"

namespace fsdp {

// cuBLASLt, for CUDA; no function elsewhere. Throws DeviceError where there is none that can be
// used: with its name, versions and the places looked in.
FoundGpuLibrary FindGemmLibrary(DeviceType device);

struct RunProducts {
  std::unique_ptr<GemmLibrary> library;  // Null on the CPU. Outlives the session.
  GemmAlgorithms algorithms;             // Of the job, for its checkpoints.
};

struct ProductsOfRun {
  bool deterministic = false;
  // What a checkpoint holds of the run that it goes on with: its algorithms as JSON, or nothing.
  std::string recorded{};
  std::string checkpoint{};  // Its name, for messages.
};

// The library on `device`, and its algorithms for the step's products. They are found by time, once
// for a kind of GPU and a version of the library: then they are in products/ of the
// CacheDirectory() of the host of the first rank with such a GPU; all others with one take up what
// it has. Before the run's own memory is allocated. A `deterministic` run that goes on uses those
// of its checkpoint, or throws ConfigError where GPU or library are others. All ranks call it; it
// blocks. `say` gets lines for people. Throws DeviceError, and as Together() does.
RunProducts OpenProducts(const FoundGpuLibrary& found, Device& device, const Job& job, Model& model,
                         const SessionOptions& options, const ProductsOfRun& run,
                         const std::function<void(std::string_view)>& say);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_PRODUCTS_H_
