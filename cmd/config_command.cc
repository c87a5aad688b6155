#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cmd/commands.h"
#include "cmd/shared_flags.h"
#include "models/shape.h"
#include "trainer/core/terminal.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/launch/environment.h"
#include "trainer/loop/process.h"
#include "trainer/loop/run_data.h"
#include "trainer/loop/setup.h"
#include "trainer/recipe/data_source.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/print.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

std::string DescribeSource(const SourceRecipe& source, bool is_fed_tokens) {
  const DataSource& row = RowOf(source);
  if (row.gives.empty()) return source.source + (is_fed_tokens ? " tokens" : " samples");
  if (std::string own = row.describe ? row.describe(source) : ""; !own.empty()) return own;
  std::string text;
  for (const std::string& path : source.paths) text += (text.empty() ? "" : ", ") + path;
  if (row.tokenizer != DataSource::Tokenizer::kNeeded) return source.source + " from " + text;
  const std::string what = row.is_whole ? std::string(row.noun) + "s" : source.source;
  return what + " in " + source.tokenizer + " from " + text;
}

void PrintSources(const char* label, const Recipe& recipe, std::span<const SourceRecipe> sources,
                  bool is_fed_tokens) {
  double sum = 0;
  for (const SourceRecipe& source : sources) sum += source.weight;
  const bool mixed = sources.data() == recipe.data.TrainSources().data() && sources.size() > 1;
  for (const SourceRecipe& source : sources) {
    std::string text = DescribeSource(source, is_fed_tokens);
    if (!source.name.empty()) text = source.name + ": " + text;
    std::printf("%-11s %s", label, PrintableName(text).c_str());
    if (mixed) std::printf(", %.3g %%", 100 * source.weight / sum);
    std::printf("\n");
    label = "";
  }
}

// ", 12 layers x 768, 12 heads, vocabulary 50,257" of a language model.
std::string SizeOf(const ModelShape& shape) {
  const std::optional<DecoderShape> decoder = shape.family().Decoder(shape);
  if (!decoder) return "";
  return ", " + Counted(decoder->num_layers, "layer") + " x " +
         std::to_string(decoder->hidden_size) + ", " + Counted(decoder->num_heads, "head") +
         ", vocabulary " + Grouped(decoder->vocab_size);
}

// Prints what a person would check by eye before starting the run of a model of this shape.
void PrintSummary(const Recipe& recipe, const ModelShape& shape) {
  const bool is_fed_tokens = shape.family().Decoder(shape).has_value();
  const ModelRecipe& model = recipe.model;
  const std::string family = model.family.value_or("its family");
  if (model.preset || !model.init_from) {
    std::printf("model       %s%s: %s parameters\n", family.c_str(), SizeOf(shape).c_str(),
                Grouped(NumParameters(shape)).c_str());
  } else {
    std::printf("model       %s, shape and weights from %s\n", family.c_str(),
                PrintableName(*model.init_from).c_str());
  }
  PrintSources("data", recipe, recipe.data.TrainSources(), is_fed_tokens);
  if (const auto* share = std::get_if<HeldOut>(&recipe.data.valid)) {
    std::printf("validation  the last %g %% of it%s\n", 100 * share->fraction,
                recipe.eval.every > 0 ? ""
                                      : ", held out and never evaluated (eval.every: 0); "
                                        "data.valid: null trains on it");
  } else if (!recipe.data.ValidSources().empty()) {
    PrintSources("validation", recipe, recipe.data.ValidSources(), is_fed_tokens);
  } else {
    std::printf("validation  none\n");
  }
  const TrainRecipe& train = recipe.train;
  const int64_t tokens = train.global_batch_size * recipe.data.seq_len;
  char epochs[32] = "";
  std::snprintf(epochs, sizeof(epochs), "%g epochs of steps", train.epochs.value_or(0));
  const std::string each = is_fed_tokens ? Grouped(train.global_batch_size) + " x " +
                                               Grouped(recipe.data.seq_len) + " = " +
                                               Grouped(tokens) + " tokens"
                                         : Counted(train.global_batch_size, "sample");
  std::printf("steps       %s of %s\n", train.epochs ? epochs : Grouped(train.steps).c_str(),
              each.c_str());
  std::printf("optimizer   %s, lr %g, %s after %s\n",
              std::string(Name(recipe.optimizer.name)).c_str(), recipe.optimizer.lr,
              std::string(Name(recipe.schedule.name)).c_str(),
              Counted(recipe.schedule.warmup_steps, "warm-up step").c_str());
  std::printf("sharding    %s, wrapped by %s\n",
              std::string(Name(recipe.fsdp.sharding_strategy)).c_str(),
              std::string(Name(recipe.fsdp.auto_wrap.policy)).c_str());
  std::printf("directory   %s\n", PrintableName(recipe.run.Directory()).c_str());
}

}  // namespace

Command ConfigCommand() {
  struct Flags : RecipeFlags {
    std::optional<int> world;
  };
  Command config{"config", "Check, print and document recipes"};
  const auto add = [&](const char* name, const char* about, auto run, bool of_ranks = false) {
    const auto flags = std::make_shared<Flags>();
    Command command{name, about};
    command.flags = {ConfigFlag(&flags->files), SetFlag(&flags->overrides)};
    if (of_ranks) {
      command.flags.push_back({"--world-size", &flags->world,
                               "Ranks of the job, all on this host. Default: the launcher's, or 1",
                               FlagRules{.range = {1, kMostRanks}}});
    }
    command.run = [flags, run] { run(*flags); };
    config.commands.push_back(command);
  };
  add(
      "check",
      "Check a recipe and the files it names: print what the run would be, or list every mistake",
      [](const auto& flags) {
        ProgressLine line("reading the recipe");
        const Recipe recipe = LoadRecipe(flags, [&](const Recipe& recipe) {
          return flags.world ? PlaceConflicts(recipe, *flags.world, *flags.world, 0)
                             : PlaceConflictsHere(recipe);
        });
        line.Do("checking initial weights");
        CheckInitialWeights(recipe);
        line.Do("checking data");
        std::vector<std::string> notes = recipe.notes;
        OpenProgress progress;
        progress.remark = [&](const std::string& note) { notes.push_back(note); };
        CheckData(recipe, ShapeFor(recipe), progress);
        line.End();
        std::printf("ok\n");
        PrintSummary(recipe, ShapeFor(recipe));
        const RankEnvironment ranks = ReadRankEnvironment();
        const int world = flags.world.value_or(ranks.world_size);
        std::ranges::move(Advice(recipe, world), std::back_inserter(notes));
        notes.push_back(WhyCrowded(recipe, flags.world.value_or(ranks.local_world_size)));
        for (const std::string& note : notes) {
          if (!note.empty()) std::printf("note        %s\n", Printable(note).c_str());
        }
      },
      /*of_ranks=*/true);
  add("print", "Print the recipe as YAML with every value filled in", [](const auto& flags) {
    const Recipe recipe = LoadRecipe(flags);
    // stdout gets the recipe alone: notes go to stderr.
    for (const std::string& line : recipe.notes) {
      std::fprintf(stderr, "note: %s\n", Printable(line).c_str());
    }
    std::fputs(PrintRecipe(recipe).c_str(), stdout);
  });
  // A recipe changes nothing about these two; the flags are taken so that scripts need not care.
  add("schema", "Print a JSON Schema of recipes, for editors",
      [](const auto&) { std::fputs(RecipeJsonSchema().c_str(), stdout); });
  add("docs", "Print the reference of all keys (docs/recipe.md)",
      [](const auto&) { std::fputs(RecipeDocumentation().c_str(), stdout); });
  return config;
}

}  // namespace fsdp
