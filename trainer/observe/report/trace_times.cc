#include "trainer/observe/report/trace_times.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "trainer/core/atomic_file.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/units.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFiles = 16;
constexpr uintmax_t kMaxBytes = 64 << 20;

using Sums = std::map<std::pair<std::string, std::string>, TraceTimes::Operation>;

// Returns the time from the first begin to the last end.
double Add(const JsonValue& trace, Sums& sums) {
  std::map<int64_t, std::string> streams;
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  for (const JsonValue& event : trace.At("traceEvents").Elements()) {
    const JsonValue kind = event.At("ph");
    if (kind.IsText("M") && event.At("name").IsText("thread_name")) {
      streams[event.At("tid").Integer()] = event.At("args").At("name").Text();
    }
    if (!kind.IsText("X")) continue;
    const std::string& stream = streams[event.At("tid").Integer()];
    const std::string& name = event.At("name").Text();
    const double ts = event.At("ts").Number(), dur = event.At("dur").Number();
    begin = std::min(begin, ts);
    end = std::max(end, ts + dur);
    TraceTimes::Operation& sum = sums[{stream, name}];
    sum.stream = stream;
    sum.name = name;
    sum.seconds += dur * 1e-6;
    sum.count += 1;
  }
  return std::max(0.0, end - begin) * 1e-6;
}

}  // namespace

std::optional<TraceTimes> ReadTraces(const std::string& directory) {
  std::map<int64_t, fs::path> by_step;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(directory, none)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("step_") || !name.ends_with(".json")) continue;
    char* end = nullptr;
    const int64_t step = std::strtoll(name.c_str() + 5, &end, 10);
    const std::string rest = end;
    if (rest == ".json" || rest == "_rank_0.json") by_step[step] = entry.path();
  }
  if (by_step.empty()) return std::nullopt;
  while (by_step.size() > kFiles) by_step.erase(by_step.begin());

  TraceTimes times;
  Sums sums;
  for (const auto& [step, path] : by_step) {
    const std::string name = path.filename();
    try {
      const uintmax_t bytes = fs::file_size(path);
      if (bytes > kMaxBytes) {
        throw std::runtime_error(HumanBytes(static_cast<int64_t>(bytes)) + ", too large to read");
      }
      Sums of_this;
      const double seconds = Add(ParseJson(ReadWholeFile(path, kMaxBytes), "", {}), of_this);
      for (auto& [key, operation] : of_this) {
        auto [at, fresh] = sums.try_emplace(key, operation);
        if (!fresh) {
          at->second.seconds += operation.seconds;
          at->second.count += operation.count;
        }
      }
      times.seconds += seconds;
      times.files.push_back(name);
    } catch (const std::exception& error) {
      times.notes.push_back("traces/" + name + " is left out: " + error.what());
    }
  }
  const double n = std::max<double>(1, static_cast<double>(times.files.size()));
  times.seconds /= n;
  for (auto& [key, operation] : sums) {
    operation.seconds /= n;
    operation.count /= n;
    times.operations.push_back(std::move(operation));
  }
  std::stable_sort(times.operations.begin(), times.operations.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return times;
}

}  // namespace fsdp
