#include "trainer/optim/parameter_groups.h"

#include <fnmatch.h>

#include <set>

#include "trainer/nn/model.h"

namespace fsdp {
namespace {

bool Matches(const ParameterGroup& group, const std::string& name) {
  return fnmatch(group.match.c_str(), name.c_str(), 0) == 0;
}

}  // namespace

const ParameterGroup* GroupOf(const std::vector<ParameterGroup>& groups, const std::string& name) {
  for (const ParameterGroup& group : groups) {
    if (Matches(group, name)) return &group;
  }
  return nullptr;
}

std::vector<GroupMistake> FreezeParameters(Model& model,
                                           const std::vector<ParameterGroup>& groups) {
  std::vector<GroupMistake> mistakes;
  std::vector<bool> matches(groups.size()), used(groups.size());
  std::string some_name;
  bool trains = false;
  for (const ModelSegment& segment : model.segments()) {
    for (Parameter* parameter : segment.parameters) {
      const ParameterGroup* first = nullptr;
      size_t frozen = 0;
      std::set<std::optional<DType>> states;
      for (const ParameterSlice& slice : parameter->slices()) {
        some_name = slice.name;
        for (size_t i = 0; i < groups.size(); ++i) {
          if (Matches(groups[i], slice.name)) matches[i] = true;
        }
        const ParameterGroup* group = GroupOf(groups, slice.name);
        states.insert(group == nullptr ? std::nullopt : group->state_dtype);
        if (group == nullptr) continue;
        if (group->state_dtype) first = group;
        used[group - groups.data()] = true;
        if (!group->frozen) continue;
        ++frozen;
        first = group;
      }
      if (frozen == parameter->slices().size()) parameter->Freeze();
      if (frozen > 0 && parameter->trainable()) {
        std::string names;
        for (const ParameterSlice& slice : parameter->slices()) names += " " + slice.name;
        mistakes.push_back({static_cast<int>(first - groups.data()),
                            "one matrix holds these, so all or none can be frozen:" + names});
      }
      if (states.size() > 1 && parameter->trainable()) {
        std::string names;
        for (const ParameterSlice& slice : parameter->slices()) names += " " + slice.name;
        mistakes.push_back({static_cast<int>(first - groups.data()),
                            "one matrix holds these, so all have one state_dtype:" + names});
      }
      trains |= parameter->trainable();
    }
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    if (used[i]) continue;
    mistakes.push_back(
        {static_cast<int>(i),
         matches[i] ? "`" + groups[i].match + "` matches only what earlier groups do"
                    : "`" + groups[i].match + "` matches no parameter; a name is " + some_name});
  }
  if (!trains) mistakes.push_back({-1, "every parameter is frozen: nothing to train"});
  return mistakes;
}

}  // namespace fsdp
