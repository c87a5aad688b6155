// The optimizer's treatment of the elements of a flat shard: a table in device memory, fixed by the
// layout and written once.
#ifndef FSDP_TRAIN_TRAINER_OPS_ELEMENT_RULES_H_
#define FSDP_TRAIN_TRAINER_OPS_ELEMENT_RULES_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "trainer/ops/arguments.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// For elements [begin, end). Elements without a rule have the default values: no decay.
struct ElementRule {
  int64_t begin = 0, end = 0;
  double weight_decay = 0;  // >= 0.
  double lr_scale = 1;      // >= 0; multiplies the learning rate.
  // The key of an element's random numbers, the same in whichever shard the element lies: a hash of
  // its tensor's name (a slice's name, as in the Hugging Face file), and the index of `begin` in
  // that tensor.
  uint64_t tensor = 0;
  int64_t element = 0;  // >= 0.
};

// ElementRule::tensor for that name: the same in every run and build.
uint64_t TensorKey(std::string_view name);

// The table of these rules for a shard of n elements: uint8 [bytes of the rules]. Throws
// std::invalid_argument unless they are ascending, apart (touching is fine), inside [0, n) and in
// range.
void WriteRules(Stream& stream, const std::vector<ElementRule>& rules, int64_t n, View table);
Shape RuleTableShape(size_t rules);

// Ops check a table by CheckRuleTable(); their kernels read RulesIn().
void CheckRuleTable(const Arguments& args, const ConstView& table);
inline std::span<const ElementRule> RulesIn(const ConstView& table) {
  return {table.As<ElementRule>(), table.bytes() / sizeof(ElementRule)};
}

// Calls body(begin, end, rule) for the runs of [begin, end) that share a rule (an index into
// `rules`, or -1 for none), in order; no run is empty.
template <typename Body>
void ForEachRun(std::span<const ElementRule> rules, int64_t begin, int64_t end, const Body& body) {
  for (int i = 0; i < static_cast<int>(rules.size()); ++i) {
    const ElementRule& rule = rules[i];
    if (rule.end <= begin || rule.begin == rule.end) continue;
    if (rule.begin >= end) break;
    if (begin < rule.begin) body(begin, rule.begin, -1);
    begin = begin < rule.begin ? rule.begin : begin;
    const int64_t stop = rule.end < end ? rule.end : end;
    body(begin, stop, i);
    begin = stop;
  }
  if (begin < end) body(begin, end, -1);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ELEMENT_RULES_H_
