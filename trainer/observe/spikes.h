// Which numbers of a run's steps lie far above those of the steps before them.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_SPIKES_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_SPIKES_H_

#include <cstddef>
#include <deque>
#include <optional>

namespace fsdp {

class SpikeWindow {
 public:
  static constexpr size_t kSteps = 128;  // That a number is held against,
  static constexpr size_t kLeast = 32;   // and the fewest that say something.

  // Standard deviations (n - 1) by which `value` lies above the mean of the numbers before it;
  // nullopt where these are too few. A deviation counts as no less than fp32's rounding: numbers
  // that are all alike have one too. A number that is not finite does not count: a step like that
  // has a record of its own.
  std::optional<double> Add(double value);
  // The median of the numbers so far; 0 without any.
  double Median() const;

 private:
  std::deque<double> last_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_SPIKES_H_
