#include "models/make_model.h"

namespace fsdp {

std::unique_ptr<Model> MakeModel(const ModelShape& shape) { return shape.family().Make(shape); }

}  // namespace fsdp
