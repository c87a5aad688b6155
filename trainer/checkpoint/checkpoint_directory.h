// Checkpoints as directories: their names, which of them count, and what becomes of the rest.
//
//   step_<n>        counts where it is complete: its manifest is whole and every file has its size
//   step_<n>.tmp    being written, or left by whoever died writing it: never counts
//   step_<n>.old    set aside while another of its step took its place: counts as long as there is
//                   no complete step_<n>
//   step_<n>.aside  set aside when the run went back to an earlier step, or when another took its
//                   place while somebody read it: never counts, and is nobody's to remove but the
//                   user's. Where the name is taken, step_<n>.aside.2
//   latest          a file with the name of the newest one
//
// Whoever dies while saving leaves a .tmp, a .old, or a complete step_<n> that `latest` does not
// name yet. A newest checkpoint that is not complete was damaged, and an older one is not taken
// for it in silence.
//
// Everything throws CheckpointError that names the path and the reason.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_DIRECTORY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/checkpoint/checkpoint_hold.h"

namespace fsdp {

inline constexpr char kTemporarySuffix[] = ".tmp";
inline constexpr char kSetAsideSuffix[] = ".old";
inline constexpr char kGoneBackSuffix[] = ".aside";

std::string StepName(int64_t step);
// Of step_<n> followed by `suffix`, written as StepName writes it.
std::optional<int64_t> StepOf(std::string_view name, std::string_view suffix = "");

// The directory of the newest checkpoint: that which `latest` names; without `latest`, that of the
// highest step. Empty where there is none: a run that has not saved yet. Throws where it is not
// there or not complete, or `latest` holds no checkpoint's name, with the file and how to go on.
std::optional<std::string> FindLatestCheckpoint(const std::string& checkpoints);
// "; to go on from an older one, ...", naming the complete ones before this checkpoint's directory
// beside it: the end of a message that says what is wrong with it.
std::string HowToGoOn(const std::string& checkpoint);
// That of a step. Throws an error that says why not and lists those there are.
std::string FindCheckpoint(const std::string& checkpoints, int64_t step);

// Whether a path is meant to be one checkpoint, not a directory of them: by what is in it, or by
// its name.
bool NamesOneCheckpoint(const std::string& path);
// What a person means by a path: a checkpoint itself, or the latest one of a run directory or of a
// directory of checkpoints.
std::string ResolveCheckpoint(const std::string& path);
// The same, for those who read it while its run goes on: where that has saved and removed
// meanwhile, the next one. It stays as long as it is held.
CheckpointHold HoldCheckpoint(const std::string& path);

// Makes `step`, which is complete, the newest: `latest` names it, and those of later steps become
// step_<n>.aside. Returns their new names, in the order of their steps. A crash in between leaves
// `latest` naming it. Who reads one of those reads on: a reader holds the directory, not its name.
std::vector<std::string> GoBackTo(const std::string& checkpoints, int64_t step);

// One of the directories above.
struct CheckpointEntry {
  std::string path;
  int64_t step = 0;
  bool complete = false;
  bool published = false;     // It bears its step's name, whole or not, and files of ours.
  std::string why;            // Where it is not complete.
  bool latest = false;        // What a run with `resume: auto` would go on from.
  int world = 0, shards = 0;  // 0 where the manifest does not say.
  int64_t bytes = 0;          // Of the files in it.
  double modified = 0;  // Seconds since 1970: of the manifest, or of the directory without one.
};
// By step; of a run directory or of a directory of checkpoints.
std::vector<CheckpointEntry> ListCheckpoints(const std::string& directory);

// ---- For those who write checkpoints ----

[[noreturn]] void FailOn(const std::string& path, const char* what);  // "cannot be <what>: errno".
// The names in it; none where there is no such directory.
std::vector<std::string> ListDirectory(const std::string& directory);
void RenamePath(const std::string& from, const std::string& to);

// All steps that have a directory of some kind, complete or not; .tmp does not count.
std::vector<int64_t> StepsIn(const std::string& checkpoints);  // Ascending.
// The step's directory, step_<n> or step_<n>.old, holds files of ours, whole or not.
bool IsPublished(const std::string& checkpoints, int64_t step);
std::optional<std::string> CompleteStep(const std::string& checkpoints, int64_t step);
// Empty where the directory holds the step, complete; otherwise why not.
std::string WhyIncomplete(const std::string& directory, int64_t step);

// Removes our files, the manifest first, and the directory if nothing else was in it. What cannot
// be removed stays: the next save tries again.
void RemoveOurFiles(const std::string& directory);
// By way of the name that never counts, so that a crash in between leaves nothing behind that the
// next save would not remove. A directory that holds files of others keeps its name. One that a
// reader holds stays.
void RemoveCheckpoint(const std::string& directory, const std::string& temporary);
// What another has taken the place of: files of ours, as RemoveOurFiles(). One that a reader holds
// is set aside.
void RemoveReplaced(const std::string& checkpoints, const std::string& directory, int64_t step);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
