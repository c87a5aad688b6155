#include "trainer/loop/convolution_choice.h"

#include <string>
#include <utility>

#include "trainer/engine/step_operations.h"
#include "trainer/ops/cudnn/convolution_cudnn.h"
#include "trainer/runtime/choose_device.h"

namespace fsdp {
namespace {

// Ranks compare what they have found: bits are those of one backend, and of one version.
class ConvolutionKernels final : public Choice {
 public:
  ChoiceId id() const override { return ChoiceId::kConvolution; }
  bool meets() const override { return false; }

  std::string Ask(Choosing& c) const override {
    ResolvedRun& run = c.run;
    ConvolutionBackend& backend = run.options.executor.convolution;
    if (!run.place.device) {
      backend.cudnn = run.target.device == DeviceType::kCuda;
      return "";
    }
    if (run.place.device->type != DeviceType::kCuda) return "";
    run.convolutions = StepConvolutions(*run.model, run.options);
    FoundConvolutions found = FindConvolutions(run.place.device->gpu, run.convolutions);
    backend = std::move(found.backend);
    if (!backend.cudnn) run.convolutions.clear();
    for (const ConvolutionCall& call : backend.refused) run.convolutions.erase(call);
    return found.name;
  }

  std::string Agree(const Choosing& c) const override { return c.answers[c.mine]; }

  Chosen Record(const std::string& name, Choosing& c) const override {
    Chosen chosen{.id = id(), .value = name};
    if (name.empty()) return chosen;
    chosen.line = "convolutions: " + name;
    const bool own = !c.run.options.executor.convolution.cudnn;
    chosen.labels = {{"convolutions", own ? "own kernels" : name}};
    return chosen;
  }
};

}  // namespace

const Choice& ConvolutionChoice() {
  static const ConvolutionKernels choice;
  return choice;
}

}  // namespace fsdp
