#include "trainer/runtime/spill/spill_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <span>

#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/runtime/memory.h"
#include "trainer/runtime/operation.h"

namespace fsdp {

SpillMemory::SpillMemory(const std::string& directory, const std::string& holds, int64_t bytes,
                         FileIo& io)
    : bytes_(bytes), file_(directory, holds, bytes, io) {
  void* const addresses = ::mmap(nullptr, static_cast<size_t>(std::max<int64_t>(bytes, 1)),
                                 PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (addresses == MAP_FAILED) {
    throw MemoryError("no addresses for " + std::to_string(bytes) + " bytes on a disk");
  }
  addresses_ = static_cast<std::byte*>(addresses);
}

SpillMemory::~SpillMemory() {
  ::munmap(addresses_, static_cast<size_t>(std::max<int64_t>(bytes_, 1)));
}

int64_t SpillMemory::OffsetOf(ConstView view) const {
  FSDP_CHECK(Holds(view)) << "a tensor that is not spilled";
  return view.data - addresses_;
}

void SpillMemory::Name(ConstView spilled, const std::string& name) {
  file_.Name(OffsetOf(spilled), spilled.bytes(), name);
}

void SpillMemory::Read(ConstView spilled, View in_memory) {
  FSDP_CHECK_EQ(spilled.bytes(), in_memory.bytes());
  const std::lock_guard lock(reads_.mutex);
  file_.Read(reads_.pool, OffsetOf(spilled),
             {in_memory.data, static_cast<size_t>(in_memory.bytes())});
}

void SpillMemory::Write(ConstView in_memory, View spilled) {
  FSDP_CHECK_EQ(spilled.bytes(), in_memory.bytes());
  const std::lock_guard lock(writes_.mutex);
  file_.Write(writes_.pool, OffsetOf(spilled),
              {in_memory.data, static_cast<size_t>(in_memory.bytes())});
}

void SpillMemory::Copy(ConstView spilled, View other_spilled) {
  FSDP_CHECK_EQ(spilled.bytes(), other_spilled.bytes());
  const std::lock_guard lock(copies_.mutex);
  file_.Copy(copies_.pool, OffsetOf(spilled), OffsetOf(other_spilled), spilled.bytes());
}

void SpillMemory::ReadInOrder(ConstView spilled, const std::function<void(ConstView)>& use) const {
  const auto values = [&](std::span<const std::byte> block) {
    use({block.data(), spilled.dtype, Shape{std::ssize(block) / SizeOf(spilled.dtype)}});
  };
  file_.ReadInOrder(OffsetOf(spilled), spilled.bytes(), values);
}

namespace {

// `transfer(spill, from, to)`, of as many bytes.
template <typename Transfer>
void Enqueue(Stream& stream, const char* name, SpillMemory* spill, ConstView from, View to,
             const Transfer& transfer) {
  const auto bytes = static_cast<double>(from.bytes());
  const Cost cost{.bytes_read = bytes, .bytes_written = bytes};
  Operation operation{name, {from}, {to}, {{cost, OnGpu{.launches = 0}}}, {}};
  const auto run = [spill, transfer](ThreadPool&, const ConstView& source, const View& target) {
    transfer(*spill, source, target);
  };
  if (spill != nullptr) operation.kernels.host = OnCpu(run, from, to);
  stream.Enqueue(std::move(operation));
}

}  // namespace

void ReadSpilled(Stream& stream, SpillMemory* spill, ConstView spilled, View in_memory) {
  Enqueue(stream, "spill_read", spill, spilled, in_memory,
          [](SpillMemory& s, ConstView from, View to) { s.Read(from, to); });
}

void WriteSpilled(Stream& stream, SpillMemory* spill, ConstView in_memory, View spilled) {
  Enqueue(stream, "spill_write", spill, in_memory, spilled,
          [](SpillMemory& s, ConstView from, View to) { s.Write(from, to); });
}

void CopySpilled(Stream& stream, SpillMemory* spill, ConstView spilled, View other_spilled) {
  Enqueue(stream, "spill_copy", spill, spilled, other_spilled,
          [](SpillMemory& s, ConstView from, View to) { s.Copy(from, to); });
}

}  // namespace fsdp
