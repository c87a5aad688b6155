#include "trainer/comm/mesh_communicators.h"

#include <stdexcept>

namespace fsdp {
namespace {

// World ranks of a group that is not the world tell it from its fellows.
std::string NameOf(Group group, const RankGroup& ranks, const Mesh& mesh) {
  if (ranks.size() == mesh.world_size()) return Name(group);
  return std::string(Name(group)) + "_" + std::to_string(ranks.NameOf(0));
}

bool Gathers(Group group) { return group == Group::kGather || group == Group::kSecondary; }

}  // namespace

bool MeshCommunicators::Share(const Mesh& mesh, int queues, Group a, Group b) {
  if (queues == 2 && Gathers(a) != Gathers(b)) return false;
  // Whether both are the same ranks.
  const Mesh::Axis x = mesh.AxisOf(a), y = mesh.AxisOf(b);
  return x.size == y.size && (x.size == 1 || x.stride == y.stride);
}

std::vector<Group> MeshCommunicators::Connected(const Mesh& mesh, int queues) {
  std::vector<Group> connected;
  for (int g = 0; g < kGroups; ++g) {
    const Group group = static_cast<Group>(g);
    bool own = mesh.SizeOf(group) > 1;
    for (const Group other : connected) own = own && !Share(mesh, queues, other, group);
    if (own) connected.push_back(group);
  }
  return connected;
}

MeshCommunicators::MeshCommunicators(const Mesh& mesh, int queues, const Connect& connect)
    : mesh_(mesh) {
  if (queues != 1 && queues != 2) {
    throw std::invalid_argument("[MeshCommunicators] " + std::to_string(queues) +
                                " queues, want 1 or 2");
  }
  if (mesh.world_size() > 1 && !connect) {
    throw std::invalid_argument("[MeshCommunicators] a world of " +
                                std::to_string(mesh.world_size()) + " needs communicators");
  }
  for (const Group group : Connected(mesh, queues)) {
    const RankGroup ranks = mesh.RanksOf(group);
    owned_.push_back(connect(NameOf(group, ranks, mesh), ranks));
    all_.push_back(owned_.back().get());
    for (int g = 0; g < kGroups; ++g) {
      if (Share(mesh, queues, group, static_cast<Group>(g))) by_group_[g] = all_.back();
    }
  }
}

void MeshCommunicators::CountIn(Traffic* traffic) const {
  for (Communicator* communicator : all_) {
    if (communicator != nullptr) communicator->CountIn(traffic);
  }
}

}  // namespace fsdp
