#include "trainer/comm/nccl/group_news.h"

#include <sstream>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/start_thread.h"

namespace fsdp {
namespace {

constexpr double kHour_s = 3600;

}  // namespace

GroupNews::GroupNews(Store& store, std::string key, const RankGroup& group, Listener listener)
    : store_(store),
      key_(std::move(key)),
      group_(group),
      listener_(std::move(listener)),
      thread_(StartThread("the thread that hears of NCCL's ranks", [this] { Listen(); })) {}

// News are numbered from 1. One is "F", "L" or "A" (failed, left, asks), who tells it, and the
// rest.
int64_t GroupNews::Tell(const std::string& text) {
  const int64_t number = store_.Add(key_ + "/news", 1);
  store_.Set(key_ + "/news/" + std::to_string(number), text);
  return number;
}

void GroupNews::Fail(uint64_t calls, const std::string& why) {
  try {
    Tell("F " + std::to_string(group_.rank()) + " " + std::to_string(calls) + " " + why);
  } catch (const CommError&) {
  }
}

void GroupNews::Leave(uint64_t calls, const std::string& why) {
  if (!thread_.joinable()) return;
  try {
    Tell("L " + std::to_string(group_.rank()) + " " + std::to_string(calls) + " " + why);
  } catch (const CommError&) {  // Which the thread has heard, too.
  }
  thread_.join();
}

std::vector<std::optional<std::string>> GroupNews::Positions(double patience_s) {
  try {
    const int64_t number = Tell("A " + std::to_string(group_.rank()));
    std::vector<std::string> keys;
    for (int r = 0; r < group_.size(); ++r) {
      keys.push_back(key_ + "/at/" + std::to_string(number) + "/" + std::to_string(r));
    }
    return store_.Fetch(keys, patience_s);
  } catch (const CommError&) {
    return std::vector<std::optional<std::string>>(group_.size());
  }
}

void GroupNews::Listen() {
  try {
    for (int64_t number = 1;;) {
      const auto news = store_.Fetch({key_ + "/news/" + std::to_string(number)}, kHour_s);
      if (!news[0]) continue;
      if (!Hear(number++, *news[0])) return;
    }
  } catch (const CommError& error) {
    listener_.lost(error.what());
  }
}

bool GroupNews::Hear(int64_t number, const std::string& text) {
  std::istringstream in(text);
  char kind = 0;
  int from = 0;
  uint64_t calls = 0;
  in >> kind >> from;
  if (kind != 'A') in >> calls;
  in.get();
  std::string why;
  std::getline(in, why, '\0');
  const bool mine = from == group_.rank();
  if (kind == 'A') {
    store_.Set(key_ + "/at/" + std::to_string(number) + "/" + std::to_string(group_.rank()),
               listener_.position());
  } else if (!mine) {
    listener_.ended(calls, why);
  }
  return kind != 'L' || !mine;
}

}  // namespace fsdp
