#include "trainer/weights/hf_import.h"

#include <map>
#include <memory>

#include "models/shape.h"
#include "trainer/checkpoint/finite.h"
#include "trainer/core/errors.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/nn/model.h"
#include "trainer/weights/hf_config.h"
#include "trainer/weights/hf_tensors.h"
#include "trainer/weights/hf_weights.h"

namespace fsdp {

HfImported ImportHf(const std::string& directory, const std::string& out,
                    const ByteProgress& progress, bool allow_nonfinite) {
  const HfConfig config = ReadHfConfig(directory);
  const std::shared_ptr<Model> model = MakeModel(config.shape);
  if (!model->tables().empty()) {
    throw CheckpointError(directory +
                          ": a model with embedding tables is not imported: a run begins from it "
                          "with model.init_from");
  }
  const HfTensors tensors(*model);
  const HfWeights weights(directory);
  weights.RequireAll(tensors);
  WholeCheckpoint checkpoint;
  checkpoint.meta.config = ShapeToJson(config.shape);
  checkpoint.layout = MakeLayout(ShapesOf(*model), WrapPolicy(), /*shards=*/1);
  checkpoint.states = {"master"};
  std::map<std::string, const ModelBuffer*> buffers;
  for (const ModelBuffer* buffer : BuffersOf(*model)) {
    checkpoint.buffers.push_back({buffer->name(), "", buffer->dtype(), buffer->shape()});
    buffers[buffer->name()] = buffer;
  }
  const auto refuse = [&](const std::string& wrong) {
    if (wrong.empty() || allow_nonfinite) return;
    throw CheckpointError(directory + ": " + wrong +
                          ": not finite. --allow-nonfinite takes it as it is, to look at: nothing "
                          "can be trained from it");
  };
  const auto read = [&](const std::string&, const Placement& placement, int64_t begin,
                        std::span<float> values) {
    const Parameter& parameter = *tensors.Find(placement.name);
    weights.FillParameter(parameter, begin, values);
    refuse(DescribeNotFinite(parameter, begin, values));
  };
  const auto read_buffer = [&](const OwnTensor& tensor, int64_t begin, const View& values) {
    weights.FillBuffer(*buffers.at(tensor.name), begin, values);
    refuse(DescribeNotFinite(tensor.name, begin, values));
  };
  return {WriteCheckpoint(out, checkpoint, read, progress, read_buffer), config.ignored};
}

}  // namespace fsdp
