// Sleeping on a word. Unlike std::atomic::wait(), which in libstdc++ counts its waiters in a table
// that unrelated words share, this orders nobody but the two sides of one word. ThreadSanitizer
// takes the table for order between streams: with it a planted missing wait went unseen in 39 of 60
// runs, with this in none (tests/trainer/runtime/second_net_test.cc, one step a run).
// Tests: tests/trainer/runtime/cpu/cpu_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_FUTEX_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_FUTEX_H_

#include <atomic>
#include <cstdint>

namespace fsdp {

// Blocks while word == value, between threads of one process. What its writer did before storing
// another value with release order is visible afterwards.
void SleepWhile(const std::atomic<uint32_t>& word, uint32_t value);

// Wakes all who sleep on the word; to be called after each change of it that they wait for. Touches
// the address only, so the word may be gone already.
void WakeAll(const std::atomic<uint32_t>& word);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_FUTEX_H_
