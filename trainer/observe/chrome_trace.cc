#include "trainer/observe/chrome_trace.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>

#include "trainer/core/atomic_file.h"
#include "trainer/core/json.h"

namespace fsdp {
namespace {

std::string Metadata(std::string_view what, int rank, int thread, const JsonObject& args) {
  return JsonObject()
      .Add("ph", "M")
      .Add("name", what)
      .Add("pid", rank)
      .Add("tid", thread)
      .Add("args", args)
      .Text();
}

// Empty where nothing is known.
std::string Args(const Span& span, const StepPart& part) {
  JsonObject args;
  if (!part.unit.empty()) args.Add("unit", part.unit);
  if (!part.pass.empty()) args.Add("pass", part.pass);
  if (part.micro_batch >= 0) args.Add("micro_batch", part.micro_batch);
  if (span.bytes > 0) args.Add("bytes", span.bytes);
  const std::string text = args.Text();
  return text == "{}" ? "" : text;
}

}  // namespace

std::string ChromeTrace(std::span<const RankTrace> ranks) {
  double origin = std::numeric_limits<double>::infinity();
  for (const RankTrace& rank : ranks) {
    for (const Span& span : rank.spans) origin = std::min(origin, span.begin_s);
  }
  std::vector<std::string> events;
  for (const auto& [rank, spans, part, memory] : ranks) {
    events.push_back(Metadata("process_name", rank, 0,
                              JsonObject().Add("name", "rank " + std::to_string(rank))));
    events.push_back(Metadata("process_sort_index", rank, 0, JsonObject().Add("sort_index", rank)));
    std::map<std::string_view, int> threads;  // From 1: Perfetto takes 0 for the process's own.
    for (const Span& span : spans) {
      const auto [at, added] = threads.emplace(span.stream, static_cast<int>(threads.size()) + 1);
      const int thread = at->second;
      if (added) {
        events.push_back(
            Metadata("thread_name", rank, thread, JsonObject().Add("name", span.stream)));
        events.push_back(
            Metadata("thread_sort_index", rank, thread, JsonObject().Add("sort_index", thread)));
      }
      JsonObject event;
      event.Add("ph", "X")
          .Add("name", span.name)
          .Add("pid", rank)
          .Add("tid", thread)
          .Add("ts", (span.begin_s - origin) * 1e6)
          .Add("dur", (span.end_s - span.begin_s) * 1e6);
      const std::string args = Args(span, part ? part(span.tag) : StepPart{});
      if (!args.empty()) event.AddRaw("args", args);
      events.push_back(event.Text());
    }
    for (const MemoryPoint& point : memory) {
      events.push_back(JsonObject()
                           .Add("ph", "C")
                           .Add("name", "memory")
                           .Add("pid", rank)
                           .Add("ts", (point.at_s - origin) * 1e6)
                           .Add("args", JsonObject()
                                            .Add("allocated", point.allocated)
                                            .Add("active", point.active)
                                            .Add("reserved", point.reserved))
                           .Text());
    }
  }
  std::string out = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (size_t i = 0; i < events.size(); ++i) {
    out += events[i];
    out += i + 1 < events.size() ? ",\n" : "\n";
  }
  return out + "]}\n";
}

void WriteChromeTrace(const std::string& path, std::span<const RankTrace> ranks) {
  WriteAtomicFile(path, ChromeTrace(ranks));
}

}  // namespace fsdp
