// The table of storage, as docs/fsdp.md draws it, and with a place and a form that no schedule and
// no executor has heard of.
#include "trainer/fsdp/storage.h"

#include <gtest/gtest.h>

#include <atomic>
#include <exception>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "models/gpt2/gpt2.h"
#include "tests/testing/tiny_run.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/moves.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

using testing::FirstDifference;
using testing::TinyRun;
using testing::Train;

constexpr std::pair<Resource, const char*> kThings[] = {
    {Resource::kMaster, "master"},
    {Resource::kState, "optimizer state"},
    {Resource::kComputeShard, "shard to gather"},
    {Resource::kValue, "gathered parameter"},
    {Resource::kSecondary, "part kept after forward"},
    {Resource::kGradient, "gradient of backward"},
    {Resource::kWire, "gradient as sent"},
    {Resource::kStaging, "reduced gradient of a micro-batch"},
    {Resource::kShard, "reduced gradient, leaving for the host"},
    {Resource::kGradientShard, "gradient shard of the update"},
    {Resource::kUpdated, "updated parameters, returning"}};

std::string NameOfThing(Resource what) {
  for (const auto& [thing, name] : kThings) {
    if (thing == what) return name;
  }
  return "";
}

std::string Cell(const StorageRow& row) {
  constexpr const char* kPlaces[] = {"device", "pinned", "host", "disk"};
  constexpr const char* kExtents[] = {"shard", "part", "whole"};
  switch (row.home) {
    case Home::kNone:
      return "";
    case Home::kSame:
      return "same as " + NameOfThing(row.same);
    default:
      break;
  }
  const std::string text = std::string(kPlaces[static_cast<int>(row.place)]) + ", " +
                           std::string(Name(row.form.dtype)) + ", " +
                           kExtents[static_cast<int>(row.extent)];
  return row.home == Home::kUnit   ? text + ", in use"
         : row.home == Home::kSlot ? text + ", reused"
                                   : text;
}

// The rows of a block of a model that trains on four ranks with these options.
std::string Table(const std::vector<ExecutorOptions>& recipes) {
  const Gpt2 model(TinyRun::TinyConfig());
  std::ostringstream out;
  std::vector<std::vector<std::string>> columns;
  for (const ExecutorOptions& options : recipes) {
    const Mesh mesh = MeshFor(options, /*rank=*/0, /*world=*/4);
    const Layout layout = LayoutFor(options, model, 4);
    const Storage storage(layout, ScheduleFor(options, model, mesh, Mode::kTrain), false);
    const int flat = layout.units[1].flat_parameters.front();
    columns.emplace_back();
    for (const auto& [what, name] : kThings) {
      columns.back().push_back(Cell(storage.Declared(what, flat)));
    }
  }
  for (size_t row = 0; row < std::size(kThings); ++row) {
    out << "| " << kThings[row].second << " |";
    for (const auto& column : columns) out << " " << column[row] << " |";
    out << "\n";
  }
  return out.str();
}

TEST(Storage, IsAsThePageDrawsIt) {
  ExecutorOptions plain;
  plain.mixed_precision.param_dtype = DType::kBFloat16;
  ExecutorOptions secondary = plain;
  secondary.reshard_after_forward = 2;
  secondary.mixed_precision.reduce_dtype = DType::kBFloat16;
  secondary.mixed_precision.cast = FsdpOptions::MixedPrecision::CastIn::kGather;
  ExecutorOptions offload = plain;
  offload.cpu_offload.optimizer = true;
  ExecutorOptions spill = plain;
  spill.cpu_offload = {.params = true, .optimizer = true, .spill = "somewhere"};
  std::ifstream page("docs/fsdp.md");
  std::stringstream text;
  text << page.rdbuf();
  const std::string table = Table({plain, secondary, offload, spill});
  EXPECT_NE(text.str().find(table), std::string::npos) << table;
}

// Bytes, each one's complement: nobody can take them for numbers.
std::atomic<int> g_complements = 0;
void Complement(const MoveContext&, Stream& stream, const PlacedView& source,
                const PlacedView& target) {
  const View &from = source.view, &to = target.view;
  Operation operation{"complement", {from}, {to}, {}};
  const auto flip = [](ThreadPool&, const View& bytes, const View& there) {
    for (int64_t i = 0; i < bytes.bytes(); ++i) there.data[i] = ~bytes.data[i];
    ++g_complements;
  };
  operation.kernels.cpu = OnCpu(flip, from, to);
  stream.Enqueue(std::move(operation));
}

constexpr int kComplement = 7;

TinyRun WithASecondaryCopy() {
  TinyRun run;
  run.world = 4;
  run.options.executor.reshard_after_forward = 2;
  return run;
}

// The secondary copy goes to another memory, in a form in which it cannot be gathered.
TEST(Storage, AnotherPlaceAndFormAreRowsOfTables) {
  TinyRun run = WithASecondaryCopy();
  const auto plain = Train(run);
  ExecutorOptions& o = run.options.executor;
  o.change_storage = [](Resource what, int, StorageRow& row) {
    if (what != Resource::kSecondary) return;
    row.place = MemoryPlace::kHost;
    row.form.code = kComplement;
  };
  o.add_moves = [](Moves& moves) {
    moves.Set({MemoryPlace::kDevice, MemoryPlace::kHost, 0, kComplement}, Complement);
    moves.Set({MemoryPlace::kHost, MemoryPlace::kDevice, kComplement, 0}, Complement);
  };
  for (const auto buffers : {FsdpOptions::Buffers::kSlots, FsdpOptions::Buffers::kCaching}) {
    o.buffers = buffers;
    o.limiter = FsdpOptions::Limiter::kHost;
    g_complements = 0;
    EXPECT_EQ(FirstDifference(Train(run), plain), "");
    // Three blocks, there and back, in three steps of as many micro-batches as four ranks make.
    EXPECT_GT(g_complements.load(), 0);
    EXPECT_EQ(g_complements.load() % (2 * 3 * 3 * 4), 0);
  }
}

TEST(Storage, WhatNobodyCanMoveIsAnError) {
  TinyRun run = WithASecondaryCopy();
  run.options.executor.change_storage = [](Resource what, int, StorageRow& row) {
    if (what == Resource::kSecondary) row.form.code = kComplement;
  };
  try {
    Train(run);
    FAIL() << "it was moved";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("[Moves] nothing leads from place 0, code 0"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace fsdp
