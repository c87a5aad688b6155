// The form of all that a run takes by asking its machine. A choice is made in five steps, in one
// order on every rank. Make() takes them and is alone in talking to other ranks.
//
//   hold     Reads the word that a resume has to go on with, in the run's directory or checkpoint.
//   tell     Says what the other ranks know of this one before any of them asks.
//   ask      Asks this rank's machine. An error of one rank becomes the error of all.
//   agree    Finds the word to take in what all ranks have told and answered. Touches nothing.
//   record   Puts it into the run. Says what of it goes to files, to people, and into the
//            comparison of ranks before the first step.
//
// Tests: tests/trainer/loop/choices_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_CHOICE_H_
#define FSDP_TRAIN_TRAINER_LOOP_CHOICE_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/loop/resolved_run.h"
#include "trainer/ops/gemm_library.h"
#include "trainer/runtime/device.h"

namespace fsdp {
// The run that choices are made for, and the choice that is being made.
struct Choosing {
  ResolvedRun& run;  // As far as it is resolved.

  // For choices on the device. Null and empty for those before the plan.
  Device* device = nullptr;
  GemmLibrary* products = nullptr;  // Null on a CPU, too.
  std::string checkpoint{};         // The run goes on from this one. Empty: from none.
  std::string algorithms{};         // The checkpoint's word on ChoiceId::kAlgorithms.
  std::function<void(std::string_view)> say = nullptr;  // Gets lines for people.

  // The state of a choice between its steps.
  std::string held{};
  std::vector<std::string> told{}, answers{};  // By rank.
  size_t mine = 0;    // The place of this rank's word: its rank, or 0 where ranks do not meet.
  std::string how{};  // How this rank's answer came about. Empty: it was not asked.
};

class Choice {
 public:
  enum class When { kBeforeThePlan, kOnTheDevice };

  virtual ~Choice() = default;
  virtual ChoiceId id() const = 0;
  virtual When when() const { return When::kBeforeThePlan; }
  // Whether ranks tell and answer each other, all of them. Otherwise each takes its own answer, and
  // labels show whether that is the same.
  virtual bool meets() const = 0;
  // Whether there is anything to choose. The same on all ranks.
  virtual bool Concerns(const Choosing&) const { return true; }

  virtual std::string Hold(const Choosing&) const { return ""; }
  virtual std::string Tell(const Choosing&) const { return ""; }
  // Whether ranks are asked, which follows from what all have told. The same on all ranks.
  virtual bool Asks(const Choosing&) const { return true; }
  // May put something of this rank's alone into the run, such as a handle. Throws Error.
  virtual std::string Ask(Choosing&) const = 0;
  virtual std::string Agree(const Choosing&) const = 0;
  // Throws Error where this rank cannot do what was agreed on.
  virtual Chosen Record(const std::string& agreed, Choosing&) const = 0;
};

const char* Name(ChoiceId id);  // "library", ...

// The order is that in which they are made: later ones stand on earlier ones.
const std::vector<const Choice*>& AllChoices();

// Takes the five steps and adds to choosing.run.chosen. All ranks of the place's job call it;
// blocks for them where they meet. Throws Error; as Together() does where ranks are asked together.
void Make(const Choice& choice, Choosing& choosing);
// Makes all choices of the list that are due at `when`.
void MakeAll(Choice::When when, Choosing& choosing);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_CHOICE_H_
