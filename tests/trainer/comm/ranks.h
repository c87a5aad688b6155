// Runs a body once a rank, on threads or in processes, and returns its results.
#ifndef FSDP_TRAIN_TESTS_TRAINER_COMM_RANKS_H_
#define FSDP_TRAIN_TESTS_TRAINER_COMM_RANKS_H_

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/comm/rank_group.h"
#include "trainer/comm/store/store.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/device.h"

namespace fsdp::testing {

struct Rank {
  int rank = 0;
  int size = 1;
  Store* store = nullptr;
  // A communicator of some ranks; each `name` once, of another group another.
  std::function<std::unique_ptr<Communicator>(const std::string& name, const RankGroup& group,
                                              const CommOptions&)>
      join_group;
  std::unique_ptr<Device> device = std::make_unique<CpuDevice>();

  // Joins the group of all ranks.
  std::unique_ptr<Communicator> join(const std::string& name, const CommOptions& options) const {
    return join_group(name, RankGroup::World(rank, size), options);
  }
};

struct Outcome {
  std::string error;   // what() of the exception that ended the body, or how its process ended.
  std::string result;  // The body's.
};

// A body throws where a gtest assertion would return and leave its peers waiting.
using Body = std::function<std::string(Rank& rank)>;
using RunRanks = std::vector<Outcome> (*)(int size, const Body& body);

std::vector<Outcome> RunThreadRanks(int size, const Body& body);

// Forks before it starts any thread, so that sanitizers can follow; the caller must have no
// threads, either. The parent has the store's server.
std::vector<Outcome> RunProcessRanks(int size, const Body& body);

// The same, with communicators that the caller makes.
using Join = std::function<std::unique_ptr<Communicator>(
    Store& store, const std::string& name, const RankGroup& group, const CommOptions&)>;
std::vector<Outcome> RunThreadRanksWith(const Join& join, int size, const Body& body);
std::vector<Outcome> RunProcessRanksWith(const Join& join, int size, const Body& body);

// The body on a device that `make` makes, with communicators that `wrap` makes of the usual ones.
using MakeDevice = std::function<std::unique_ptr<Device>()>;
using Wrap = std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>, Device&)>;
Body OnDevice(const MakeDevice& make, const Wrap& wrap, const Body& body);

inline void Require(bool condition, const std::string& message) {
  if (!condition) throw std::runtime_error("Require: " + message);
}

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TRAINER_COMM_RANKS_H_
