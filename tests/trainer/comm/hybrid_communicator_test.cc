#include "trainer/comm/hybrid/hybrid_communicator.h"

#include <unistd.h>

#include <csignal>

#include "tests/trainer/comm/communicator_suite.h"

namespace fsdp::testing {
namespace {

// Rank r is of host layout[r]; hosts meet on the loopback device.
Join OnHosts(const std::vector<int>& layout) {
  return [layout](Store& store, const std::string& name, int rank, int size,
                  const CommOptions& options) {
    Require(static_cast<int>(layout.size()) == size, "layout");
    return CreateHybridCommunicator(store, name, rank, HostPlacement(layout), "127.0.0.1", options);
  };
}
template <int... kLayout>
std::vector<Outcome> InThreads(int size, const Body& body) {
  return RunThreadRanksWith(OnHosts({kLayout...}), size, body);
}
template <int... kLayout>
std::vector<Outcome> InProcesses(int size, const Body& body) {
  return RunProcessRanksWith(OnHosts({kLayout...}), size, body);
}

struct Layout {
  const char* name;
  SuiteCase suite;
};

std::string NameOf(const ::testing::TestParamInfo<SuiteCase>& info) {
  const RunRanks run = info.param.run;
  if (run == InThreads<0, 1>) return "Gloo2";
  if (run == InThreads<0, 1, 2>) return "Gloo3";
  if (run == InThreads<0, 0, 1, 1>) return "Hosts2x2";
  if (run == InThreads<0, 0, 1, 1, 2, 2>) return "Hosts3x2";
  if (run == InThreads<0, 1, 1, 1>) return "Hosts1And3";
  if (run == InThreads<0, 1, 0, 2, 1>) return "Scattered5";
  if (run == InThreads<0, 0>) return "OneHost";
  if (run == InProcesses<0, 1>) return "Gloo2";
  return "Hosts2x2";
}

INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorSuite,
                         ::testing::Values(SuiteCase{InThreads<0, 1>, 2},
                                           SuiteCase{InThreads<0, 1, 2>, 3},
                                           SuiteCase{InThreads<0, 0, 1, 1>, 4},
                                           SuiteCase{InThreads<0, 0, 1, 1, 2, 2>, 6},
                                           SuiteCase{InThreads<0, 1, 1, 1>, 4},
                                           SuiteCase{InThreads<0, 1, 0, 2, 1>, 5},
                                           SuiteCase{InThreads<0, 0>, 2}),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Processes, CommunicatorSuite,
                         ::testing::Values(SuiteCase{InProcesses<0, 1>, 2},
                                           SuiteCase{InProcesses<0, 0, 1, 1>, 4}),
                         NameOf);

}  // namespace
}  // namespace fsdp::testing
