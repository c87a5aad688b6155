// Checkpoints as directories: their names, which of them count, and the fate of the rest.
//
//   step_<n>        counts where it is complete: its manifest is whole and every file has its size
//   step_<n>.tmp    being written, or left by whoever died writing it: never counts
//   step_<n>.old    set aside while another of its step took its place: counts as long as there is
//                   no complete step_<n>
//   step_<n>.aside  set aside when the run went back to an earlier step, or when another took its
//                   place while somebody read it: never counts, and is nobody's to remove but the
//                   user's. Where the name is taken, step_<n>.aside.2
//   latest          a file with the name of the newest one
//   best            a file with the name of the one of least evaluation loss among those kept; none
//                   where no checkpoint has a loss
//
// A process that dies while saving leaves a .tmp, a .old, or a complete step_<n> that `latest` does
// not name yet. A newest checkpoint that is incomplete was damaged; an older one never silently
// takes its place. `best` is replaced before what it named is removed. A run never starts from it.
//
// All functions throw CheckpointError that names the path and the reason.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_DIRECTORY_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/core/unique_fd.h"

namespace fsdp {

// A checkpoint is not removed while another process reads it. Readers share a lock (flock) on the
// directory; a process that removes the directory must hold the lock alone. The lock ends with its
// process. Files are opened in the held directory, so the directory may have another name by then:
// a run that goes back to an earlier step renames later ones.
//
// Other hosts that share a directory over NFS do not see the lock (Linux locks directories on the
// host alone): a reader there may find files gone, and says so.

// A reader's hold. Never blocks, never throws. Where the file system has no locks, it holds nothing
// but says that it does: nothing better is possible.
class CheckpointHold {
 public:
  CheckpointHold() = default;
  explicit CheckpointHold(const std::string& directory);
  // Takes no lock: files are found by their paths.
  static CheckpointHold OfNothing(const std::string& directory);

  // False: the directory was missing, was being removed, or is another one by now. Files are then
  // found by their paths.
  bool held() const { return directory_.get() >= 0; }
  const std::string& path() const { return path_; }  // As given.

  // For openat(2) and fstatat(2): a file of the directory is `name` below `at`.
  struct Place {
    int at;
    std::string name;
  };
  Place PlaceOf(const std::string& file) const;
  // Opens for reading. Returns no descriptor, and errno says why, where that fails. Never waits for
  // a pipe.
  UniqueFd Open(const std::string& file) const;

  // Whether the path no longer leads to the directory: it was moved or removed.
  bool Moved() const;

 private:
  std::string path_;
  UniqueFd directory_;
};

// The lock to remove a directory; nullopt where a reader holds the directory or it is missing.
std::optional<UniqueFd> LockForRemoval(const std::string& directory);
// Whether a reader holds the directory; false where that cannot be told.
bool IsHeld(const std::string& directory);

inline constexpr char kTemporarySuffix[] = ".tmp";
inline constexpr char kSetAsideSuffix[] = ".old";
inline constexpr char kGoneBackSuffix[] = ".aside";

std::string StepName(int64_t step);
// The step of a name: step_<n>, as StepName writes it, followed by `suffix`.
std::optional<int64_t> StepOf(std::string_view name, std::string_view suffix = "");

// The directory of the newest checkpoint: the one that `latest` names; without `latest`, that of
// the highest step. Empty for a run that has not saved yet. Throws where the directory is missing
// or incomplete, or `latest` holds no checkpoint's name; the message has the file and how to go on.
std::optional<std::string> FindLatestCheckpoint(const std::string& checkpoints);
// The directory of the checkpoint that `best` names. nullopt: there is no `best`, or it names no
// complete checkpoint. Throws where `best` cannot be read.
std::optional<std::string> FindBestCheckpoint(const std::string& checkpoints);
// The end of a message about a damaged checkpoint: "; to go on from an older one, ...". Names the
// complete checkpoints of earlier steps beside its directory.
std::string HowToGoOn(const std::string& checkpoint);
// The directory of a step. Throws an error that says why there is none and lists the existing ones.
std::string FindCheckpoint(const std::string& checkpoints, int64_t step);

// Whether a path means one checkpoint, not a directory of them: by its contents or its name.
bool NamesOneCheckpoint(const std::string& path);
// The checkpoint that a person means by a path: the path itself, or the latest one of a run
// directory or of a directory of checkpoints.
std::string ResolveCheckpoint(const std::string& path);
// ResolveCheckpoint() for reading while the run goes on. If the run has removed the checkpoint
// meanwhile, takes the next one. The checkpoint stays as long as it is held.
CheckpointHold HoldCheckpoint(const std::string& path);

// Makes `step`, which is complete, the newest: `latest` names it, `best` none of a later step, and
// checkpoints of later steps become step_<n>.aside. Returns their new names, in the order of their
// steps. After a crash in between `latest` names `step`. A reader of a renamed checkpoint reads on:
// it holds the directory, not its name.
std::vector<std::string> GoBackTo(const std::string& checkpoints, int64_t step);

// One of the directories above.
struct CheckpointEntry {
  std::string path;
  int64_t step = 0;
  bool complete = false;
  bool published = false;  // Has its step's name and files of ours, whole or not.
  std::string why;         // Why it is not complete.
  bool latest = false;     // A run with `resume: auto` would go on from it.
  bool best = false;       // `best` names it.
  std::optional<double> loss = std::nullopt;  // CheckpointMeta::Evaluation::loss.
  int world = 0, shards = 0;                  // 0 where the manifest does not say.
  int64_t bytes = 0;                          // All its files.
  double modified = 0;  // Seconds since 1970: of the manifest, or of the directory without one.
};
// The entries of a run directory or of a directory of checkpoints, by step.
std::vector<CheckpointEntry> ListCheckpoints(const std::string& directory);

// ---- For those who write checkpoints ----

[[noreturn]] void FailOn(const std::string& path, const char* what);  // "cannot be <what>: errno".
// The names in the directory; none where there is no such directory.
std::vector<std::string> ListDirectory(const std::string& directory);
void RenamePath(const std::string& from, const std::string& to);

// All steps that have a directory of some kind, complete or not; .tmp does not count.
std::vector<int64_t> StepsIn(const std::string& checkpoints);  // Ascending.
// Whether the step's directory, step_<n> or step_<n>.old, holds files of ours, whole or not.
bool IsPublished(const std::string& checkpoints, int64_t step);
std::optional<std::string> CompleteStep(const std::string& checkpoints, int64_t step);
// Empty where the directory holds the step, complete; otherwise why not.
std::string WhyIncomplete(const std::string& directory, int64_t step);

// The steps, at most `n`, of the complete checkpoints of `steps` with the least evaluation losses;
// of equals the earlier.
std::set<int64_t> BestOf(const std::string& checkpoints, const std::vector<int64_t>& steps,
                         int64_t n);
// Makes `best` name the best of `steps`, as `latest` is written, or removes it where none has a
// loss. `steps`: those that stay. `saved`: the one of them that is new since `best` was written;
// where `best` names another of them, no further manifest is read.
void NameBest(const std::string& checkpoints, const std::vector<int64_t>& steps,
              std::optional<int64_t> saved);

// Removes our files, the manifest first, and the directory if nothing else was in it. Files that
// cannot be removed stay: the next save tries again.
void RemoveOurFiles(const std::string& directory);
// Renames the directory to `temporary`, a name that never counts, and removes it there: the next
// save removes what a crash in between leaves. A directory that holds files of others keeps its
// name. A directory that a reader holds stays.
void RemoveCheckpoint(const std::string& directory, const std::string& temporary);
// Removes a checkpoint that another has replaced: our files, as RemoveOurFiles(). A checkpoint that
// a reader holds is set aside.
void RemoveReplaced(const std::string& checkpoints, const std::string& directory, int64_t step);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
