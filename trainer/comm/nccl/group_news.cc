#include "trainer/comm/nccl/group_news.h"

#include <algorithm>
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

namespace {

std::string RankName(const RankGroup& group, int rank) {
  return "rank " + std::to_string(group.NameOf(rank));
}

}  // namespace

void CallPosition::Begin(const Call& call) {
  calls_.push_back(call);
  if (calls_.size() > kKept) calls_.pop_front();
}

const CallPosition::Call* CallPosition::Find(uint64_t sequence) const {
  const auto at = std::find_if(calls_.begin(), calls_.end(),
                               [&](const Call& call) { return call.sequence == sequence; });
  return at == calls_.end() ? nullptr : &*at;
}

// A line for each call.
std::string CallPosition::ToString() const {
  std::string out;
  for (const Call& call : calls_) out += std::to_string(call.sequence) + " " + call.text + "\n";
  return out;
}

CallPosition CallPosition::Parse(const std::string& text) {
  CallPosition position;
  std::istringstream in(text);
  for (Call call; in >> call.sequence && std::getline(in >> std::ws, call.text);) {
    position.Begin(call);
  }
  return position;
}

std::string Disagreement(uint64_t sequence, const RankGroup& group,
                         const CallPositions& positions) {
  int first = -1;
  for (int r = 0; r < group.size(); ++r) {
    const CallPosition::Call* const call = positions[r] ? positions[r]->Find(sequence) : nullptr;
    if (call == nullptr) continue;
    if (first < 0) first = r;
    const std::string& other = positions[first]->Find(sequence)->text;
    if (call->text == other) continue;
    return "ranks disagree: " + RankName(group, first) + " is in " + other + ", " +
           RankName(group, r) + " in " + call->text;
  }
  return "";
}

std::string WhoIsLate(uint64_t sequence, const RankGroup& group, const CallPositions& positions) {
  std::string out;
  for (int r = 0; r < group.size(); ++r) {
    std::string how;
    if (!positions[r]) {
      how = " does not answer";
    } else if (const CallPosition::Call* const last = positions[r]->newest(); last == nullptr) {
      how = " has not arrived (no collective yet)";
    } else if (last->sequence < sequence) {
      how = " has not arrived (its last was " + last->text.substr(0, last->text.find(" (")) + ")";
    } else {
      continue;
    }
    out += (out.empty() ? "" : ", ") + RankName(group, r) + how;
  }
  return out;
}

}  // namespace fsdp
