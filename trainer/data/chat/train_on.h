// The part of a conversation that is trained on: the recipe's data.*.train_on.
// Tests: tests/trainer/data/chat/chat_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_CHAT_TRAIN_ON_H_
#define FSDP_TRAIN_TRAINER_DATA_CHAT_TRAIN_ON_H_

#include <cstdint>

namespace fsdp {

enum class TrainOn : uint8_t {
  kAssistant,  // All that the assistant says.
  kLast,       // The last that it says.
  kAll,
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_CHAT_TRAIN_ON_H_
