#include "trainer/checkpoint/checkpoint_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/read_file.h"
#include "trainer/core/utf8.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr char kLatest[] = "/latest", kBest[] = "/best";
constexpr int64_t kMostNameBytes = 4096;

bool AllDigits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

bool IsOurs(std::string_view file) {
  constexpr std::string_view kPrefix = "rank_", kSuffix = ".safetensors";
  for (const std::string end : {"", kUnfinishedSuffix}) {
    if (file == kManifestName + end) return true;
  }
  return file.size() > kPrefix.size() + kSuffix.size() && file.starts_with(kPrefix) &&
         file.ends_with(kSuffix) &&
         AllDigits(file.substr(kPrefix.size(), file.size() - kPrefix.size() - kSuffix.size()));
}

bool IsDirectory(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// The checkpoints of a run directory.
std::string CheckpointsIn(const std::string& directory) {
  const std::string inside = directory + "/checkpoints";
  return IsDirectory(inside) ? inside : directory;
}

CheckpointEntry Describe(const std::string& path, int64_t step) {
  CheckpointEntry entry;
  entry.path = path;
  entry.step = step;
  const std::string manifest = path + "/" + kManifestName;
  try {
    const Manifest read = ReadManifestAlone(path);
    entry.world = read.world;
    entry.shards = read.shards;
    if (read.meta.evaluation) entry.loss = read.meta.evaluation->loss;
  } catch (const CheckpointError&) {  // WhyIncomplete says it.
  }
  entry.why = WhyIncomplete(path, step);
  struct stat status;
  for (const std::string& name : ListDirectory(path)) {
    if (::stat((path + "/" + name).c_str(), &status) == 0) entry.bytes += status.st_size;
  }
  if (::stat(manifest.c_str(), &status) == 0 || ::stat(path.c_str(), &status) == 0) {
    entry.modified = static_cast<double>(status.st_mtim.tv_sec) +
                     1e-9 * static_cast<double>(status.st_mtim.tv_nsec);
  }
  return entry;
}

bool HoldsOurFiles(const std::string& directory) {
  const std::vector<std::string> names = ListDirectory(directory);
  return std::any_of(names.begin(), names.end(), IsOurs);
}

// Gives a checkpoint of the step its name as one that is set aside, and returns it.
std::string SetAside(const std::string& checkpoints, const std::string& directory, int64_t step) {
  const std::string first = StepName(step) + kGoneBackSuffix;
  std::string to = first;
  for (int i = 2; PathExists(checkpoints + "/" + to); ++i) to = first + "." + std::to_string(i);
  RenamePath(directory, checkpoints + "/" + to);
  return to;
}

// The contents of `latest` or `best`; nothing where there is no such file.
std::optional<std::string> ReadName(const std::string& file) {
  if (!PathExists(file)) return std::nullopt;
  std::string named = ReadWholeFile(file, kMostNameBytes);
  while (!named.empty() && named.back() == '\n') named.pop_back();
  return named;
}

// Complete ones of steps before `step`, or of all, ascending.
std::vector<int64_t> CompleteBefore(const std::string& checkpoints, std::optional<int64_t> step) {
  std::vector<int64_t> steps;
  for (const int64_t other : StepsIn(checkpoints)) {
    if ((!step || other < *step) && CompleteStep(checkpoints, other)) steps.push_back(other);
  }
  return steps;
}

// The newest checkpoint, where `latest` holds `named`.
std::optional<std::string> Newest(const std::string& checkpoints,
                                  const std::optional<std::string>& named) {
  std::optional<int64_t> step = StepOf(named.value_or(""));
  if (named && !step) {
    constexpr size_t kShown = 40;
    throw CheckpointError(checkpoints + kLatest + ": is damaged: `" +
                          Printable(named->substr(0, kShown)) + "` is no checkpoint's name" +
                          HowToGoOn(checkpoints + "/latest"));
  }
  for (const int64_t other : named ? std::vector<int64_t>() : StepsIn(checkpoints)) {
    if (IsPublished(checkpoints, other)) step = other;
  }
  if (!step) return std::nullopt;
  if (auto path = CompleteStep(checkpoints, *step)) return path;
  const std::string path = checkpoints + "/" + StepName(*step);
  throw CheckpointError(WhyIncomplete(path, *step) + ": the newest checkpoint, " + StepName(*step) +
                        (named ? ", which `latest` names," : "") +
                        (PathExists(path) ? " is not whole" : " was moved or removed") +
                        HowToGoOn(path));
}

}  // namespace

std::string StepName(int64_t step) { return "step_" + std::to_string(step); }

std::optional<int64_t> StepOf(std::string_view name, std::string_view suffix) {
  constexpr std::string_view kPrefix = "step_";
  constexpr size_t kMaxDigits = 18;
  if (!name.starts_with(kPrefix) || !name.ends_with(suffix)) return std::nullopt;
  if (name.size() < kPrefix.size() + suffix.size()) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(suffix.size());
  if (!AllDigits(name) || name.size() > kMaxDigits || (name.size() > 1 && name[0] == '0')) {
    return std::nullopt;
  }
  return std::stoll(std::string(name));
}

void FailOn(const std::string& path, const char* what) {
  const int error = errno;
  throw CheckpointError(path + ": cannot be " + what + ": " + std::strerror(error));
}

std::vector<std::string> ListDirectory(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename());
  }
  if (error && error != std::errc::no_such_file_or_directory &&
      error != std::errc::not_a_directory) {  // Who wants to write there will say so.
    throw CheckpointError(directory + ": cannot be listed: " + error.message());
  }
  return names;
}

void RenamePath(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) FailOn(from, "renamed");
}

void RemoveOurFiles(const std::string& directory) {
  ::unlink((directory + "/" + kManifestName).c_str());
  try {
    for (const std::string& name : ListDirectory(directory)) {
      if (IsOurs(name)) ::unlink((directory + "/" + name).c_str());
    }
  } catch (const CheckpointError&) {
  }
  ::rmdir(directory.c_str());
}

void RemoveCheckpoint(const std::string& directory, const std::string& temporary) {
  try {
    const std::vector<std::string> names = ListDirectory(directory);
    const bool only_ours = std::all_of(names.begin(), names.end(), IsOurs);
    const std::optional<UniqueFd> alone = LockForRemoval(directory);
    if (!alone) return;
    const bool renamed = only_ours && std::rename(directory.c_str(), temporary.c_str()) == 0;
    RemoveOurFiles(renamed ? temporary : directory);
  } catch (const CheckpointError&) {
  }
}

void RemoveReplaced(const std::string& checkpoints, const std::string& directory, int64_t step) {
  if (!PathExists(directory)) return;
  const std::optional<UniqueFd> alone = LockForRemoval(directory);
  if (!alone && IsHeld(directory)) {
    SetAside(checkpoints, directory, step);
  } else {
    RemoveOurFiles(directory);
  }
}

std::string WhyIncomplete(const std::string& directory, int64_t step) {
  try {
    const int64_t held = ReadManifest(directory).meta.step;
    return held == step ? "" : directory + ": holds step " + std::to_string(held);
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

std::optional<std::string> CompleteStep(const std::string& checkpoints, int64_t step) {
  const std::string path = checkpoints + "/" + StepName(step);
  for (const std::string& directory : {path, path + kSetAsideSuffix}) {
    if (PathExists(directory) && WhyIncomplete(directory, step).empty()) return directory;
  }
  return std::nullopt;
}

std::vector<int64_t> StepsIn(const std::string& checkpoints) {
  std::set<int64_t> steps;
  for (const std::string& name : ListDirectory(checkpoints)) {
    if (const auto step = StepOf(name)) steps.insert(*step);
    if (const auto step = StepOf(name, kSetAsideSuffix)) steps.insert(*step);
  }
  return {steps.begin(), steps.end()};
}

bool IsPublished(const std::string& checkpoints, int64_t step) {
  const std::string path = checkpoints + "/" + StepName(step);
  for (const std::string& directory : {path, path + kSetAsideSuffix}) {
    if (HoldsOurFiles(directory)) return true;
  }
  return false;
}

std::optional<std::string> FindLatestCheckpoint(const std::string& checkpoints) {
  for (std::optional<std::string> named = ReadName(checkpoints + kLatest);;) {
    try {
      return Newest(checkpoints, named);
    } catch (const CheckpointError&) {
      // Or its run has saved another one meanwhile, and removed this one.
      const std::optional<std::string> now = ReadName(checkpoints + kLatest);
      if (now == named) throw;
      named = now;
    }
  }
}

std::optional<std::string> FindBestCheckpoint(const std::string& checkpoints) {
  const std::optional<int64_t> step = StepOf(ReadName(checkpoints + kBest).value_or(""));
  return step ? CompleteStep(checkpoints, *step) : std::nullopt;
}

std::set<int64_t> BestOf(const std::string& checkpoints, const std::vector<int64_t>& steps,
                         int64_t n) {
  std::vector<std::pair<double, int64_t>> losses;
  for (const int64_t step : steps) {
    const std::optional<std::string> path = n > 0 ? CompleteStep(checkpoints, step) : std::nullopt;
    if (!path) continue;
    const auto& evaluation = ReadManifestAlone(*path).meta.evaluation;
    if (evaluation && evaluation->loss) losses.emplace_back(*evaluation->loss, step);
  }
  std::sort(losses.begin(), losses.end());
  std::set<int64_t> best;
  for (const auto& [loss, step] : losses) {
    if (std::ssize(best) < n) best.insert(step);
  }
  return best;
}

void NameBest(const std::string& checkpoints, const std::vector<int64_t>& steps,
              std::optional<int64_t> saved) {
  const std::string file = checkpoints + kBest;
  const std::optional<std::string> named = ReadName(file);
  const std::optional<int64_t> before = StepOf(named.value_or(""));
  std::vector<int64_t> candidates = steps;
  if (saved && before && before != saved && CompleteStep(checkpoints, *before) &&
      std::find(steps.begin(), steps.end(), *before) != steps.end()) {
    candidates = {*before, *saved};
  }
  const std::set<int64_t> best = BestOf(checkpoints, candidates, 1);
  if (best.empty()) {
    if (named && ::unlink(file.c_str()) != 0) FailOn(file, "removed");
  } else if (named != StepName(*best.begin())) {
    WriteAtomicFile(file, StepName(*best.begin()));
  }
}

std::string HowToGoOn(const std::string& checkpoint) {
  const fs::path path(checkpoint);
  const std::string name = path.filename(), checkpoints = path.parent_path();
  std::optional<int64_t> step = StepOf(name);
  if (!step) step = StepOf(name, kSetAsideSuffix);
  const std::vector<int64_t> older = CompleteBefore(checkpoints, step);
  if (older.empty()) {
    return "; there is no other: put it back as it was, or move " + checkpoints +
           " away to begin anew";
  }
  std::string list;
  for (const int64_t s : older) list += (list.empty() ? "" : ", ") + std::to_string(s);
  return "; to go on from an older one, set checkpoint.resume to its step (complete: " + list +
         "): newer ones are then set aside as step_<n>" + kGoneBackSuffix;
}

std::string FindCheckpoint(const std::string& checkpoints, int64_t step) {
  if (auto path = CompleteStep(checkpoints, step)) return *path;
  std::string others;
  for (const int64_t other : CompleteBefore(checkpoints, std::nullopt)) {
    others += (others.empty() ? "" : ", ") + std::to_string(other);
  }
  const std::string path = checkpoints + "/" + StepName(step);
  throw CheckpointError("no complete checkpoint of step " + std::to_string(step) + ": " +
                        WhyIncomplete(path, step) + "; there are those of steps " +
                        (others.empty() ? "none" : others));
}

bool NamesOneCheckpoint(const std::string& path) {
  if (PathExists(path + "/" + kManifestName)) return true;
  const std::string name = fs::path(path).filename();
  return StepOf(name) || StepOf(name, kTemporarySuffix) || StepOf(name, kSetAsideSuffix) ||
         StepOf(name, kGoneBackSuffix);
}

std::string ResolveCheckpoint(const std::string& path) {
  if (!IsDirectory(path)) throw CheckpointError(path + ": is not a directory");
  if (PathExists(path + "/" + kManifestName)) return path;
  const bool is_one = NamesOneCheckpoint(path);
  const auto latest = is_one ? std::nullopt : FindLatestCheckpoint(CheckpointsIn(path));
  if (!latest) {
    throw CheckpointError(path + ": holds no " + kManifestName +
                          (is_one ? ": not complete" : ", and no checkpoint below it"));
  }
  return *latest;
}

CheckpointHold HoldCheckpoint(const std::string& path) {
  constexpr int kTries = 1000;
  for (int i = 0; i < kTries; ++i) {
    CheckpointHold hold(ResolveCheckpoint(path));
    if (hold.held()) return hold;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  throw CheckpointError(path + ": is being removed or replaced by its run");
}

std::vector<std::string> GoBackTo(const std::string& checkpoints, int64_t step) {
  WriteAtomicFile(checkpoints + kLatest, StepName(step));
  std::vector<int64_t> steps = StepsIn(checkpoints);
  const auto later = std::upper_bound(steps.begin(), steps.end(), step);
  if (later != steps.end()) NameBest(checkpoints, {steps.begin(), later}, std::nullopt);
  std::vector<std::string> aside;
  for (const int64_t newer : std::span(later, steps.end())) {
    const std::string path = checkpoints + "/" + StepName(newer);
    for (const std::string& directory : {path, path + kSetAsideSuffix}) {
      if (PathExists(directory)) aside.push_back(SetAside(checkpoints, directory, newer));
    }
  }
  if (!aside.empty()) SyncDirectory(checkpoints);
  return aside;
}

std::vector<CheckpointEntry> ListCheckpoints(const std::string& directory) {
  if (!IsDirectory(directory)) throw CheckpointError(directory + ": is not a directory");
  const std::string checkpoints = CheckpointsIn(directory);
  std::vector<CheckpointEntry> entries;
  for (const std::string& name : ListDirectory(checkpoints)) {
    const std::string path = checkpoints + "/" + name;
    if (const auto step = StepOf(name)) {
      entries.push_back(Describe(path, *step));
      entries.back().complete = entries.back().why.empty();
      entries.back().published = HoldsOurFiles(path);
    } else if (const auto old = StepOf(name, kSetAsideSuffix)) {
      CheckpointEntry& entry = entries.emplace_back(Describe(path, *old));
      const bool replaced = WhyIncomplete(checkpoints + "/" + StepName(*old), *old).empty();
      if (replaced) entry.why = "set aside: there is another of its step";
      entry.complete = entry.why.empty();
      entry.published = !replaced && HoldsOurFiles(path);
    } else if (const auto written = StepOf(name, kTemporarySuffix)) {
      CheckpointEntry& entry = entries.emplace_back(Describe(path, *written));
      entry.why = "is being written, or was left by a run that ended while it wrote";
    }
    // Its run has removed it, or given it its name, while we looked.
    if (!entries.empty() && entries.back().path == path && !PathExists(path)) entries.pop_back();
  }
  // Nothing where it names one that is not complete.
  const auto found = [&](const auto& find) {
    try {
      return find(checkpoints).value_or("");
    } catch (const CheckpointError&) {
      return std::string();
    }
  };
  const std::string latest = found(FindLatestCheckpoint), best = found(FindBestCheckpoint);
  for (CheckpointEntry& entry : entries) {
    entry.latest = entry.path == latest;
    entry.best = entry.path == best;
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.step, a.path) < std::pair(b.step, b.path);
  });
  return entries;
}

namespace {

UniqueFd OpenDirectory(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

// False where somebody else's lock is in the way; a file system may have none.
bool Lock(const UniqueFd& directory, LockMode mode) {
  return TryLock(directory, mode) != LockResult::kBusy;
}

bool IsNamed(const UniqueFd& directory, const std::string& path) {
  struct stat held, named;
  return ::fstat(directory.get(), &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

}  // namespace

CheckpointHold::CheckpointHold(const std::string& directory) : path_(directory) {
  UniqueFd opened = OpenDirectory(directory);
  if (opened.get() < 0 || !Lock(opened, LockMode::kShared)) return;
  // It may have lost its name between the two calls above.
  if (IsNamed(opened, directory)) directory_ = std::move(opened);
}

CheckpointHold CheckpointHold::OfNothing(const std::string& directory) {
  CheckpointHold hold;
  hold.path_ = directory;
  return hold;
}

CheckpointHold::Place CheckpointHold::PlaceOf(const std::string& file) const {
  if (held()) return {directory_.get(), file};
  return {AT_FDCWD, path_ + "/" + file};
}

UniqueFd CheckpointHold::Open(const std::string& file) const {
  constexpr int kFlags = O_RDONLY | O_NONBLOCK | O_CLOEXEC;
  const Place place = PlaceOf(file);
  return UniqueFd(held() ? ::openat(place.at, place.name.c_str(), kFlags)
                         : ::open(place.name.c_str(), kFlags));
}

bool CheckpointHold::Moved() const {
  struct stat status;
  return held() ? !IsNamed(directory_, path_) : ::stat(path_.c_str(), &status) != 0;
}

std::optional<UniqueFd> LockForRemoval(const std::string& directory) {
  UniqueFd opened = OpenDirectory(directory);
  if (opened.get() < 0 || !Lock(opened, LockMode::kExclusive)) return std::nullopt;
  return opened;
}

bool IsHeld(const std::string& directory) {
  const UniqueFd opened = OpenDirectory(directory);
  return opened.get() >= 0 && !Lock(opened, LockMode::kExclusive);
}

}  // namespace fsdp
