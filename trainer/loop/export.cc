#include "trainer/loop/export.h"

#include <memory>

#include "models/make_model.h"
#include "models/shape_json.h"
#include "trainer/loop/setup.h"
#include "trainer/recipe/load.h"

namespace fsdp {
namespace {

std::unique_ptr<Model> ModelOf(const CheckpointReader& reader, const ModelShape& shape) {
  const std::string& recipe = reader.manifest().meta.recipe;
  if (recipe.empty()) return MakeModel(shape);  // It was imported.
  return BuildModel(ParseRecipe({{reader.directory() + "/manifest.json, recipe", recipe}}), shape);
}

}  // namespace

HfExported ExportCheckpoint(const std::string& checkpoint, const std::string& out,
                            const HfExportOptions& options, const ByteProgress& progress) {
  CheckpointReader reader(checkpoint);
  const ModelShape shape = ShapeFromJson(reader.manifest().meta.config);
  const std::unique_ptr<Model> model = ModelOf(reader, shape);
  return ExportHf(reader, shape, *model, out, options, progress);
}

}  // namespace fsdp
