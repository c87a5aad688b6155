// The communicators of a mesh's groups.
// Tests: tests/trainer/comm/mesh_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_MESH_COMMUNICATORS_H_
#define FSDP_TRAIN_TRAINER_COMM_MESH_COMMUNICATORS_H_

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/comm/mesh.h"

namespace fsdp {

// Groups of the same ranks in the same order share one communicator; but with two queues gathers
// have one of their own, so that none waits for the end of a reduction: on a CPU gathers overtake
// reductions, and NCCL begins both in the order of the calls. A rank alone needs none.
class MeshCommunicators {
 public:
  // All ranks of the group call it. `name` is new each time, and another for another group.
  using Connect =
      std::function<std::unique_ptr<Communicator>(const std::string& name, const RankGroup& group)>;

  // All ranks of the world make theirs, with the same `queues`, 1 or 2. `connect` may be null in a
  // world of one. Throws what it throws.
  MeshCommunicators(const Mesh& mesh, int queues, const Connect& connect);

  const Mesh& mesh() const { return mesh_; }
  Communicator* Over(Group group) const { return by_group_[static_cast<int>(group)]; }  // Or null.
  const std::vector<Communicator*>& all() const { return all_; }  // Each once.

  // All of them: see Communicator::CountIn().
  void CountIn(Traffic* traffic) const;

  // The groups that get communicators of their own. Groups after them with the same ranks share
  // these.
  static std::vector<Group> Connected(const Mesh& mesh, int queues);
  static bool Share(const Mesh& mesh, int queues, Group a, Group b);

 private:
  const Mesh mesh_;
  std::array<Communicator*, kGroups> by_group_{};
  std::vector<std::unique_ptr<Communicator>> owned_;
  std::vector<Communicator*> all_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_MESH_COMMUNICATORS_H_
