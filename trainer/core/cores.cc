#include "trainer/core/cores.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <memory>
#include <string_view>

#include "trainer/core/read_file.h"

namespace fsdp {
namespace {

constexpr int kMost = 1 << 14;  // Linux takes 8192.

// A set of the kernel's, of kMost cores.
class KernelSet {
 public:
  static constexpr size_t kBytes = CPU_ALLOC_SIZE(kMost);

  KernelSet() : set_(CPU_ALLOC(kMost), [](cpu_set_t* set) { CPU_FREE(set); }) {
    CPU_ZERO_S(kBytes, set_.get());
  }
  cpu_set_t* get() const { return set_.get(); }

 private:
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set_;
};

// The number that all of the text is; -1: none, or too large a one.
int NumberOf(std::string_view text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool good = error == std::errc() && end == text.data() + text.size();
  return good && number >= 0 && number < kMost ? number : -1;
}

}  // namespace

std::string CoresText(const Cores& cores) {
  std::string text;
  for (size_t i = 0; i < cores.size();) {
    size_t end = i + 1;
    while (end < cores.size() && cores[end] == cores[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(cores[i]);
    if (end - i > 1) text += "-" + std::to_string(cores[end - 1]);
    i = end;
  }
  return text;
}

Cores ParseCores(const std::string& text) {
  std::string_view rest = text;
  while (rest.ends_with('\n')) rest.remove_suffix(1);
  if (rest.ends_with(',')) return {};
  Cores cores;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view part = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const size_t dash = std::min(part.find('-'), part.size());
    const int first = NumberOf(part.substr(0, dash));
    const int last = dash == part.size() ? first : NumberOf(part.substr(dash + 1));
    if (first < 0 || last < first || (!cores.empty() && first <= cores.back())) return {};
    for (int core = first; core <= last; ++core) cores.push_back(core);
  }
  return cores;
}

bool Overlap(const Cores& a, const Cores& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](int core) { return std::binary_search(b.begin(), b.end(), core); });
}

Cores AllowedCores() {
  const KernelSet set;
  if (sched_getaffinity(0, KernelSet::kBytes, set.get()) != 0) return {};
  Cores cores;
  for (int core = 0; core < kMost; ++core) {
    if (CPU_ISSET_S(core, KernelSet::kBytes, set.get())) cores.push_back(core);
  }
  return cores;
}

bool StayOn(const Cores& cores) {
  const KernelSet set;
  for (const int core : cores) CPU_SET_S(core, KernelSet::kBytes, set.get());
  return sched_setaffinity(0, KernelSet::kBytes, set.get()) == 0;
}

Cores CoresOfHost(const std::string& root) {
  return ParseCores(ReadFileText(root + "/sys/devices/system/cpu/online", kMostTextBytes).text);
}

}  // namespace fsdp
