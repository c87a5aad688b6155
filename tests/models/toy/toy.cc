// The model of toy_graph.h as a family.
#include <memory>

#include "models/table_family.h"
#include "tests/testing/toy_graph.h"

namespace fsdp::toy {
namespace {

struct Config {
  int64_t inner_size = testing::ToyGraph::kInner;
  bool operator==(const Config&) const = default;
};

}  // namespace

const ModelFamily& Family() {
  static const TableFamily<Config> family(
      {.name = "toy",
       .rows = {Row("inner_size", &Config::inner_size, IntegerRange{1, kMaxHiddenSize},
                    "Width inside the large block", "252", {}, "inner_size")},
       .make =
           [](const Config& config) {
             return std::make_unique<testing::ToyGraph>(config.inner_size);
           },
       .hf = {{"toy_graph", "ToyGraph", Config()}}});
  return family;
}

}  // namespace fsdp::toy
