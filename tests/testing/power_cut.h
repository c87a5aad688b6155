// The states that a power cut may leave a disk in. A program's changes of a directory tree are
// recorded; those that were not synced may be lost.
//
// Contents and names are two things. Bytes written to a file are there from its fsync on; until
// then each write may be there, not, in part, or as zeros. A name made, renamed or removed in a
// directory is there from the directory's fsync on, whatever becomes of the file's own; until then
// each such change may be there or not, in any order: more than a file system with a journal allows
// itself, and what POSIX promises.
#ifndef FSDP_TRAIN_TESTS_TESTING_POWER_CUT_H_
#define FSDP_TRAIN_TESTS_TESTING_POWER_CUT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/testing/file_calls.h"

namespace fsdp::testing {

// Paths relative to the root, and a file's contents; nothing for a directory.
using DiskState = std::map<std::string, std::optional<std::string>>;

class RecordedDisk {
 public:
  // Records changes below `root` from now on; all that is there counts as synced. `answer` as in
  // file_calls.h.
  explicit RecordedDisk(const std::string& root,
                        std::function<Answer(const FileCall&)> answer = nullptr);

  void Stop() { watch_.reset(); }
  size_t changes() const { return changes_.size(); }
  std::string Describe(size_t change) const;

  // States that a cut after the first `count` changes may leave, each once: nothing lost, all that
  // can be lost, every beginning of the changes, all but one change, one change alone; and
  // `random_states` at random.
  std::vector<DiskState> After(size_t count, int random_states, std::mt19937_64& random) const;

 private:
  struct Node {
    bool directory = false;
    std::map<std::string, int> entries{};
    std::string data{};
  };
  struct Change {
    enum Kind { kWrite, kResize, kSync, kEnter, kRename, kExchange, kRemove } kind;
    int node = -1;              // The file written, resized, synced, or entered.
    int dir = -1, to_dir = -1;  // Directories whose names change.
    std::string name{}, to_name{};
    int64_t offset = 0;  // A resize: the size.
    std::string bytes{};
    bool is_name() const { return kind >= kEnter; }
  };
  enum class Fate { kThere, kLost, kTorn, kZeros };  // A write's.
  using Fates = std::vector<Fate>;                   // By change.

  int Load(const std::string& path);
  int Find(const std::string& path) const;  // -1 where there is none.
  std::pair<int, std::string> Place(const std::string& path) const;
  void Add(const FileCall& call);
  int MakeNode(bool directory);
  static void Apply(std::vector<Node>& nodes, const Change& change, Fate fate,
                    std::mt19937_64& random);
  std::vector<bool> Synced(size_t count) const;  // By change.
  DiskState StateOf(size_t count, const Fates& fates, std::mt19937_64& random) const;

  const std::string root_;
  std::vector<Node> before_, now_;
  std::vector<Change> changes_;
  std::map<int, int> open_;  // Nodes by descriptor.
  std::unique_ptr<FileWatch> watch_;
};

// Makes `directory` hold `state` and nothing else.
void LayOut(const DiskState& state, const std::string& directory);

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_POWER_CUT_H_
