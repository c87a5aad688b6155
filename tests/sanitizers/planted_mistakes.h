// Registers a room's planted mistakes for the test that makes them.
#ifndef FSDP_TRAIN_TESTS_SANITIZERS_PLANTED_MISTAKES_H_
#define FSDP_TRAIN_TESTS_SANITIZERS_PLANTED_MISTAKES_H_

#include <map>
#include <string>

namespace fsdp::sanitizers {

struct Mistakes {
  int (*read_behind)(const volatile int* one);         // AddressSanitizer: the int behind this one.
  int (*add_to_largest)(const volatile int* largest);  // UBSan: INT_MAX + 1.
  void (*increment)(int* shared);                      // ThreadSanitizer: without a lock.
};

// Before main() has begun, by room.
inline std::map<std::string, Mistakes>& AllPlanted() {
  static std::map<std::string, Mistakes> all;
  return all;
}

struct Planted {
  Planted(const char* room, const Mistakes& mistakes) { AllPlanted()[room] = mistakes; }
};

}  // namespace fsdp::sanitizers

#endif  // FSDP_TRAIN_TESTS_SANITIZERS_PLANTED_MISTAKES_H_
