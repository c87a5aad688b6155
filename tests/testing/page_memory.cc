#include <sys/mman.h>

#include <algorithm>
#include <deque>

#include "tests/testing/test_memory.h"
#include "trainer/core/check.h"
#include "trainer/runtime/memory.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr int64_t kPage = 4096;

bool Overlap(const Range& range, const std::byte* data, int64_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  return range.begin < begin + bytes && begin < range.begin + range.bytes;
}

class PageMemory final : public TestMemory {
 public:
  explicit PageMemory(Device& device) : device_(device) {}

  std::byte* Allocate(int64_t bytes, TensorPlace place) override {
    const int64_t usable = (bytes + kPage - 1) / kPage * kPage;
    const Pages& pages = all_.emplace_back(Pages{device_.Allocate(usable + 2 * kPage), usable});
    FSDP_CHECK_EQ(mprotect(pages.host() - kPage, kPage, PROT_NONE), 0);
    FSDP_CHECK_EQ(mprotect(pages.host() + usable, kPage, PROT_NONE), 0);
    return pages.buffer.data() + kPage + (place == TensorPlace::kEnd ? usable - bytes : 0);
  }
  void Clear() override { all_.clear(); }

  void Read(const std::byte* at, int64_t bytes, std::byte* to) const override {
    std::copy_n(HostAddress(at), bytes, to);
  }
  void Write(std::byte* at, const std::byte* from, int64_t bytes) override {
    std::copy_n(from, bytes, HostAddress(at));
  }
  std::vector<Bytes> Save() const override {
    std::vector<Bytes> saved;
    for (const Pages& pages : all_) saved.emplace_back(pages.host(), pages.host() + pages.usable);
    return saved;
  }
  void Restore(const std::vector<Bytes>& saved) override {
    for (size_t i = 0; i < saved.size(); ++i) {
      std::copy(saved[i].begin(), saved[i].end(), all_[i].host());
    }
  }

  void Close() override { ProtectAll(PROT_NONE); }
  void Open() override { ProtectAll(PROT_READ | PROT_WRITE); }
  void Begin(const Operation& operation) override {
    for (const Pages& pages : all_) {
      int protection = PROT_NONE;
      for (const Range& range : operation.reads) {
        if (Overlap(range, pages.host(), pages.usable)) protection = PROT_READ;
      }
      for (const Range& range : operation.writes) {
        if (Overlap(range, pages.host(), pages.usable)) protection = PROT_READ | PROT_WRITE;
      }
      Protect(pages, protection);
    }
  }
  std::vector<std::string> End(const Operation&) override { return {}; }

 private:
  struct Pages {
    Buffer buffer;   // Begins and ends with an inaccessible page.
    int64_t usable;  // Bytes between them.

    std::byte* host() const { return HostAddress(buffer.data()) + kPage; }
  };

  static void Protect(const Pages& pages, int protection) {
    if (pages.usable > 0) FSDP_CHECK_EQ(mprotect(pages.host(), pages.usable, protection), 0);
  }
  void ProtectAll(int protection) const {
    for (const Pages& pages : all_) Protect(pages, protection);
  }

  Device& device_;
  std::deque<Pages> all_;
};

}  // namespace

std::unique_ptr<TestMemory> CreatePageMemory(Device& device) {
  return std::make_unique<PageMemory>(device);
}

}  // namespace fsdp
