// One operation on a stream's time line: what devices measure and traces show.
#ifndef FSDP_TRAIN_TRAINER_CORE_SPAN_H_
#define FSDP_TRAIN_TRAINER_CORE_SPAN_H_

#include <string>

namespace fsdp {

struct Span {
  std::string name;
  std::string stream;
  double begin_s = 0, end_s = 0;  // On the device's clock.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_SPAN_H_
