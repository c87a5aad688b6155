// Computes this program's logits, for a comparison with transformers:
//   logits DIRECTORY TOKEN...
// writes the logits of every position of the sequence to stdout, float32 [tokens, vocabulary]. An
// encoder-decoder model gets the sequence as its encoder's input; its decoder's input is 0, then
// the sequence without its last token. DIRECTORY: a checkpoint or a Hugging Face directory.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/shape.h"
#include "trainer/comm/mesh.h"
#include "trainer/comm/mesh_communicators.h"
#include "trainer/data/check_row.h"
#include "trainer/data/derived_inputs.h"
#include "trainer/data/tokens/token_batch.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/engine/session.h"
#include "trainer/fsdp/executor.h"
#include "trainer/nn/model.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/weights/initial_weights.h"

namespace fsdp {
namespace {

void LoadPair(const BatchSpec& spec, const std::vector<int32_t>& tokens, const Batch& batch) {
  const auto input = [&](const char* name) { return batch.inputs[spec.IndexOf(name)]; };
  std::copy(tokens.begin(), tokens.end(), input("tokens").As<int32_t>());
  *input("lengths").As<int32_t>() = static_cast<int32_t>(tokens.size());
  int32_t* const decoder = input("decoder_tokens").As<int32_t>();
  decoder[0] = 0;
  std::copy(tokens.begin(), tokens.end() - 1, decoder + 1);
  std::copy(tokens.begin(), tokens.end(), input("targets").As<int32_t>());
  std::fill_n(input("weights").As<float>(), tokens.size(), 0.0f);
  DeriveInputs(spec, batch);
}

void Run(const std::string& directory, const std::vector<int32_t>& tokens) {
  const std::shared_ptr<Model> model = MakeModel(ReadInitialShape(directory));
  SessionOptions options;
  options.executor.sample_length = static_cast<int64_t>(tokens.size());
  options.generate = true;
  CpuDevice device;
  PlannedAllocator allocator(device, PlanMemory(*model, options, /*world=*/1));
  const MeshCommunicators alone(Mesh(0, 1, 1), /*queues=*/1, nullptr);
  Session session(device, allocator, *model, options, alone);
  const WeightSource read = OpenInitialWeights(directory);
  session.executor().Initialize(read.parameters, read.buffers);
  const BatchSpec spec = model->Inputs(options.executor.sample_length);
  const bool encodes = std::ranges::any_of(
      spec.inputs, [](const BatchInput& input) { return input.name == "decoder_tokens"; });
  const auto load = [&](int, const Batch& whole) {
    CheckRow({.tokens = tokens}, {static_cast<int32_t>(model->autoregressive()->outputs())},
             [](int64_t token) { return TokenPlace{"argument " + std::to_string(token + 2)}; });
    std::fill_n(whole.sample_keys.As<int32_t>(), whole.sample_keys.NumElements(), 0);
    if (encodes) return LoadPair(spec, tokens, whole);
    const TokenBatch batch(whole);
    for (size_t i = 0; i < tokens.size(); ++i) {
      batch.tokens.As<int32_t>()[i] = tokens[i];
      batch.targets.As<int32_t>()[i] = 0;
      batch.weights.As<float>()[i] = 0;
      batch.positions.As<int32_t>()[i] = static_cast<int32_t>(i);
    }
    SetLength(batch, 0, std::ssize(tokens));
  };
  for (int64_t column = 0; column < options.executor.sample_length; ++column) {
    const std::span<const float> row = session.Logits(column, load);
    std::fwrite(row.data(), sizeof(float), row.size(), stdout);
  }
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  try {
    std::vector<int32_t> tokens;
    for (int i = 2; i < argc; ++i) tokens.push_back(std::stoi(argv[i]));
    if (tokens.empty()) throw std::invalid_argument("usage: logits DIRECTORY TOKEN...");
    fsdp::Run(argv[1], tokens);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "logits: %s\n", error.what());
    return 1;
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}
