#include "trainer/comm/store/together.h"

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "trainer/comm/store/memory_store.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using Strings = std::vector<std::string>;

// Three ranks; what each of them got, or threw.
Strings OnThree(const std::function<std::string(int rank)>& work) {
  MemoryStore store(/*timeout_s=*/60);
  Strings ends(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        for (const std::string& r : Together(store, "x", rank, 3, [&] { return work(rank); })) {
          ends[rank] += r + ";";
        }
      } catch (const ReportedElsewhere& error) {
        ends[rank] =
            "told: " + std::to_string(static_cast<int>(error.code())) + ": " + error.what();
      } catch (const CheckpointError& error) {
        ends[rank] = std::string("checkpoint: ") + error.what();
      } catch (const Error& error) {
        ends[rank] = std::to_string(static_cast<int>(error.code())) + ": " + error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return ends;
}

TEST(Together, EverybodyGetsAllResults) {
  EXPECT_EQ(OnThree([](int rank) { return std::string(rank, '-'); }), Strings(3, ";-;--;"));
}

// Everybody's failure, which the rank says that it happened to.
TEST(Together, OneRanksFailureIsEverybodysOfItsKind) {
  const auto fail = [](auto error) {
    return OnThree([error](int rank) -> std::string {
      if (rank >= 1) throw error;
      return "done";
    });
  };
  const auto ends = [](const std::string& kind, const std::string& code, const std::string& text) {
    const std::string told = "told: " + code + ": rank 1: " + text;
    return Strings{told, kind + ": rank 1: " + text, told};
  };
  EXPECT_EQ(fail(CheckpointError("no space")), ends("checkpoint", "5", "no space"));
  EXPECT_EQ(fail(Error(ExitCode::kNotFinite, "nan")), ends("7", "7", "nan"));
  EXPECT_EQ(fail(std::runtime_error("odd")), ends("1", "1", "odd"));
}

// A rank that has been told says nothing later on either, and whoever knows still does.
TEST(ClaimReport, RanksThatHeardAnotherDoNotClaim) {
  MemoryStore store(/*timeout_s=*/60);
  const Error error(ExitCode::kNotFinite, "rank 1: nan");
  std::vector<char> claims(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      claims[rank] = rank == 1 ? ClaimReport(store, "x", rank, 3, error)
                               : ClaimReport(store, "x", rank, 3, ReportedElsewhere(error));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(claims, (std::vector<char>{false, true, false}));
}

}  // namespace
}  // namespace fsdp
