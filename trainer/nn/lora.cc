#include "trainer/nn/lora.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include "trainer/autograd/tape.h"

namespace fsdp {
namespace {

constexpr std::string_view kSuffix = ".weight";

bool Matches(const std::string& pattern, const std::string& name, const std::string& module) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0 || module == pattern ||
         module.ends_with("." + pattern);
}

bool IsTarget(const std::string& name, const std::string& target) {
  return Matches(target, name, ModuleOf(name));
}

bool IsAnyOf(const std::string& name, const std::vector<std::string>& entries) {
  const std::string module = name.substr(0, std::min(name.rfind('.'), name.size()));
  return std::ranges::any_of(
      entries, [&](const std::string& entry) { return Matches(entry, name, module); });
}

// Weights of linear layers, by their names; a matrix that mixes heads is not one.
std::vector<ParameterSlice> LinearSlices(const ModelSegment& segment, const Parameter& parameter) {
  std::vector<ParameterSlice> linear;
  if (!segment.is_block || parameter.shape().rank() != 2 || parameter.is_plain()) return linear;
  for (const ParameterSlice& slice : parameter.slices()) {
    if (slice.name.ends_with(kSuffix)) linear.push_back(slice);
  }
  return linear;
}

// Empty where the entries name all slices of the matrix that `in` is one of.
std::string OneMatrix(const ParameterSlice& in, const std::vector<ParameterSlice>& slices,
                      const std::vector<std::string>& entries) {
  std::string out;
  for (const ParameterSlice& slice : slices) {
    if (!IsAnyOf(slice.name, entries)) out += (out.empty() ? "" : ", ") + slice.name;
  }
  if (out.empty()) return out;
  return in.name + " is one matrix with " + out + ": name all of it, or none";
}

bool IsAnyTarget(const ParameterSlice& slice, const LoraOptions& options) {
  return std::ranges::any_of(
      options.targets, [&](const std::string& target) { return IsTarget(slice.name, target); });
}

// Slices that have one adapter: each its own, or those of all experts at one place in an expert.
std::vector<std::vector<ParameterSlice>> AdaptedTogether(const ModelSegment& segment,
                                                         const Parameter& parameter) {
  const std::vector<ParameterSlice> linear = LinearSlices(segment, parameter);
  const size_t places = linear.size() / static_cast<size_t>(parameter.experts());
  std::vector<std::vector<ParameterSlice>> together(places);
  for (size_t i = 0; i < linear.size(); ++i) together[i % places].push_back(linear[i]);
  return together;
}

}  // namespace

std::string ModuleOf(const std::string& weight) {
  return weight.ends_with(kSuffix) ? weight.substr(0, weight.size() - kSuffix.size()) : weight;
}

std::string LoraName(const std::string& weight, char part) {
  return kPeftPrefix + ModuleOf(weight) + ".lora_" + part + ".weight";
}

std::vector<size_t> UnmatchedTargets(const Model& base, const std::vector<std::string>& targets,
                                     std::string* example) {
  std::vector<bool> used(targets.size());
  for (const ModelSegment& segment : base.segments()) {
    for (const Parameter* parameter : segment.parameters) {
      for (const ParameterSlice& slice : LinearSlices(segment, *parameter)) {
        *example = slice.name;
        for (size_t i = 0; i < targets.size(); ++i) {
          if (IsTarget(slice.name, targets[i])) used[i] = true;
        }
      }
    }
  }
  std::vector<size_t> unmatched;
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) unmatched.push_back(i);
  }
  return unmatched;
}

std::vector<FullMistake> FullMistakes(const Model& base, const std::vector<std::string>& full) {
  std::vector<FullMistake> mistakes;
  std::string example;
  for (size_t i = 0; i < full.size(); ++i) {
    bool used = false;
    std::string apart;
    for (const ModelSegment& segment : base.segments()) {
      for (const Parameter* parameter : segment.parameters) {
        const ParameterSlice* in = nullptr;
        for (const ParameterSlice& slice : parameter->slices()) {
          if (IsAnyOf(slice.name, {full[i]})) in = &slice;
        }
        example = parameter->slices()[0].name;
        used |= in != nullptr;
        if (in != nullptr && apart.empty()) apart = OneMatrix(*in, parameter->slices(), full);
      }
    }
    if (!used) apart = "`" + full[i] + "` matches no parameter: a name is " + example;
    if (!apart.empty()) mistakes.push_back({i, apart});
  }
  return mistakes;
}

std::vector<BaseMistake> EncodeFrozen(const Model& model, const LoraOptions& options) {
  std::vector<BaseMistake> mistakes;
  if (options.base == LoraBase::kNone) return mistakes;
  const std::vector<std::string>& exclude = options.base_exclude;
  std::vector<bool> used(exclude.size());
  std::string example;
  bool any = false;
  for (const ModelSegment& segment : model.segments()) {
    for (Parameter* parameter : segment.parameters) {
      const std::vector<ParameterSlice> linear = LinearSlices(segment, *parameter);
      if (linear.empty() || parameter->trainable()) continue;
      const ParameterSlice* in = nullptr;
      std::optional<size_t> entry;
      for (const ParameterSlice& slice : linear) {
        example = slice.name;
        for (size_t i = 0; i < exclude.size(); ++i) {
          if (!IsAnyOf(slice.name, {exclude[i]})) continue;
          used[i] = true;
          in = &slice;
          if (!entry) entry = i;
        }
      }
      const bool known = std::ranges::any_of(
          mistakes, [&](const BaseMistake& mistake) { return mistake.entry == entry; });
      const std::string apart = in == nullptr ? "" : OneMatrix(*in, linear, exclude);
      if (!apart.empty() && !known) mistakes.push_back({entry, apart});
      if (in != nullptr) continue;
      parameter->Encode(options.code());
      any = true;
    }
  }
  for (size_t i = 0; i < exclude.size(); ++i) {
    if (used[i]) continue;
    const std::string why = example.empty() ? "" : ": a name is " + example;
    mistakes.push_back(
        {i, "`" + exclude[i] + "` matches no frozen weight of a linear layer in a block" + why});
  }
  if (!any && mistakes.empty()) {
    mistakes.push_back({std::nullopt, example.empty()
                                          ? "no weight of a linear layer in a block is frozen, so "
                                            "there is nothing to encode: leave it out"
                                          : "base_exclude names every frozen weight of a linear "
                                            "layer: leave base out"});
  }
  return mistakes;
}

std::string ExpertMistake(const Model& base, const LoraOptions& options) {
  // A layer's experts at one place in an expert: some that have an adapter, some that have none.
  struct Place {
    std::string in, out;
  };
  std::map<std::pair<std::string, size_t>, Place> places;
  for (const ModelSegment& segment : base.segments()) {
    for (const Parameter* parameter : segment.parameters) {
      const bool whole = IsAnyOf(parameter->slices()[0].name, options.full);
      if (whole || !parameter->is_of_experts()) continue;
      const std::vector<std::vector<ParameterSlice>> together =
          AdaptedTogether(segment, *parameter);
      for (size_t i = 0; i < together.size(); ++i) {
        Place& place = places[{WholeName(parameter->name()), i}];
        for (const ParameterSlice& slice : together[i]) {
          (IsAnyTarget(slice, options) ? place.in : place.out) = slice.name;
        }
      }
    }
  }
  for (const auto& [key, place] : places) {
    if (place.in.empty()) continue;
    if (!place.out.empty()) {
      return place.in + " would have an adapter and " + place.out +
             " none: a layer's experts are adapted together, or not at all";
    }
    if (options.dropout > 0) {
      return "dropout is not for adapters of experts, such as that of " + place.in +
             ", as in PEFT: set it to 0, or leave experts out of targets";
    }
  }
  return "";
}

LoraModel::LoraModel(std::shared_ptr<Model> base, const LoraOptions& options)
    : base_(std::move(base)), segments_(base_->segments()) {
  if (options.rank < 1) throw std::invalid_argument("[LoraModel] rank, want >= 1");
  std::string example;
  for (const size_t i : UnmatchedTargets(*base_, options.targets, &example)) {
    throw std::invalid_argument("[LoraModel] `" + options.targets[i] + "` matches no weight");
  }
  for (const FullMistake& mistake : FullMistakes(*base_, options.full)) {
    throw std::invalid_argument("[LoraModel] " + mistake.message);
  }
  if (const std::string why = ExpertMistake(*base_, options); !why.empty()) {
    throw std::invalid_argument("[LoraModel] " + why);
  }
  for (ModelSegment& segment : segments_) {
    for (Parameter* parameter : std::vector<Parameter*>(segment.parameters)) {
      if (IsAnyOf(parameter->slices()[0].name, options.full)) continue;
      parameter->Freeze();
      for (const std::vector<ParameterSlice>& slices : AdaptedTogether(segment, *parameter)) {
        if (IsAnyTarget(slices[0], options)) Adapt(*parameter, slices, options, segment);
      }
    }
  }
}

void LoraModel::Loss(Tape& tape, const Batch& batch, float scale, View loss) const {
  tape.DropAdaptersBy(batch.sample_keys);
  base_->Loss(tape, batch, scale, loss);
}

void LoraModel::Adapt(Parameter& weight, const std::vector<ParameterSlice>& slices,
                      const LoraOptions& options, ModelSegment& segment) {
  // The rows of [out, in] are columns of the output; [in, out] has one slice, the whole.
  const bool rows_are_outputs = linear_layout() == WeightLayout::kOutIn;
  const int64_t in = weight.shape()[rows_are_outputs ? 1 : 0];
  const int64_t out = rows_are_outputs ? slices[0].rows : weight.shape()[1];
  const int64_t column = rows_are_outputs ? slices[0].begin / in : 0;
  const Init noise{0, 1 / std::sqrt(3.0f * static_cast<float>(in))};
  const auto add = [&](char part, int64_t rows, int64_t cols, const Init& init) {
    std::vector<ParameterSlice> parts;
    for (const ParameterSlice& slice : slices) {
      parts.push_back({LoraName(slice.name, part), rows, init, /*decay=*/true});
    }
    const Shape shape{rows * std::ssize(slices), cols};
    std::string name = LoraName(slices[0].name, part);
    if (const auto of = RowsOfName(weight.name())) {  // So is the adapter, with one name for all.
      const int64_t each = weight.shape()[0] / weight.experts(), first = of->begin / each * rows;
      name = names_.try_emplace({of->whole, column, part}, name).first->second;
      name = NameOfRows(name, first, first + shape[0], -1);
    }
    adapters_.push_back(std::make_unique<Parameter>(name, shape, std::move(parts)));
    segment.parameters.push_back(adapters_.back().get());
    return adapters_.back().get();
  };
  Parameter* const a = add('A', options.rank, in, noise);
  Parameter* const b = add('B', out, options.rank, {});
  constexpr uint32_t kFirstSite = uint32_t{1} << 28;  // Models count theirs from 0.
  weight.AddAdapter({.a = a,
                     .b = b,
                     .scale = options.alpha / static_cast<double>(options.rank),
                     .column = column,
                     .dropout = options.dropout,
                     .site = kFirstSite + static_cast<uint32_t>(adapters_.size())});
}

}  // namespace fsdp
