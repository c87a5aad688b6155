#include "trainer/fsdp/memory_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/round_up.h"

namespace fsdp {
namespace {

constexpr uintptr_t kLastAddress = uintptr_t{1} << 62;

// Blocks by offset, in rows of rows that know when the first of theirs is born and the last has
// died, and the largest room between them. A layer's blocks lie where those of the other layers
// lie, and what forward keeps is alive together: so most rows are of another time than a block that
// is to be placed, or are all of its time without room for it, and are passed over. A layer's
// short-lived blocks lie where later layers keep theirs. A row of both kinds is passed over by its
// core, those of its blocks that live long.
class PlacedBlocks {
 public:
  // The lowest offset for a block, of so many bytes, that no block alive at the same time has.
  int64_t LowestFor(const Lifetime& block, int64_t bytes) {
    int64_t at = 0;
    FitsBelow(all_, block, bytes, at);
    return at;
  }

  // Rows and blocks that LowestFor() has looked at.
  int64_t looks() const { return looks_; }

  // Behind those of the same offset.
  void Add(const Lifetime& block, int64_t offset, int64_t bytes) {
    Insert({{offset, offset + bytes, -1, block.born, block.born, block.died, block.died}}, all_);
  }

 private:
  static constexpr size_t kMost = 64;
  struct Span {
    int64_t offset = 0, end = 0, room = -1;  // The largest between its blocks; -1: of one.
    int64_t born = 0, last_born = 0, first_died = 0, died = 0;
  };
  struct Placed {
    Span span;
    const Span& core() const { return span; }
  };
  template <typename Part>
  struct Row {
    Span span;
    std::vector<Part> parts;
    Span of_core = {};
    const Span& core() const { return of_core; }
  };

  static Span Joined(const Span& a, const Span& b) {
    return {a.offset,
            std::max(a.end, b.end),
            std::max({a.room, b.room, b.offset - a.end}),
            std::min(a.born, b.born),
            std::max(a.last_born, b.last_born),
            std::min(a.first_died, b.first_died),
            std::max(a.died, b.died)};
  }
  template <typename Part>
  static void Measure(Row<Part>& row) {
    row.span = row.parts.front().span;
    for (size_t i = 1; i < row.parts.size(); ++i) row.span = Joined(row.span, row.parts[i].span);
    int64_t longest = 0;
    for (const Part& part : row.parts) longest = std::max(longest, Together(part.core()));
    row.of_core = {};
    for (const Part& part : row.parts) {
      if (2 * Together(part.core()) < longest) continue;
      row.of_core = row.of_core.died == 0 ? part.core() : Joined(row.of_core, part.core());
    }
  }
  // How long all of its blocks are alive.
  static int64_t Together(const Span& span) { return span.first_died - span.last_born; }
  static bool AllAlive(const Span& span, const Lifetime& block) {
    return block.born < span.first_died && span.last_born < block.died;
  }

  // Whether the block fits at `at`, below some other of `part`; else `at` is raised above them.
  template <typename Part>
  bool FitsBelow(const Part& part, const Lifetime& block, int64_t bytes, int64_t& at) {
    const Span& span = part.span;
    ++looks_;
    if (block.born >= span.died || span.born >= block.died) return false;
    if (span.room < bytes && AllAlive(span, block)) {
      if (span.offset >= at + bytes) return true;
      at = std::max(at, span.end);
      return false;
    }
    if constexpr (requires { part.parts; }) {
      const Span& core = part.core();
      if (core.room < bytes && AllAlive(core, block) && core.offset < at + bytes) {
        at = std::max(at, core.end);
      }
      if (span.end <= at) return false;
      for (const auto& inner : part.parts) {
        if (FitsBelow(inner, block, bytes, at)) return true;
      }
    }
    return false;
  }

  template <typename Part>
  static auto Behind(std::vector<Part>& parts, size_t from, int64_t offset) {
    return std::upper_bound(parts.begin() + static_cast<int64_t>(from), parts.end(), offset,
                            [](int64_t at, const Part& part) { return at < part.span.offset; });
  }
  static void Insert(const Placed& placed, Row<Placed>& row) {
    row.parts.insert(Behind(row.parts, 0, placed.span.offset), placed);
    Measure(row);
  }
  template <typename Part>
  static void Insert(const Placed& placed, Row<Row<Part>>& row) {
    if (row.parts.empty()) row.parts.emplace_back();
    const auto part = Behind(row.parts, 1, placed.span.offset) - 1;
    Insert(placed, *part);
    if (part->parts.size() > kMost) {
      const auto half = part->parts.begin() + kMost / 2;
      Row<Part> behind{{}, {half, part->parts.end()}};
      part->parts.erase(half, part->parts.end());
      Measure(*part);
      Measure(behind);
      row.parts.insert(part + 1, std::move(behind));
    }
    Measure(row);
  }

  Row<Row<Row<Row<Placed>>>> all_;
  int64_t looks_ = 0;
};

int64_t AlignmentIn(MemoryPlace place) {
  return place == MemoryPlace::kDisk ? kSpillAlignment : 64;
}

}  // namespace

int64_t AlignedBytes(int64_t bytes, MemoryUse use) {
  return RoundUp(bytes, AlignmentIn(use.place));
}

int64_t PackBlocks(const std::vector<Lifetime>& blocks, std::vector<int64_t>& offsets,
                   int64_t alignment, int64_t* looks) {
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  offsets.assign(blocks.size(), 0);
  int64_t top = 0;
  PlacedBlocks placed;
  for (const size_t i : order) {
    const int64_t bytes = RoundUp(blocks[i].bytes, alignment);
    offsets[i] = placed.LowestFor(blocks[i], bytes);
    top = std::max(top, offsets[i] + bytes);
    placed.Add(blocks[i], offsets[i], bytes);
  }
  if (looks != nullptr) *looks = placed.looks();
  return top;
}

void PlanRecorder::Begin(Phase phase) {
  FSDP_CHECK(phase_ == Phase::kPersistent || live_ == 0) << live_ << " blocks outlive their phase";
  FSDP_CHECK(!again_ || next_ == records_[static_cast<int>(phase_)].size() || phase != phase_)
      << "a phase allocated less than the first time";
  phase_ = phase;
  again_ = !records_[static_cast<int>(phase)].empty();
  next_ = 0;
  live_ = 0;
}

void PlanRecorder::Bytes::Count(int64_t bytes, MemoryUse use) {
  if (use.place == MemoryPlace::kDisk) return;
  (use.place == MemoryPlace::kDevice ? on_device : on_host) += bytes;
}

uintptr_t PlanRecorder::NewAddress(int64_t bytes, MemoryUse use) {
  FSDP_CHECK_LT(0, bytes);
  if (static_cast<uintptr_t>(bytes) > kLastAddress - next_address_) {
    throw MemoryError("does not fit: a step allocates more than 4 EiB");
  }
  return std::exchange(next_address_, next_address_ + AlignedBytes(bytes, use));
}

void PlanRecorder::CheckCeiling() const {
  const Bytes updates = phase_ == Phase::kPersistent ? updates_ : Bytes();
  ceiling_.Check(now_.on_device + updates.on_device, now_.on_host + updates.on_host);
}

std::byte* PlanRecorder::AllocateForUpdates(int64_t bytes, MemoryUse use) {
  FSDP_CHECK(phase_ == Phase::kPersistent);
  records_[static_cast<int>(Phase::kUpdate)].push_back({bytes, use});
  updates_.Count(AlignedBytes(bytes, use), use);
  CheckCeiling();
  return reinterpret_cast<std::byte*>(NewAddress(bytes, use));
}

std::byte* PlanRecorder::Allocate(int64_t bytes, MemoryUse use) {
  const uintptr_t address = NewAddress(bytes, use);
  std::vector<Record>& records = records_[static_cast<int>(phase_)];
  if (again_) {
    FSDP_CHECK_LT(next_, records.size()) << "a phase allocates more than the first time";
    FSDP_CHECK_EQ(records[next_].bytes, bytes) << "allocation " << next_;
  } else {
    records.push_back({bytes, use, ticks_++, -1});
  }
  ++live_;
  now_.Count(AlignedBytes(bytes, use), use);
  CheckCeiling();
  blocks_[address] = {static_cast<int>(phase_), next_++};
  return reinterpret_cast<std::byte*>(address);
}

void PlanRecorder::Free(std::byte* data, int64_t bytes, MemoryUse use) noexcept {
  now_.Count(-AlignedBytes(bytes, use), use);
  const auto block = blocks_.find(reinterpret_cast<uintptr_t>(data));
  FSDP_CHECK(block != blocks_.end());
  const auto [phase, index] = block->second;
  blocks_.erase(block);
  if (phase == static_cast<int>(phase_)) --live_;
  Record& record = records_[phase][index];
  if (record.died < 0) record.died = ticks_++;
}

MemoryPlan PlanRecorder::Finish() const {
  MemoryPlan plan;
  for (int phase = 0; phase < kNumPhases; ++phase) {
    for (const Record& record : records_[phase]) {
      plan.blocks[phase].push_back({record.bytes, 0, record.use});
    }
  }
  for (MemoryPlan::Block& block : plan.blocks[static_cast<int>(Phase::kPersistent)]) {
    int64_t& end = plan.arenas[static_cast<int>(block.use.place)];
    block.offset = end;
    end += AlignedBytes(block.bytes, block.use);
    plan.kinds[static_cast<int>(block.use.place)][static_cast<int>(block.use.kind)] +=
        AlignedBytes(block.bytes, block.use);
  }
  for (int place = 0; place < kNumMemoryPlaces; ++place) {
    int64_t shared = 0;  // By the phases that follow one another.
    for (MemoryPlan::Block& block : plan.blocks[static_cast<int>(Phase::kUpdate)]) {
      if (static_cast<int>(block.use.place) != place) continue;
      block.offset = plan.arenas[place] + shared;
      shared += AlignedBytes(block.bytes, block.use);
    }
    for (const Phase phase : {Phase::kTrain, Phase::kEval, Phase::kGenerate}) {
      const std::vector<Record>& records = records_[static_cast<int>(phase)];
      std::vector<size_t> here;
      std::vector<Lifetime> lifetimes;
      for (size_t k = 0; k < records.size(); ++k) {
        if (static_cast<int>(records[k].use.place) != place) continue;
        here.push_back(k);
        lifetimes.push_back(
            {records[k].bytes, records[k].born,
             records[k].died < 0 ? std::numeric_limits<int64_t>::max() : records[k].died});
      }
      std::vector<int64_t> offsets;
      shared = std::max(
          shared, PackBlocks(lifetimes, offsets, AlignmentIn(static_cast<MemoryPlace>(place))));
      for (size_t i = 0; i < here.size(); ++i) {
        plan.blocks[static_cast<int>(phase)][here[i]].offset = plan.arenas[place] + offsets[i];
      }
    }
    plan.arenas[place] += shared;
    plan.kinds[place][static_cast<int>(MemoryKind::kActivations)] += shared;
  }
  return plan;
}

int64_t MemoryPlan::bytes() const {
  return std::accumulate(arenas.begin(), arenas.end(), -bytes(MemoryPlace::kDisk));
}

int64_t MemoryPlan::bytes(MemoryKind kind) const {
  int64_t sum = -bytes(kind, MemoryPlace::kDisk);
  for (const auto& place : kinds) sum += place[static_cast<int>(kind)];
  return sum;
}

PlannedAllocator::PlannedAllocator(Device& device, MemoryPlan plan,
                                   std::unique_ptr<SpillMemory> spill)
    : plan_(std::move(plan)), spill_(std::move(spill)) {
  for (int i = 0; i < kNumMemoryPlaces; ++i) {
    const auto place = static_cast<MemoryPlace>(i);
    if (place != MemoryPlace::kDisk || !spill_)
      arenas_[i] = device.Allocate(plan_.arenas[i], place);
  }
}

void PlannedAllocator::Begin(Phase phase) {
  phase_ = phase;
  next_[static_cast<int>(phase)] = 0;
}

std::byte* PlannedAllocator::Take(Phase phase, int64_t bytes, MemoryUse use) {
  const int p = static_cast<int>(phase);
  const std::vector<MemoryPlan::Block>& blocks = plan_.blocks[p];
  const size_t next = next_[p]++;
  FSDP_CHECK_LT(next, blocks.size()) << "phase " << p << " allocates more than planned";
  const MemoryPlan::Block& block = blocks[next];
  FSDP_CHECK_EQ(block.bytes, bytes) << "phase " << p << " allocation " << next;
  FSDP_CHECK(block.use.place == use.place) << "allocation " << next << " in another place";
  std::byte* const arena = use.place == MemoryPlace::kDisk && spill_
                               ? spill_->data()
                               : arenas_[static_cast<int>(use.place)].data();
  return arena + block.offset;
}

void PlannedAllocator::Free(std::byte*, int64_t, MemoryUse) noexcept {}

}  // namespace fsdp
