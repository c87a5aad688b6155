// A table of strings that all ranks of a job see: how they find each other, agree, and hear of a
// failure or a stop. For start-up, checkpoints and the end; never for tensors.
// Tests: tests/trainer/comm/store_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_STORE_STORE_H_
#define FSDP_TRAIN_TRAINER_COMM_STORE_STORE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/comm/rank_group.h"

namespace fsdp {

// Any thread may call any function. Every call throws CommError with FailureReason() once the job
// has failed, a blocked one at once. Keys up to 1 KiB, values up to 1 MiB: std::invalid_argument.
class Store {
 public:
  static constexpr size_t kMaxKey = 1 << 10;
  static constexpr size_t kMaxValue = 1 << 20;
  using Callback = std::function<void(const std::string&)>;

  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  virtual void Set(const std::string& key, const std::string& value) = 0;  // The last one counts.
  // Adds to a decimal number, 0 where there is no such key, and returns the sum; all ranks' calls
  // happen one after another. Throws std::invalid_argument where the value is not a number.
  virtual int64_t Add(const std::string& key, int64_t delta) = 0;
  // Removes all keys that begin with `prefix`, which nobody may need or wait for any more: or the
  // table of a long run grows for ever. The names of Exchange() and the like may be used again.
  virtual void Forget(const std::string& prefix) = 0;
  // The keys' values, once all are set; after `timeout_s`, whatever there is. Blocks.
  virtual std::vector<std::optional<std::string>> Fetch(const std::vector<std::string>& keys,
                                                        double timeout_s) = 0;

  // Block until set, up to timeout_s(); then CommError naming the keys that are not.
  std::string Get(const std::string& key);
  void Wait(const std::vector<std::string>& keys);

  // Tells all members that this one has failed and why; the first reason counts.
  virtual void Fail(const std::string& why) = 0;
  // Why the job has failed ("rank 2 disconnected from the store"); empty while it has not.
  virtual std::string FailureReason() const = 0;
  // `callback(reason)` is called once, from a thread of the store, or from here if it has failed
  // already: the place to abort communicators. It must not call the store. A null callback takes
  // the old one back; when that returns, it is not running.
  virtual void OnFailure(Callback callback) = 0;
  // Tells all members, this one too, once all have joined. The first text counts; it is not empty
  // and up to kMaxKey bytes.
  virtual void Announce(const std::string& what) = 0;
  // `callback(what)` is called once, when and as in OnFailure(). Nobody asks for it meanwhile: the
  // store sends it.
  virtual void OnAnnouncement(Callback callback) = 0;
  // From here on this member's absence is no failure. Implied by the destructor.
  virtual void Leave() = 0;

  double timeout_s() const { return timeout_s_; }

 protected:
  explicit Store(double timeout_s) : timeout_s_(timeout_s) {}

  static void CheckSizes(const std::string& key, const std::string& value);

 private:
  const double timeout_s_;
};

// All `size` ranks call the functions below, each with its own `rank`. A `name` is used once in the
// life of a store: std::invalid_argument otherwise. Ranks that do not come within the store's
// timeout: CommError naming them.

// Blocks until all are here.
void Barrier(Store& store, const std::string& name, int rank, int size);

// For ranks that are all about to throw the same: waits until each has come, so that none hears of
// another's end instead. Returns also where some do not come: they have ended.
void BeforeAllThrow(Store& store, const std::string& name, int rank, int size);

// Everybody's values, by rank.
std::vector<std::string> Exchange(Store& store, const std::string& name, int rank, int size,
                                  const std::string& value);
// The same among the ranks of a group, by rank of the group.
std::vector<std::string> Exchange(Store& store, const std::string& name, const RankGroup& group,
                                  const std::string& value);

// Throws ConfigError, on every rank, naming the first rank and label whose value is not rank 0's.
using Labels = std::vector<std::pair<std::string, std::string>>;
void Agree(Store& store, const std::string& name, int rank, int size, const Labels& labels);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_STORE_STORE_H_
