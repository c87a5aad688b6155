#include "trainer/loop/choice.h"

#include <string>

#include "trainer/comm/store/store.h"
#include "trainer/comm/store/together.h"
#include "trainer/loop/gemm_choice.h"
#include "trainer/loop/gpu_transport.h"
#include "trainer/loop/kernel_choice.h"
#include "trainer/loop/multiprocessors.h"

namespace fsdp {

const char* Name(ChoiceId id) {
  switch (id) {
    case ChoiceId::kLibrary:
      return "library";
    case ChoiceId::kTransport:
      return "transport";
    case ChoiceId::kBlocks:
      return "collective_blocks";
    case ChoiceId::kAttention:
      return "attention";
    case ChoiceId::kConvolution:
      return "convolution";
    case ChoiceId::kAlgorithms:
      return "algorithms";
  }
  return "";
}

const std::vector<const Choice*>& AllChoices() {
  static const std::vector<const Choice*> all = {&LibraryChoice(),     &TransportChoice(),
                                                 &BlocksChoice(),      &AttentionChoice(),
                                                 &ConvolutionChoice(), &AlgorithmsChoice()};
  return all;
}

void Make(const Choice& choice, Choosing& choosing) {
  if (!choice.Concerns(choosing)) return;
  const Place& place = choosing.run.place;
  const bool meets = choice.meets() && place.has_peers();
  const std::string name = std::string("choice/") + Name(choice.id());
  choosing.mine = meets ? static_cast<size_t>(place.rank) : 0;
  choosing.how.clear();
  choosing.held = choice.Hold(choosing);
  choosing.told = {choice.Tell(choosing)};
  if (meets) {
    choosing.told = Exchange(*place.job->store, name, place.rank, place.world, choosing.told[0]);
  }
  choosing.answers.assign(choosing.told.size(), "");
  if (choice.Asks(choosing)) {
    const auto ask = [&] { return choice.Ask(choosing); };
    if (meets) {
      choosing.answers =
          Together(*place.job->store, name + "/answers", place.rank, place.world, ask);
    } else {
      choosing.answers = {ask()};
    }
  }
  choosing.run.chosen.push_back(choice.Record(choice.Agree(choosing), choosing));
}

void MakeAll(Choice::When when, Choosing& choosing) {
  for (const Choice* const choice : AllChoices()) {
    if (choice->when() == when) Make(*choice, choosing);
  }
}

}  // namespace fsdp
