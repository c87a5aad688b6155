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
  for (const auto& callback : on_failure_) callback(why);
}

std::string MemoryStore::FailureReason() const { return Read(failure_); }

void MemoryStore::OnFailure(Callback callback) { Hear(on_failure_, failure_, std::move(callback)); }

void MemoryStore::Announce(const std::string& what) {
  CheckSizes(what, "");
  {
    std::lock_guard lock(mutex_);
    CheckFailure();
    if (!announcement_.empty()) return;
    announcement_ = what;
  }
  std::lock_guard lock(callbacks_mutex_);
  for (const auto& callback : on_announcement_) callback(what);
}

void MemoryStore::OnAnnouncement(Callback callback) {
  Hear(on_announcement_, announcement_, std::move(callback));
}

std::string MemoryStore::Read(const std::string& text) const {
  std::lock_guard lock(mutex_);
  return text;
}

void MemoryStore::Hear(std::vector<Callback>& callbacks, const std::string& text,
                       Callback callback) {
  std::lock_guard lock(callbacks_mutex_);
  if (callback == nullptr) return callbacks.clear();
  // The text is set before the callbacks are called: a callback is either here then, or sees it.
  const std::string now = Read(text);
  if (now.empty()) {
    callbacks.push_back(std::move(callback));
  } else {
    callback(now);
  }
}

}  // namespace fsdp
