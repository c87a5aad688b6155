#include <map>
#include <mutex>
#include <thread>

#include "tests/trainer/comm/ranks.h"
#include "trainer/comm/store/memory_store.h"
#include "trainer/comm/thread/thread_communicator.h"

namespace fsdp::testing {

std::vector<Outcome> RunThreadRanksWith(const Join& join, int size, const Body& body) {
  MemoryStore store(/*timeout_s=*/60);
  std::vector<Outcome> outcomes(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      Rank rank{r, size, &store,
                [&](const std::string& name, const RankGroup& group, const CommOptions& options) {
                  return join(store, name, group, options);
                }};
      try {
        outcomes[r].result = body(rank);
      } catch (const std::exception& error) {
        outcomes[r].error = error.what();
        store.Fail("rank " + std::to_string(r) + ": " + error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::vector<Outcome> RunThreadRanks(int size, const Body& body) {
  std::mutex mutex;
  std::map<std::string, std::vector<std::unique_ptr<Communicator>>> groups;
  return RunThreadRanksWith(
      [&](Store&, const std::string& name, const RankGroup& group, const CommOptions& options) {
        std::lock_guard lock(mutex);
        auto& communicators = groups[name];
        if (communicators.empty()) {
          communicators = CreateThreadCommunicators(group.ranks(), options);
        }
        return std::move(communicators[group.rank()]);
      },
      size, body);
}

Body OnDevice(const MakeDevice& make, const Wrap& wrap, const Body& body) {
  return [=](Rank& rank) {
    rank.device = make();
    rank.join_group = [wrap, join = rank.join_group, &device = *rank.device](
                          const std::string& name, const RankGroup& group,
                          const CommOptions& options) {
      return wrap(join(name, group, options), device);
    };
    return body(rank);
  };
}

}  // namespace fsdp::testing
