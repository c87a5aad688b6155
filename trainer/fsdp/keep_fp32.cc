#include "trainer/fsdp/keep_fp32.h"

#include <fnmatch.h>

#include <algorithm>
#include <optional>

#include "trainer/nn/model.h"

namespace fsdp {
namespace {

bool Matches(const std::string& glob, const std::string& name) {
  return fnmatch(glob.c_str(), name.c_str(), 0) == 0;
}

// The first glob that matches.
std::optional<size_t> GlobOf(const std::vector<std::string>& globs, const std::string& name) {
  for (size_t i = 0; i < globs.size(); ++i) {
    if (Matches(globs[i], name)) return i;
  }
  return std::nullopt;
}

}  // namespace

bool KeptInFp32(const std::vector<std::string>& globs, const Parameter& parameter) {
  return std::any_of(
      parameter.slices().begin(), parameter.slices().end(),
      [&](const ParameterSlice& slice) { return GlobOf(globs, slice.name).has_value(); });
}

std::vector<KeepMistake> KeepMistakes(const std::vector<std::string>& globs, const Model& model) {
  std::vector<KeepMistake> mistakes;
  std::vector<bool> matched(globs.size());
  std::string some_name;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* parameter : segment.parameters) {
      std::optional<size_t> first;
      std::string kept, others;
      for (const ParameterSlice& slice : parameter->slices()) {
        some_name = slice.name;
        for (size_t i = 0; i < globs.size(); ++i) {
          if (Matches(globs[i], slice.name)) matched[i] = true;
        }
        const std::optional<size_t> glob = GlobOf(globs, slice.name);
        if (glob && !first) first = glob;
        (glob ? kept : others) += " " + slice.name;
      }
      if (!first || others.empty()) continue;
      mistakes.push_back({*first, "one matrix holds slices that `" + globs[*first] +
                                      "` matches and others, and has one dtype. It matches:" +
                                      kept + "; not:" + others});
    }
  }
  for (size_t i = 0; i < globs.size(); ++i) {
    if (matched[i]) continue;
    mistakes.push_back({i, "`" + globs[i] + "` matches no parameter; a name is " + some_name});
  }
  return mistakes;
}

}  // namespace fsdp
