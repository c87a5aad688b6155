#include "tests/emulated/kernel_list.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <tuple>

namespace fsdp {
namespace {

// A function's static: kernels of other files join it before main().
std::vector<const EmulatedKernel*>& List() {
  static std::vector<const EmulatedKernel*> list;
  return list;
}

// "... [with auto kernel = fsdp::{anonymous}::Scale<float>]" -> "fsdp::Scale<float>".
std::string NameOf(std::string_view pretty) {
  constexpr std::string_view kBegin = "kernel = ", kAnonymous = "{anonymous}::";
  const size_t begin = pretty.find(kBegin) + kBegin.size();
  std::string name(pretty.substr(begin, pretty.rfind(']') - begin));
  for (size_t at; (at = name.find(kAnonymous)) != std::string::npos;) {
    name.erase(at, kAnonymous.size());
  }
  return name;
}

}  // namespace

EmulatedKernel::EmulatedKernel(const char* pretty, const char* source, const void* function)
    : name_(NameOf(pretty)),
      source_(std::filesystem::path(source).stem().string()),
      function_(function) {
  List().push_back(this);
}

std::vector<const EmulatedKernel*> EmulatedKernels() {
  std::vector<const EmulatedKernel*> kernels = List();
  std::sort(kernels.begin(), kernels.end(), [](const auto* a, const auto* b) {
    return std::tie(a->source(), a->name()) < std::tie(b->source(), b->name());
  });
  return kernels;
}

bool HasKernels(const std::string& source) {
  return std::any_of(List().begin(), List().end(),
                     [&](const EmulatedKernel* kernel) { return kernel->source() == source; });
}

std::vector<std::string> NeverLaunched(const std::string& source) {
  if (!HasKernels(source)) return {"no kernels of " + source + ".cu are linked in"};
  std::vector<std::string> wrong;
  for (const EmulatedKernel* kernel : EmulatedKernels()) {
    if (kernel->source() == source && kernel->launches == 0) {
      wrong.push_back("no test launches " + kernel->name());
    }
  }
  return wrong;
}

}  // namespace fsdp
