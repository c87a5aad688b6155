#include "trainer/runtime/stream_checker.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace fsdp {
namespace {

void Join(VectorClock& into, const VectorClock& from) {
  if (into.size() < from.size()) into.resize(from.size(), 0);
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

}  // namespace

std::string StreamChecker::Race::ToString() const {
  std::ostringstream out;
  out << "stream checker: " << second << " is not ordered after " << first << ": " << bytes.bytes
      << " bytes at 0x" << std::hex << bytes.begin;
  return out.str();
}

StreamChecker::StreamChecker(std::function<void(const Race&)> on_race)
    : on_race_(std::move(on_race)) {
  if (!on_race_) {
    on_race_ = [](const Race& race) {
      std::fprintf(stderr, "%s\n", race.ToString().c_str());
      std::abort();
    };
  }
}

int StreamChecker::AddStream(std::string name) {
  names_.push_back(std::move(name));
  clocks_.emplace_back();
  return static_cast<int>(names_.size()) - 1;
}

void StreamChecker::OnOperation(int stream, const char* name, const std::vector<Range>& reads,
                                const std::vector<Range>& writes) {
  VectorClock& clock = clocks_[stream];
  // It is enqueued after all that the host has seen, and done: the host's own entry counts nothing.
  Join(clock, clocks_[kHost]);
  if (clock.size() <= static_cast<size_t>(stream)) clock.resize(stream + 1, 0);
  ++clock[stream];
  for (const Range& range : reads) Access(stream, name, range, /*write=*/false);
  for (const Range& range : writes) Access(stream, name, range, /*write=*/true);
}

VectorClock StreamChecker::OnRecord(int stream) {
  Join(clocks_[stream], clocks_[kHost]);
  return clocks_[stream];
}

void StreamChecker::OnWait(int stream, const VectorClock& event) { Join(clocks_[stream], event); }

void StreamChecker::OnHostWait(const VectorClock& event) { Join(clocks_[kHost], event); }

void StreamChecker::OnHostWaitFailed(int stream, const VectorClock& event) {
  VectorClock own(std::min<size_t>(stream + 1, event.size()), 0);
  if (own.size() == static_cast<size_t>(stream) + 1) own[stream] = event[stream];
  Join(clocks_[kHost], own);
}

void StreamChecker::OnHostAccess(const char* name, const std::vector<Range>& reads,
                                 const std::vector<Range>& writes) {
  for (const Range& range : reads) Access(kHost, name, range, /*write=*/false);
  for (const Range& range : writes) Access(kHost, name, range, /*write=*/true);
}

void StreamChecker::OnFree(Range range) {
  Access(kHost, "free", range, /*write=*/true);
  const uintptr_t end = range.begin + range.bytes;
  segments_.erase(segments_.lower_bound(range.begin), segments_.lower_bound(end));
}

bool StreamChecker::Ordered(const Use& use, int stream) const {
  if (use.stream < 0 || use.stream == stream) return true;
  const VectorClock& clock = clocks_[stream];
  return static_cast<size_t>(use.stream) < clock.size() && clock[use.stream] >= use.time;
}

void StreamChecker::Split(uintptr_t at) {
  auto it = segments_.upper_bound(at);
  if (it == segments_.begin()) return;
  --it;
  if (it->first == at || it->second.end <= at) return;
  Segment tail = it->second;
  it->second.end = at;
  segments_.emplace(at, std::move(tail));
}

void StreamChecker::Access(int stream, const char* name, Range range, bool write) {
  if (range.bytes <= 0) return;
  const uintptr_t begin = range.begin, end = range.begin + range.bytes;
  const Use use{name, stream, clocks_[stream][stream]};
  Split(begin);
  Split(end);
  for (uintptr_t at = begin; at < end;) {
    auto it = segments_.lower_bound(at);
    if (it == segments_.end() || it->first > at) {  // A gap: memory not used before.
      const uintptr_t gap_end = it == segments_.end() || it->first > end ? end : it->first;
      it = segments_.emplace(at, Segment{gap_end, {}, {}}).first;
    }
    Segment& segment = it->second;
    if (!Ordered(segment.write, stream)) Report(segment.write, use, at, segment.end);
    if (write) {
      for (const Use& read : segment.reads) {
        if (!Ordered(read, stream)) Report(read, use, at, segment.end);
      }
      segment.write = use;
      segment.reads.clear();
    } else {
      const auto mine = std::find_if(segment.reads.begin(), segment.reads.end(),
                                     [&](const Use& u) { return u.stream == stream; });
      if (mine != segment.reads.end()) {
        *mine = use;
      } else {
        segment.reads.push_back(use);
      }
    }
    at = segment.end;
  }
  if (!write) return;
  // A write makes its bytes alike again: one segment, so that the map does not grow with the run.
  segments_[begin].end = end;
  segments_.erase(std::next(segments_.find(begin)), segments_.lower_bound(end));
}

std::string StreamChecker::Describe(const Use& use) const {
  return std::string(use.name) + " on " + names_[use.stream];
}

void StreamChecker::Report(const Use& first, const Use& second, uintptr_t begin, uintptr_t end) {
  ++races_;
  Range bytes;
  bytes.begin = begin;
  bytes.bytes = static_cast<int64_t>(end - begin);
  on_race_({Describe(first), Describe(second), bytes});
}

}  // namespace fsdp
