#include "cmd/eval_command.h"

#include "cmd/recipe_flags.h"

namespace fsdp {

void AddEvaluationFlags(CLI::App& app, EvaluationFlags& flags) {
  app.add_option("--checkpoint", flags.checkpoint,
                 "A checkpoint, a run directory (its latest one) or a Hugging Face directory")
      ->type_name("DIR")
      ->required();
  AddRecipeFlags(app, flags.config, flags.overrides);
  app.add_flag("--full", flags.full, "Evaluate all of each set instead of eval.steps batches");
  app.add_flag("--json", flags.json, "One JSON object");
  app.footer(
      "Without --config it evaluates by the recipe that the checkpoint was trained by; --set "
      "changes it.\n"
      "On several ranks: fsdp-train launch --nproc-per-node 2 -- eval --checkpoint DIR");
}

}  // namespace fsdp
