#include "trainer/weights/hf_tensors.h"

#include "trainer/nn/model.h"

namespace fsdp {

HfTensors::HfTensors(const Model& model) {
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* parameter : segment.parameters) {
      parameters_[parameter->name()] = parameter;
      if (parameter->is_adapter()) continue;
      for (const ParameterSlice& slice : parameter->slices()) {
        tensors_.push_back({parameter, &slice});
      }
    }
    for (const ModelBuffer* buffer : segment.buffers) {
      tensors_.push_back({.buffer = buffer});
    }
  }
  for (const EmbeddingTable& table : model.tables()) {
    tensors_.push_back({.table = std::make_shared<Table>(
                            Table{tables_++, table.name, Shape{table.rows, table.width}})});
  }
}

const Parameter* HfTensors::Find(const std::string& parameter) const {
  const auto it = parameters_.find(parameter);
  return it == parameters_.end() ? nullptr : it->second;
}

}  // namespace fsdp
