// How the ranks of a group come to their shared memory, or to one error that all of them throw.
// Tests: tests/trainer/comm/shm_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_SHM_HANDSHAKE_H_
#define FSDP_TRAIN_TRAINER_COMM_SHM_HANDSHAKE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainer/comm/rank_group.h"
#include "trainer/comm/shm/shared_memory.h"
#include "trainer/comm/store/store.h"

namespace fsdp {

// A rank's message to the others. Errors travel with the exchanges, so that every rank fails with
// them and none waits in vain.
struct Card {
  int pid = 0;
  int fd = -1;        // That of memory which the rank has made.
  std::string words;  // Further words, without a line break.
  std::string error;  // ErrorOf(); empty: none.

  std::string ToString() const;
  static Card Parse(const std::string& text);
};
Card MyCard();  // With this process's pid.

// The ConfigError, CommError or DeviceError that the function throws, with its kind; empty: it
// throws nothing.
std::string ErrorOf(const std::function<void()>& function);

// Everybody's cards, by rank of the group. Throws the first rank's error, on every rank: `what`
// names the group ("[shm] gather").
std::vector<Card> ExchangeCards(Store& store, const std::string& key, const std::string& what,
                                const RankGroup& group, const Card& mine);

// Memory of some ranks of one host, and their processes.
struct LocalMemory {
  std::unique_ptr<SharedMapping> mapping;
  std::vector<PeerProcess> peers;  // By place in `locals`; nobody for this rank itself.
};
// `locals`: those ranks of the group, this one among them. The first of them has made `bytes`
// bytes, and has them as `made`. Throws DeviceError.
LocalMemory ReachMemory(const RankGroup& group, const std::vector<int>& locals,
                        const std::vector<Card>& cards, const UniqueFd& made, int64_t bytes);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_SHM_HANDSHAKE_H_
