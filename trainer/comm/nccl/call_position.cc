#include "trainer/comm/nccl/call_position.h"

#include <algorithm>
#include <sstream>

namespace fsdp {
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
