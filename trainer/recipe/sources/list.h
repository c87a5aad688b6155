// All sources of data, in the order in which they are listed to users.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_SOURCES_LIST_H_
#define FSDP_TRAIN_TRAINER_RECIPE_SOURCES_LIST_H_

// clang-format off
#define FSDP_TRAIN_DATA_SOURCES(X) \
  X(text) \
  X(tokens) \
  X(synthetic) \
  X(chat) \
  X(pairs) \
  X(images) \
  X(clicks)
// clang-format on

#endif  // FSDP_TRAIN_TRAINER_RECIPE_SOURCES_LIST_H_
