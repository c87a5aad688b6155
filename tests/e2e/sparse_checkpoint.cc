// Writes a checkpoint in the shape of Llama 3 70B, of `LAYERS` layers and `WORLD` ranks, whose
// values are zero but for a parameter's first and last:
//   sparse_checkpoint OUT LAYERS WORLD
#include <cstdio>
#include <exception>
#include <string>

#include "models/make_model.h"
#include "models/shape_json.h"
#include "tests/e2e/sparse_values.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/fsdp/model_layout.h"

namespace fsdp {
namespace {

void Write(const std::string& out, int64_t layers, int world) {
  LlamaConfig config = std::get<LlamaConfig>(*FindModelPreset("llama3-70b"));
  config.num_hidden_layers = layers;
  const auto model = MakeModel(config);
  WholeCheckpoint checkpoint;
  checkpoint.meta.config = ShapeToJson(config);
  checkpoint.layout = MakeLayout(ShapesOf(*model), WrapPolicy(), world);
  checkpoint.world = world;
  checkpoint.states = {"master"};
  WriteCheckpoint(
      out, checkpoint,
      [](const std::string&, const Placement& p, int64_t begin, std::span<float> values) {
        std::fill(values.begin(), values.end(), 0.0f);
        const auto count = static_cast<int64_t>(values.size());
        if (begin == 0) values.front() = SparseValue(p.name, false);
        if (begin + count == p.size()) values.back() = SparseValue(p.name, true);
      },
      nullptr);
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  try {
    if (argc != 4) return 2;
    fsdp::Write(argv[1], std::stoll(argv[2]), std::stoi(argv[3]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
