// The store of ranks that are threads of one process: one object that all of them share.
// Tests: tests/trainer/comm/store_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_STORE_MEMORY_STORE_H_
#define FSDP_TRAIN_TRAINER_COMM_STORE_MEMORY_STORE_H_

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trainer/comm/store/store.h"

namespace fsdp {

// OnFailure and OnAnnouncement add a callback: each rank may have one. Fail() and Announce() call
// them, in the calling thread; null takes all of them back.
// Leave() does nothing: a thread does not vanish alone.
class MemoryStore final : public Store {
 public:
  explicit MemoryStore(double timeout_s = 600) : Store(timeout_s) {}

  void Set(const std::string& key, const std::string& value) override;
  int64_t Add(const std::string& key, int64_t delta) override;
  void Forget(const std::string& prefix) override;
  std::vector<std::optional<std::string>> Fetch(const std::vector<std::string>& keys,
                                                double timeout_s) override;
  void Fail(const std::string& why) override;
  std::string FailureReason() const override;
  void OnFailure(Callback callback) override;
  void Announce(const std::string& what) override;
  void OnAnnouncement(Callback callback) override;
  void Leave() override {}

 private:
  void CheckFailure() const;  // With mutex_ held.
  std::string Read(const std::string& text) const;
  void Hear(std::vector<Callback>& callbacks, const std::string& text, Callback callback);

  mutable std::mutex mutex_;  // Guards all below.
  std::condition_variable changed_;
  std::map<std::string, std::string> table_;
  std::string failure_, announcement_;
  std::mutex callbacks_mutex_;  // Taken after mutex_ is released: callbacks may take long.
  std::vector<Callback> on_failure_, on_announcement_;
};

// The sum as a new decimal string. Throws std::invalid_argument where `value` is no number.
std::string AddDecimal(const std::string& key, const std::string& value, int64_t delta);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_STORE_MEMORY_STORE_H_
