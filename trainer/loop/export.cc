#include "trainer/loop/export.h"

#include <memory>

#include "models/shape_json.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/loop/initial_weights.h"

namespace fsdp {

HfExported ExportCheckpoint(const std::string& checkpoint, const std::string& out,
                            const HfExportOptions& options, const ByteProgress& progress) {
  CheckpointReader reader(checkpoint);
  const ModelShape shape = ShapeFromJson(reader.manifest().meta.config);
  const std::unique_ptr<Model> model = ModelOfCheckpoint(reader);
  return ExportHf(reader, shape, *model, out, options, progress);
}

}  // namespace fsdp
