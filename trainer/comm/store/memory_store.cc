#include "trainer/comm/store/memory_store.h"

#include <charconv>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "trainer/core/errors.h"

namespace fsdp {

std::string AddDecimal(const std::string& key, const std::string& value, int64_t delta) {
  int64_t number = 0, sum = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end || __builtin_add_overflow(number, delta, &sum)) {
    throw std::invalid_argument("[Store::Add] cannot add " + std::to_string(delta) + " to \"" +
                                key + "\" = \"" + value.substr(0, 64) + "\"");
  }
  return std::to_string(sum);
}

void MemoryStore::CheckFailure() const {
  if (!failure_.empty()) throw CommError(failure_);
}

void MemoryStore::Set(const std::string& key, const std::string& value) {
  CheckSizes(key, value);
  {
    std::lock_guard lock(mutex_);
    CheckFailure();
    table_[key] = value;
  }
  changed_.notify_all();
}

int64_t MemoryStore::Add(const std::string& key, int64_t delta) {
  CheckSizes(key, "");
  int64_t sum = 0;
  {
    std::lock_guard lock(mutex_);
    CheckFailure();
    const auto it = table_.find(key);
    const std::string value = AddDecimal(key, it == table_.end() ? "0" : it->second, delta);
    table_[key] = value;
    sum = std::stoll(value);
  }
  changed_.notify_all();
  return sum;
}

void MemoryStore::Forget(const std::string& prefix) {
  CheckSizes(prefix, "");
  std::lock_guard lock(mutex_);
  CheckFailure();
  std::erase_if(table_, [&](const auto& pair) { return pair.first.starts_with(prefix); });
}

std::vector<std::optional<std::string>> MemoryStore::Fetch(const std::vector<std::string>& keys,
                                                           double timeout_s) {
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                            std::chrono::duration<double>(timeout_s));
  std::vector<std::optional<std::string>> values(keys.size());
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] {
    if (!failure_.empty()) return true;
    bool all = true;
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto it = table_.find(keys[i]);
      if (it != table_.end()) {
        values[i] = it->second;
      } else {
        all = false;
      }
    }
    return all;
  });
  CheckFailure();
  return values;
}

void MemoryStore::Fail(const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = why;
  }
  changed_.notify_all();
  std::lock_guard lock(callbacks_mutex_);
  for (const auto& callback : callbacks_) callback(why);
}

std::string MemoryStore::FailureReason() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void MemoryStore::OnFailure(std::function<void(const std::string&)> callback) {
  std::lock_guard lock(callbacks_mutex_);
  if (callback == nullptr) return callbacks_.clear();
  // Fail() sets the reason first: a callback is either here when it looks, or sees the reason.
  const std::string reason = FailureReason();
  if (reason.empty()) {
    callbacks_.push_back(std::move(callback));
  } else {
    callback(reason);
  }
}

}  // namespace fsdp
