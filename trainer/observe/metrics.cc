#include "trainer/observe/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/observe/json.h"
#include "trainer/observe/whole_file.h"

namespace fsdp {
namespace {

JsonObject Object(const RunRecord& r) {
  return JsonObject()
      .Add("kind", "run")
      .Add("name", r.name)
      .Add("version", r.version)
      .Add("git", r.git)
      .Add("started", r.started)
      .Add("device", r.device)
      .Add("world_size", r.world_size)
      .Add("threads", r.threads)
      .Add("seed", r.seed)
      .Add("parameters", r.parameters)
      .Add("steps", r.steps);
}

JsonObject Object(const ResumeRecord& r) {
  return JsonObject().Add("kind", "resume").Add("step", r.step).Add("from", r.from);
}

JsonObject Object(const StepRecord& r) {
  const JsonObject memory = JsonObject()
                                .Add("allocated_peak", r.memory.allocated)
                                .Add("active_peak", r.memory.active)
                                .Add("reserved_peak", r.memory.reserved);
  return JsonObject()
      .Add("kind", "step")
      .Add("step", r.step)
      .Add("loss", r.loss)
      .Add("grad_norm", r.grad_norm)
      .Add("lr", r.lr)
      .Add("tokens", r.tokens)
      .Add("step_time_s", r.step_time_s)
      .Add("tokens_per_s", r.tokens_per_s)
      .Add("tflops_per_device", r.tflops_per_device)
      .Add("mfu", r.mfu)
      .Add("memory", memory);
}

JsonObject Object(const EvalRecord& r) {
  JsonObject object = JsonObject().Add("kind", "eval").Add("step", r.step);
  if (!r.name.empty()) object.Add("name", r.name);
  return object.Add("loss", r.loss);
}

JsonObject Object(const CheckpointRecord& r) {
  return JsonObject()
      .Add("kind", "checkpoint")
      .Add("step", r.step)
      .Add("path", r.path)
      .Add("seconds", r.seconds)
      .Add("bytes", r.bytes);
}

JsonObject Object(const SkippedRecord& r) {
  return JsonObject().Add("kind", "skipped").Add("step", r.step).Add("reason", r.reason);
}

JsonObject Object(const EndRecord& r) {
  return JsonObject().Add("kind", "end").Add("reason", r.reason);
}

[[noreturn]] void Fail(const std::string& path, const char* what, int error) {
  throw CheckpointError(path + ": " + what + ": " + std::strerror(error));
}

// The lines of `old` that a run going on after `step` keeps. But for checkpoints, which are
// recorded when they count, steps never fall from one line to the next: the first line past `step`
// ends them, with all starts recorded behind it.
std::string Keep(std::string_view old, int64_t step, MetricsKept& count) {
  std::string out;
  bool past = false;
  while (!old.empty()) {
    const size_t end = old.find('\n');
    const std::string_view line = old.substr(0, end);
    old.remove_prefix(end == std::string_view::npos ? old.size() : end + 1);
    const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const bool whole = end != std::string_view::npos && record.is_object() &&
                       record.contains("kind") && record["kind"].is_string();
    const auto at = whole ? record.find("step") : record.end();
    const bool has_step = whole && at != record.end() && at->is_number_integer();
    const bool is_past = has_step && at->get<int64_t>() > step;
    const bool late = has_step && !is_past && record["kind"] == "checkpoint";
    past |= is_past;
    if (!whole) {
      ++count.damaged;
    } else if ((past && !late) || record["kind"] == "end") {
      ++count.dropped;
    } else {
      ++count.kept;
      out += line;
      out += '\n';
    }
  }
  return out;
}

}  // namespace

std::string ToJson(const MetricsRecord& record) {
  return std::visit([](const auto& r) { return Object(r).Text(); }, record);
}

MetricsWriter MetricsWriter::Create(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0 && errno == EEXIST) {
    throw CheckpointError(path +
                          ": exists: this directory holds a run; resume it (checkpoint.resume), or "
                          "give run.name or run.dir another value");
  }
  if (fd < 0) Fail(path, "cannot be created", errno);
  return MetricsWriter(path, fd);
}

MetricsWriter MetricsWriter::Resume(const std::string& path, int64_t step, MetricsKept* kept) {
  MetricsKept count;
  if (::access(path.c_str(), F_OK) == 0) {
    const std::string old = ReadWholeFile(path);
    const std::string keep = Keep(old, step, count);
    if (keep != old) WriteWholeFile(path, keep);
  }
  if (kept != nullptr) *kept = count;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) Fail(path, "cannot be written", errno);
  return MetricsWriter(path, fd);
}

MetricsWriter::MetricsWriter(MetricsWriter&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

MetricsWriter::~MetricsWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void MetricsWriter::Write(const MetricsRecord& record) {
  const std::string line = ToJson(record) + "\n";
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t n = ::write(fd_, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      const off_t end = ::lseek(fd_, 0, SEEK_END);
      // If this fails as well, Resume() drops the half line.
      if (done > 0 && ::ftruncate(fd_, end - static_cast<off_t>(done)) != 0) {
        Fail(path_, "cannot be written, and ends in half a line", error);
      }
      Fail(path_, "cannot be written", error);
    }
    done += static_cast<size_t>(n);
  }
}

void MetricsWriter::Sync() {
  if (::fsync(fd_) != 0) Fail(path_, "cannot be synced", errno);
}

}  // namespace fsdp
