// Models whose segments, drawn from a seed, read one to four earlier values each: units of very
// different size, a table that several of them multiply with, running means in some.
#ifndef FSDP_TRAIN_TESTS_TESTING_RANDOM_GRAPH_H_
#define FSDP_TRAIN_TESTS_TESTING_RANDOM_GRAPH_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/toy_graph.h"
#include "trainer/core/philox.h"

namespace fsdp::testing {

//   v0 = image W0                                      (stem)
//   vi = gelu(s U) D + s, s = the sum of its inputs    (h.1, h.2, ...: two to seven)
//        where it reads the table T: s = (the sum of its inputs) T
//   loss = cross-entropy of s C^T, s = the sum of all that nobody else has read (head)
class RandomGraph final : public Model {
 public:
  explicit RandomGraph(uint64_t seed) : random_(seed, "graph") {
    const auto blocks = static_cast<int>(2 + Draw(6));
    nodes_.emplace_back().inner = 0;
    segments_.push_back({.name = "stem",
                         .parameters = {New("stem.weight", Shape{15, kWidth})},
                         .own_unit = Draw(2) == 0});
    for (int i = 1; i <= blocks; ++i) AddBlock(i);
    AddHead();
    for (int value = 0; value <= blocks; ++value) {
      for (int node = value + 1; node < static_cast<int>(nodes_.size()); ++node) {
        const std::vector<int>& inputs = nodes_[node].inputs;
        if (std::find(inputs.begin(), inputs.end(), value) == inputs.end()) continue;
        ++nodes_[value].readers;
        nodes_[value].last_reader = node;
      }
    }
  }

  const std::vector<ModelSegment>& segments() const override { return segments_; }
  BatchSpec Inputs(int64_t) const override { return ToyGraph::Spec(); }
  WeightLayout linear_layout() const override { return kLayout; }

  void Loss(Tape& tape, const Batch& batch, float scale, View loss) const override {
    const View image = batch.inputs[0], label = batch.inputs[1], weight = batch.inputs[2];
    std::vector<Var> values;
    for (int index = 0; index < static_cast<int>(nodes_.size()); ++index) {
      const Node& node = nodes_[index];  // Outlives Loss(), as bodies do.
      std::vector<Var> inputs;
      for (const int input : node.inputs) inputs.push_back(values[input]);
      const bool head = index + 1 == static_cast<int>(nodes_.size());
      const auto body = [this, &node, head, image, label, weight, scale, loss](
                            Tape& t, std::span<const Var> in) {
        if (in.empty()) return Linear(t, FromBatch(t, image), Of(0, 0), kLayout, nullptr);
        Var sum = in[0];
        for (size_t i = 1; i < in.size(); ++i) sum = Residual(t, sum, in[i]);
        if (head) {
          HeadLoss(t, sum, Of(node.segment, 0), label, weight, scale, loss);
          return Var{};
        }
        if (node.mean) sum = Centred(t, sum, weight, *node.mean);
        if (node.table) sum = Linear(t, sum, *table_, kLayout, nullptr);
        const Var inner = LinearGelu(t, sum, *node.up, kLayout, nullptr);
        return LinearResidual(t, inner, *node.down, kLayout, nullptr, sum);
      };
      const bool recomputable = index > 0 && !head;
      Var value = tape.Segment(index, inputs, recomputable, body);
      values.push_back(node.readers > 1 ? value.ReadUntil(node.last_reader) : value);
    }
  }

 private:
  static constexpr WeightLayout kLayout = WeightLayout::kInOut;
  static constexpr int64_t kWidth = ToyGraph::kWidth;

  struct Node {
    int segment = 0;
    std::vector<int> inputs;  // Earlier nodes.
    int64_t inner = 0;
    bool table = false;
    ModelBuffer* mean = nullptr;
    Parameter *up = nullptr, *down = nullptr;
    int readers = 0, last_reader = -1;
  };

  int64_t Draw(int64_t below) { return random_.Below(drawn_++, below); }
  Parameter* New(const std::string& name, const Shape& shape) {
    parameters_.push_back(std::make_unique<Parameter>(name, shape, Init{0, 0.3f}, /*decay=*/true));
    return parameters_.back().get();
  }
  Parameter& Of(int segment, size_t i) const { return *segments_[segment].parameters[i]; }

  void AddBlock(int index) {
    Node& node = nodes_.emplace_back();
    node.segment = index;
    std::vector<int> earlier;
    for (int i = 0; i < index; ++i) earlier.push_back(i);
    const auto wanted = static_cast<size_t>(1 + Draw(4));
    while (node.inputs.size() < wanted && !earlier.empty()) {
      const int64_t at = Draw(static_cast<int64_t>(earlier.size()));
      node.inputs.push_back(earlier[at]);
      earlier.erase(earlier.begin() + at);
    }
    constexpr int64_t kInner[] = {4, 12, 60, 252};
    node.inner = kInner[Draw(4)];
    const std::string name = "h." + std::to_string(index);
    node.up = New(name + ".up", Shape{kWidth, node.inner});
    node.down = New(name + ".down", Shape{node.inner, kWidth});
    ModelSegment& segment = segments_.emplace_back();
    segment.name = name;
    segment.is_block = true;
    segment.parameters = {node.up, node.down};
    node.table = Draw(2) == 0;
    if (node.table && !table_) {
      table_ = New(name + ".table", Shape{kWidth, kWidth});
      segment.parameters.push_back(table_);
    } else if (node.table) {
      segment.reads = {table_};
    }
    if (Draw(2) == 0) {
      buffers_.push_back(
          std::make_unique<ModelBuffer>(name + ".running_mean", Shape{kWidth}, DType::kFloat32, 0));
      node.mean = buffers_.back().get();
      segment.buffers = {node.mean};
    }
  }

  void AddHead() {
    Node head;
    head.segment = static_cast<int>(segments_.size());
    for (int value = 0; value < static_cast<int>(nodes_.size()); ++value) {
      const bool read = std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
        return std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end();
      });
      if (!read) head.inputs.push_back(value);
    }
    nodes_.push_back(head);
    segments_.push_back(
        {.name = "head", .parameters = {New("classes", Shape{ToyGraph::kClasses, kWidth})}});
  }

  const RandomStream random_;
  int64_t drawn_ = 0;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<std::unique_ptr<ModelBuffer>> buffers_;
  Parameter* table_ = nullptr;
  std::vector<Node> nodes_;
  std::vector<ModelSegment> segments_;
};

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_RANDOM_GRAPH_H_
