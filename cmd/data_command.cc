// `data`: what a run will read.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "cmd/commands.h"
#include "cmd/shared_flags.h"
#include "trainer/core/terminal.h"
#include "trainer/core/utf8.h"
#include "trainer/loop/show_data.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

Command DataCommand() {
  struct Flags {
    RecipeFlags recipe;
    ShowDataOptions options;
  };
  const auto flags = std::make_shared<Flags>();
  Command command{"data", "Show what a run will read: samples, their targets, counts"};
  command.flags = {
      ConfigFlag(&flags->recipe.files),
      SetFlag(&flags->recipe.overrides),
      {"--samples", &flags->options.samples, "Show the first so many samples of the training",
       FlagRules{.range = {0, int64_t{1} << 31}, .shows_default = true}},
      {"--json", &flags->options.json, "One JSON object"},
  };
  command.run = [flags] {
    const char* const no_color = std::getenv("NO_COLOR");
    const bool plain = no_color != nullptr && *no_color != '\0';
    flags->options.colours = !flags->options.json && !plain && IsTerminal(STDOUT_FILENO);
    OpenProgress progress;
    progress.say = [](const std::string& line) {
      std::fprintf(stderr, "%s\n", Printable(line).c_str());
    };
    progress.remark = progress.say;
    ShowData(LoadRecipe(flags->recipe), flags->options, progress, std::cout);
  };
  return command;
}

}  // namespace fsdp
