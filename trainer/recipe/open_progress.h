// How an opening of data tells what it does.
// Tests: tests/trainer/loop/packing_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_OPEN_PROGRESS_H_
#define FSDP_TRAIN_TRAINER_RECIPE_OPEN_PROGRESS_H_

#include <functional>
#include <string>

namespace fsdp {

struct Recipe;

// Functions that an opening calls now and then.
struct OpenProgress {
  std::function<void(const std::string&)> say;     // May be null.
  std::function<void(const std::string&)> remark;  // Hears remarks that all ranks see. May be null.
  std::function<bool()> stop;                      // May be null.
  bool trains = true;                              // Else samples are read for an evaluation alone.

  // A remark on the source at `key`. Nobody hears one on a source of data.train of which an
  // evaluation reads nothing.
  void Remark(const Recipe& recipe, const std::string& key, const std::string& line) const;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RECIPE_OPEN_PROGRESS_H_
