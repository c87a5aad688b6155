// Renderings with the first items of a list are those of the list cut off there, whatever the
// template looks at, and most templates need not run a loop's body again for each of them.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/data/chat/jinja/template.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

std::string Said(const auto& act) {
  try {
    return act();
  } catch (const DataError& error) {
    return std::string("error: ") + error.what();
  }
}

Json Variables() {
  Json all = {{"messages", Json::array()},
              {"add_generation_prompt", false},
              {"bos_token", "<s>"},
              {"eos_token", "</s>"},
              {"tools", Json::array({{{"name", "f"}}})},
              {"documents", nullptr}};
  const char* const roles[] = {"system", "user", "assistant", "tool", "tool", "assistant", "user"};
  for (int i = 0; i < 9; ++i) {
    const std::string role = i < 7 ? roles[i] : i == 7 ? "assistant" : "user";
    all["messages"].push_back({{"role", role}, {"content", role + std::to_string(i)}});
  }
  return all;
}

// Whether the renderings go on from each other.
bool Compare(const std::string& source, Json variables) {
  const JinjaTemplate of("t", source);
  const JinjaOptions options{.date = JinjaDate{2026, 11, 28}};
  JinjaPrefixes prefixes(of, variables, "messages", "add_generation_prompt", options);
  const Json all = variables["messages"];
  for (size_t count = 0; count <= all.size(); ++count) {
    variables["messages"] = Json(Json::array());
    for (size_t i = 0; i < count; ++i) variables["messages"].push_back(all[i]);
    for (const bool flag : {true, false}) {
      variables["add_generation_prompt"] = flag;
      EXPECT_EQ(Said([&] { return prefixes.Render(count, flag); }),
                Said([&] { return of.Render(variables, options).text; }))
          << source << ", " << count << ", " << flag;
    }
  }
  return prefixes.remembers();
}

bool Compare(const std::string& source) {
  Json variables = Variables();
  const bool remembers = Compare(source, variables);
  variables["messages"].erase(0);  // No system message: many templates begin in another way.
  return Compare(source, variables) && remembers;
}

constexpr char kPrompt[] = "{% if add_generation_prompt %}<a>{% endif %}";

TEST(JinjaPrefixes, OfTemplatesThatLookAtNothingAheadGoOn) {
  for (const std::string source :
       {"{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
        "{% if messages[0].role == 'system' %}{% set s = messages[0].content %}"
        "{% set messages = messages[1:] %}{% endif %}{{ s }}"
        "{% for m in messages %}{{ loop.index0 }}{{ loop.first }}{{ m.content }}"
        "{% if loop.last and add_generation_prompt %}<last>{% endif %}{% endfor %}{{ s }}",
        "{% set ns = namespace(n=0, who='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
        "{% if m.role == 'tool' %}{% continue %}{% endif %}{% set ns.who = m.role %}"
        "{{ loop.previtem.role if not loop.first }}|{{ loop.nextitem.role if not loop.last }}{% "
        "endfor %}{{ ns.n }}{{ ns.who }}",
        "{% for m in messages %}{% if m.role == 'tool' %}"
        "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}[{% endif %}"
        "{{ m.content }}{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}]"
        "{% endif %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
        "{% macro say(m) %}<{{ m.role }}>{{ m.content }}{% endmacro %}"
        "{% if messages %}{% for m in messages %}{{ say(m) }}{% for t in tools %}{{ t.name }}"
        "{% endfor %}{% endfor %}{% endif %}",
        "{% for t in tools %}{% for m in messages %}{{ loop.index }}{{ t.name }}{% endfor %}"
        "{% endfor %}{% for m in messages[::-1] %}{{ m.role }}{% endfor %}"}) {
    EXPECT_TRUE(Compare(source + kPrompt)) << source;
  }
}

TEST(JinjaPrefixes, OfOtherTemplatesAreRenderedWhole) {
  for (const std::string source :
       {"{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{{ messages | length }}{% endfor %}",
        "{% for m in messages %}{{ loop.revindex }}{{ loop.length }}{% endfor %}",
        "{% for m in messages %}{% if messages[-1].role == m.role %}!{% endif %}{% endfor %}",
        "{% for m in messages %}{{ messages[loop.index0 + 2].role }},{% endfor %}",
        "{% for m in messages if m.role != 'tool' %}{{ m.content }}{{ loop.last }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{{ add_generation_prompt }}{% endfor %}",
        "{% for m in messages %}{% if m.role == 'tool' %}{% break %}{% endif %}x{% endfor %}",
        "{% for m in messages %}{% for n in messages %}{{ n.role }}{% endfor %};{% endfor %}",
        "{% set ns = namespace(all=messages) %}{% for m in messages %}x{% endfor %}"
        "{{ ns.all | length }}",
        "{% set ns = namespace(inner=namespace(n=0)) %}{% for m in messages %}"
        "{% set ns.inner = namespace(n=ns.inner.n + 1) %}{% endfor %}{{ ns.inner.n }}",
        "{% set g = tools | map(attribute='name') %}{% for m in messages %}"
        "{% if loop.index == 2 %}{{ g | join }}{% endif %}{% endfor %}{{ g | join }}",
        "{% for m in messages %}{{ m.content }}{% else %}none{% endfor %}",
        "{% set text %}{% for m in messages %}{{ m.content }}{% endfor %}{% endset %}{{ text }}",
        "{% for m in messages[2:] %}{{ m.content }}{% endfor %}",
        "{% for m in messages[:2] %}{{ m.content }}{% endfor %}",
        "{% for m in messages[::-1] %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% if loop.index == 4 %}{{ raise_exception('no') }}{% endif %}"
        "{{ m.content }}{% endfor %}",
        "{{ messages | tojson }}",
        "{{ bos_token }}",
        "{{ messages == messages }}"}) {
    EXPECT_FALSE(Compare(source + kPrompt)) << source;
  }
}

TEST(JinjaPrefixes, OfPublishedTemplatesAreTheSame) {
  Json variables = Variables(), turns = Json::array();
  for (const size_t i : {1, 2, 6, 7, 8}) turns.push_back(variables["messages"][i]);
  variables["messages"] = turns;
  for (const auto& [name, remembers] : {std::pair("chatml", true),
                                        {"simple", true},
                                        {"llama3", true},
                                        {"gemma", true},
                                        {"whitespace", true},
                                        {"macros", false},
                                        {"harmony", false},
                                        {"documents", false}}) {
    std::ifstream file("tests/fixtures/chat_templates/" + std::string(name) + ".jinja");
    ASSERT_TRUE(file.is_open()) << name;
    std::ostringstream text;
    text << file.rdbuf();
    Compare(text.str());
    EXPECT_EQ(Compare(text.str(), variables), remembers) << name;
  }
}

// As long as a conversation may be; the body would run 20 million times, a rendering each.
TEST(JinjaPrefixes, OfALongConversationTakeOneLoop) {
  const JinjaTemplate of("t", "{% for m in messages %}{{ m.role }}{{ m.content }}\n{% endfor %}" +
                                  std::string(kPrompt));
  Json variables = {{"messages", Json::array()}, {"add_generation_prompt", true}};
  for (int i = 0; i < 2000; ++i) {
    variables["messages"].push_back({{"role", "user"}, {"content", std::to_string(i)}});
  }
  JinjaPrefixes prefixes(of, variables, "messages", "add_generation_prompt");
  EXPECT_TRUE(prefixes.remembers());
  const std::string whole = of.Render(variables).text;
  for (size_t count = 1; count <= 2000; ++count) {
    const std::string text = prefixes.Render(count, false);
    ASSERT_TRUE(whole.starts_with(text) &&
                text.ends_with("user" + std::to_string(count - 1) + "\n"));
  }
}

}  // namespace
}  // namespace fsdp
