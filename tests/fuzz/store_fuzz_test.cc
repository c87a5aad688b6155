// Strangers and members say to the TCP store what they should not: it closes their connection and
// nothing else, while two ranks go on. 100,000 inputs in all, a quarter of them for every change.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/fuzz/mutator.h"
#include "tests/trainer/comm/raw_member.h"
#include "trainer/comm/store/tcp_store.h"
#include "trainer/comm/store/wire.h"

namespace fsdp {
namespace {

using testing::RawMember;
using wire::Type;

const StoreAccess kAccess{"swordfish", 3};
constexpr int64_t kMinute_us = 60'000'000;

template <typename Fill>
std::string Frame(Type type, Fill fill) {
  wire::Writer message(type, 7);
  fill(message);
  return message.Frame();
}

std::vector<std::string> StrangersFrames() {
  return {Frame(Type::kHello,
                [](wire::Writer& w) { w.String(wire::kMagic).String(std::string(32, 'n')); }),
          Frame(Type::kProof, [](wire::Writer& w) {
            w.Int(0).Int(2).Int(3).Int(kMinute_us).Int(kMinute_us).String(std::string(32, 't'));
          })};
}

std::vector<std::string> MembersFrames() {
  return {Frame(Type::kSet, [](wire::Writer& w) { w.String("fuzz").String("value"); }),
          Frame(Type::kAdd, [](wire::Writer& w) { w.String("fuzz/n").Int(1); }),
          Frame(Type::kFetch,
                [](wire::Writer& w) { w.Int(1000).Int(2).String("fuzz").String("never"); }),
          Frame(Type::kForget, [](wire::Writer& w) { w.String("fuzz"); }),
          Frame(Type::kLeave, [](wire::Writer&) {})};
}

std::vector<std::string> Pieces() {
  const auto number = [](auto value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  std::vector<std::string> pieces = {std::string(wire::kMagic)};
  for (const uint32_t size : {0u, 1u, 9u, 160u, 161u, 1u << 20, 2u << 20, 0xffffffffu}) {
    pieces.push_back(number(size));
  }
  for (const int64_t value : {int64_t{0}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    pieces.push_back(number(value));
  }
  for (int type = 0; type < 80; ++type) pieces.push_back(number(static_cast<uint8_t>(type)));
  return pieces;
}

std::string RandomBytes(std::mt19937_64& random) {
  std::string bytes(random() % 200, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  if (random() % 2 == 0 && bytes.size() > 4) {  // A frame of that length.
    const auto length = static_cast<uint32_t>(bytes.size() - 4);
    bytes.replace(0, 4, reinterpret_cast<const char*>(&length), 4);
  }
  return bytes;
}

// Two ranks of a job that use the store all the time, each over its own connection.
class HonestRanks {
 public:
  HonestRanks(int port, int size) {
    for (int rank = 0; rank < 2; ++rank) {
      threads_.emplace_back([this, port, size, rank] {
        try {
          const auto store = ConnectTcpStore("localhost", port, rank, size, 240, kAccess);
          const std::string key = "honest/" + std::to_string(rank);
          for (int64_t i = 0; !stop_; ++i) {
            store->Set(key, std::to_string(i));
            if (store->Get(key) != std::to_string(i)) throw std::runtime_error("another value");
            if (store->Add(key + "/n", 1) != i + 1) throw std::runtime_error("another sum");
            ++rounds_[rank];
          }
        } catch (const std::exception& error) {
          errors_[rank] = error.what();
          ++failures_;
        }
      });
    }
  }
  ~HonestRanks() { Stop(); }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  void ExpectWell() {
    Stop();
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(errors_[rank], "");
      EXPECT_GT(rounds_[rank], 0);
    }
  }
  bool failed() const { return failures_ > 0; }
  // Until each has done something more: whatever the store had received by then it has handled.
  void WaitForARound() {
    for (const std::atomic<int64_t>& rounds : rounds_) {
      const int64_t before = rounds;
      while (rounds < before + 2 && !failed()) std::this_thread::yield();
    }
  }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int> failures_{0};
  std::string errors_[2];
  std::atomic<int64_t> rounds_[2] = {0, 0};
  std::vector<std::thread> threads_;
};

// Before the proof. Connections overlap, so that each input meets a busy server.
TEST(StoreFuzz, FromStrangers) {
  const int inputs = FuzzInputs(90'000);
  constexpr int kAtOnce = 60;
  TcpStoreServer server("localhost", 0, 2, 240, kAccess);
  HonestRanks honest(server.port(), 2);
  Mutator mutator(1, StrangersFrames(), Pieces(), 400);
  std::mt19937_64 random(2);
  std::vector<std::unique_ptr<RawMember>> open;
  for (int i = 0; i < inputs; ++i) {
    auto stranger = std::make_unique<RawMember>(server.port(), "not the secret", "127.0.0.1");
    if (i % 8 == 0) stranger->Hello();  // The bytes that follow are taken for a proof.
    stranger->Send(i % 3 == 0 ? RandomBytes(random) : mutator.Next(), /*wait=*/false);
    if (i % 2 == 0) stranger->EndWriting();
    open.push_back(std::move(stranger));
    if (open.size() < kAtOnce) continue;
    // Those that said that they were done are closed by the store; the others we leave alone.
    for (size_t k = 0; k < open.size(); ++k) {
      if (k % 2 == 0) {
        ASSERT_TRUE(open[k]->ReadToEnd()) << "input " << i;
      }
      open[k]->Reset();
    }
    open.clear();
    ASSERT_FALSE(honest.failed()) << "input " << i;
  }
  honest.ExpectWell();
}

// Behind the proof, from members that have said that they leave: what they say then is read like
// any member's, and their end is nobody's failure.
TEST(StoreFuzz, FromMembers) {
  const int inputs = FuzzInputs(10'000);
  constexpr int kMembers = 100;
  Mutator mutator(3, MembersFrames(), Pieces(), 400);
  std::mt19937_64 random(4);
  const std::string leave = Frame(Type::kLeave, [](wire::Writer&) {});
  for (int sent = 0; sent < inputs;) {
    TcpStoreServer server("localhost", 0, 2 + kMembers, 240, kAccess);
    HonestRanks honest(server.port(), 2 + kMembers);
    std::vector<std::unique_ptr<RawMember>> members;
    for (int m = 0; m < kMembers; ++m) {
      members.push_back(std::make_unique<RawMember>(server.port(), kAccess.secret, "127.0.0.1"));
      ASSERT_TRUE(
          members[m]->Prove({2 + m, 2 + kMembers, kAccess.generation, 240'000'000, 240'000'000}));
      members[m]->Send(leave);
    }
    honest.WaitForARound();
    for (int round = 0; round < 20; ++round) {
      for (auto& member : members) {
        if (member == nullptr) continue;
        if (member->Closed()) {
          member->Reset();
          member = nullptr;
          continue;
        }
        std::string input = sent % 3 == 0 ? RandomBytes(random) : mutator.Next();
        // To end the job on purpose is a member's right, and so is to forget what others count.
        for (const Type type : {Type::kFail, Type::kForget}) {
          const bool harmless = type == Type::kForget && input.find("fuzz") != std::string::npos;
          if (input.size() > 4 && input[4] == static_cast<char>(type) && !harmless) input[4] = 0;
        }
        if (member->Send(input, /*wait=*/false)) ++sent;
      }
      honest.WaitForARound();
      ASSERT_FALSE(honest.failed()) << sent << " inputs";
    }
    honest.ExpectWell();
  }
}

}  // namespace
}  // namespace fsdp
