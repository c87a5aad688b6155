// `help`: the pages of docs/, which are part of the program.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cmd/commands.h"
#include "cmd/pages.h"
#include "trainer/core/errors.h"
#include "trainer/core/nearest.h"

namespace fsdp {
namespace {

// "benchmarks/cpu" for docs/benchmarks/cpu.md.
std::string TopicOf(std::string word) {
  std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::tolower(c); });
  if (word.starts_with("docs/")) word.erase(0, std::strlen("docs/"));
  if (word.ends_with(".md")) word.resize(word.size() - std::strlen(".md"));
  return word;
}

const Page* FindPage(const std::string& word) {
  for (const std::string& topic : {TopicOf(word), "benchmarks/" + TopicOf(word)}) {
    const Page* const page =
        std::ranges::find(kPages, topic, [](const Page& p) { return TopicOf(p.path); });
    if (page != std::end(kPages)) return page;
  }
  return nullptr;
}

// A link's text, and where it leads from a page: "docs/hosts.md" for
// [hosts.md](hosts.md#who-may-join).
std::string PlainLink(std::string_view text, std::string_view target, const Page& page) {
  if (target.starts_with('#')) return std::string(text);
  std::string place(target);
  if (!target.starts_with("https:")) {
    const auto folder = std::filesystem::path(page.path).parent_path();
    place = (folder / target.substr(0, target.find('#'))).lexically_normal().string();
  }
  return place.ends_with(text) ? place : std::string(text) + " (" + place + ")";
}

// The page as it is, but for links: a reader of plain text sees both halves of them.
std::string WithPlainLinks(const Page& page) {
  const std::string_view text = page.text;
  const auto past = [&](std::string_view mark, size_t from) {
    return std::min(text.find(mark, from), text.size() - mark.size()) + mark.size();
  };
  std::string plain;
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with("![")) ++at;
    const size_t middle = text[at] == '[' ? text.find_first_of("[]", at + 1) : text.npos;
    size_t end = at + 1;
    if (middle != text.npos && text.substr(middle).starts_with("](")) {
      end = past(")", middle);
      plain += PlainLink(text.substr(at + 1, middle - at - 1),
                         text.substr(middle + 2, end - middle - 3), page);
    } else {
      if (rest.starts_with("```")) {
        end = past("```", at + 3);
      } else if (rest.starts_with("`")) {
        end = past("`", at + 1);
      }
      plain += text.substr(at, end - at);
    }
    at = end;
  }
  return plain;
}

void ListPages() {
  std::printf(
      "fsdp-train help TOPIC prints one of these pages, by its topic or its file's name:\n\n");
  for (const Page& page : kPages) {
    const std::string_view text = page.text;  // Begins with "# " and the title.
    const std::string title(text.substr(2, text.find('\n') - 2));
    std::printf("  %-22s %s\n", TopicOf(page.path).c_str(), title.c_str());
  }
}

}  // namespace

Command HelpCommand(const Command& program) {
  const auto topic = std::make_shared<std::string>();
  Command command{"help", "Print a page of the documentation, or list all pages"};
  command.flags = {{"topic", topic.get(), "A page, such as guide or recipe, or a command",
                    FlagRules{.value = "TOPIC"}}};
  command.run = [topic, &program] {
    if (topic->empty()) return ListPages();
    std::vector<std::string> known;
    for (const Page& page : kPages) known.push_back(TopicOf(page.path));
    for (const Command& other : program.commands) known.push_back(other.name);
    if (const Page* const page = FindPage(*topic)) {
      std::fputs(WithPlainLinks(*page).c_str(), stdout);
    } else if (std::ranges::count(known, *topic) > 0) {
      std::fputs(ReadCommandLine(program, {*topic, "--help"}).text.c_str(), stdout);
    } else {
      const std::string near = Nearest(*topic, known);
      throw ConfigError("help: there is no page `" + *topic + "`" +
                        (near.empty() ? "" : ": did you mean `" + near + "`?") +
                        " `fsdp-train help` lists them");
    }
  };
  return command;
}

}  // namespace fsdp
