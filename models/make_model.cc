#include "models/make_model.h"

namespace fsdp {

std::shared_ptr<Model> MakeModel(const ModelShape& shape) { return shape.family().Make(shape); }

}  // namespace fsdp
