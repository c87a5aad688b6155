#include "tests/trainer/checkpoint/rank_states.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <thread>

#include "trainer/comm/store/memory_store.h"
#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/nn/parameter.h"

namespace fsdp {

std::vector<SegmentShape> OddModel() {
  std::vector<SegmentShape> model;
  model.push_back({"embedding", false, {{"wte", Shape{37, 24}}, {"wpe", Shape{16, 24}}}});
  for (int i = 0; i < 3; ++i) {
    const std::string h = "h." + std::to_string(i);
    model.push_back({h,
                     true,
                     {{h + ".ln", Shape{23}},
                      {h + ".w", Shape{24, 71}},
                      {h + ".gain", Shape{}},
                      {h + ".b", Shape{71}}}});
  }
  model.push_back({"head", false, {{"ln_f", Shape{24}}}});
  return model;
}

float ElementOf(const std::string& state, const std::string& parameter, int64_t index,
                uint64_t salt) {
  const uint64_t name = HashBytes(state + "/" + parameter, salt);
  const auto bits =
      static_cast<uint32_t>((name + static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15) >> 32);
  return std::bit_cast<float>(bits & 0xff7fffffu);  // Never NaN or infinite.
}

int64_t FirstInWhole(const Placement& p) {
  const std::optional<NamedRows> rows = RowsOfName(p.name);
  return rows ? rows->begin * (p.size() / p.shape[0]) : 0;
}

ShardPlace PlaceOf(int rank, int world, int shards) { return PlaceOn(Mesh(rank, world, shards)); }

RankStates::RankStates(const Layout& layout, const ShardPlace& place,
                       const std::vector<std::string>& names)
    : layout_(layout), place_(place), buffers_(names.size()) {
  for (size_t s = 0; s < names.size(); ++s) {
    states_.push_back({names[s], {}});
    for (const FlatParameter& flat : layout.flat_parameters) {
      const int64_t elements = FlatHasState(flat, names[s]) ? flat.shard_size : 0;
      buffers_[s].emplace_back(elements);
      auto* data = reinterpret_cast<std::byte*>(buffers_[s].back().data());
      states_[s].shards.emplace_back(data, DType::kFloat32, Shape{elements});
    }
  }
}

std::vector<std::vector<float>> RankStates::Expected(size_t state, uint64_t salt) const {
  std::vector<std::vector<float>> flats;
  for (const FlatParameter& flat : layout_.flat_parameters) {
    std::vector<float>& shard = flats.emplace_back();
    if (!FlatHasState(flat, states_[state].name)) continue;
    shard.resize(flat.shard_size);
    for (const Placement& p : flat.parameters) {
      const int64_t first = FirstInWhole(p);
      for (int64_t i = 0; i < p.size(); ++i) {
        const int64_t at = p.offset + i - flat.ShardBegin(place_.shard);
        if (at < 0 || at >= flat.shard_size) continue;
        shard[at] = ElementOf(states_[state].name, WholeName(p.name), first + i, salt);
      }
    }
  }
  return flats;
}

void RankStates::Fill(uint64_t salt) {
  for (size_t s = 0; s < states_.size(); ++s) {
    const auto flats = Expected(s, salt);
    for (size_t u = 0; u < flats.size(); ++u) {
      std::copy(flats[u].begin(), flats[u].end(), buffers_[s][u].begin());
    }
  }
}

void RankStates::Poison() {
  for (auto& flats : buffers_) {
    for (auto& shard : flats) {
      std::fill(shard.begin(), shard.end(), std::numeric_limits<float>::quiet_NaN());
    }
  }
}

std::string RankStates::Difference(uint64_t salt) const {
  for (size_t s = 0; s < states_.size(); ++s) {
    const auto want = Expected(s, salt);
    for (size_t u = 0; u < want.size(); ++u) {
      for (size_t i = 0; i < want[u].size(); ++i) {
        if (std::memcmp(&want[u][i], &buffers_[s][u][i], sizeof(float)) == 0) continue;
        return states_[s].name + ", unit " + layout_.flat_parameters[u].name + ", element " +
               std::to_string(i) + " of shard " + std::to_string(place_.shard) + " is " +
               std::to_string(buffers_[s][u][i]) + ", want " + std::to_string(want[u][i]);
      }
    }
  }
  return "";
}

CheckpointMeta MetaOf(int64_t step) {
  return {step, 1000 * step, 0xfedcba9876543210u, "run:\n  name: \"\xc3\xa9\"\n", "{\"n\": 1}"};
}

std::vector<std::string> Save(const World& world, const std::string& checkpoints, int64_t step,
                              int64_t keep_last) {
  MemoryStore store(/*timeout_s=*/60);
  return Save(world, checkpoints, step, keep_last, store, /*attempt=*/0);
}

std::vector<std::string> Save(const World& world, const std::string& checkpoints, int64_t step,
                              int64_t keep_last, Store& store, int64_t attempt,
                              std::optional<uint64_t> salt) {
  const Layout layout = world.MakeLayout();
  std::vector<std::string> errors(world.world);
  CheckpointMeta meta = MetaOf(step);
  if (world.losses.contains(step)) meta.evaluation = {.loss = world.losses.at(step)};
  const auto run = [&](int rank) {
    const ShardPlace place = PlaceOf(rank, world.world, world.shards);
    RankStates states(layout, place, world.states);
    states.Fill(salt.value_or(static_cast<uint64_t>(step)));
    if (world.before_save) world.before_save(rank, states.states());
    try {
      SaveCheckpoint(checkpoints, layout, place, states.states(), meta, store, attempt, keep_last);
    } catch (const Error& error) {
      errors[rank] = error.what();
      if (error.code() == ExitCode::kCheckpoint) return;
      errors[rank] = "exit " + std::to_string(static_cast<int>(error.code())) + ": " + error.what();
    } catch (const std::exception& error) {
      errors[rank] = std::string("not a CheckpointError: ") + error.what();
    }
  };
  if (world.world == 1) {  // No thread: the process may be watched system call by system call.
    run(0);
    return errors;
  }
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world.world; ++rank) ranks.emplace_back(run, rank);
  for (std::thread& rank : ranks) rank.join();
  return errors;
}

std::string LoadAndCompare(const World& world, const std::string& directory, uint64_t salt) {
  const Layout layout = world.MakeLayout();
  for (int rank = 0; rank < world.shards; ++rank) {
    const ShardPlace place = PlaceOf(rank, world.world, world.shards);
    RankStates states(layout, place, world.states);
    states.Poison();
    const std::string who = "rank " + std::to_string(rank) + ": ";
    try {
      LoadCheckpoint(directory, layout, place, states.states());
    } catch (const CheckpointError& error) {
      return who + error.what();
    }
    const std::string difference = states.Difference(salt);
    if (!difference.empty()) return "differs: " + who + difference;
  }
  return "";
}

std::vector<std::string> ListSorted(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace fsdp
