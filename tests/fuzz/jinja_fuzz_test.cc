#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/fuzz/mutator.h"
#include "trainer/core/errors.h"
#include "trainer/data/chat/chat_template.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;
using Strings = std::vector<std::string>;

const Strings kTemplates = {
    "{%- macro m(a, b=2) -%}<{{ a }}:{{ b | upper }}>{%- endmacro -%}\n"
    "{% set ns = namespace(n=0, s='') %}{% for x in messages if x.role != 'q' %}\n"
    "  {%- if loop.first and not loop.last -%}{{ m(x.content | trim, b=loop.index ~ x['role']) }}\n"
    "  {% elif x.role is string %}{% set ns.n = ns.n + loop.revindex0 * 2 % 5 %}{{ "
    "loop.previtem }}\n"
    "  {% else %}{% continue %}{% endif %}{{ m(*['a', 15]) }}{% endfor %}{{ ns.n }}{{ [m] | length "
    "}}",
    "{{ bos_token }}{% for m in messages[::-1] %}{% generation %}{{ m.content[1:-1] }}{% "
    "endgeneration %}"
    "{% else %}none{% endfor %}{{ messages | selectattr('role', 'in', ['user']) | "
    "map(attribute='content')"
    " | join(', ') }}{% if add_generation_prompt %}{{ messages[-1].get('x', "
    "{}).items() | list "
    "}}{% endif %}{% filter indent(2, true) | replace('a', 'b') %}x\ny{% endfilter %}",
    "{% set body %}{# c #}{{ '{{' }}{{ messages | tojson(indent=1, ensure_ascii=true) }}"
    "{% endset %}{{ body.split('\\n', 3) }}{{ '{}-{}'.format('a', 2) if false else "
    "'<b>' | safe + body.strip() }}"
    "{{ [1, (2, 3), {'a': none, 4: 1}] == [1, (2,)] or 'a' < 'b' and 1 in range(5) }}{{ -7 % 2 * 2 "
    "}}",
    "{% for k, v in messages[0].items() %}{{ k | title ~ v | length }}{% set n = loop.length %}{{ "
    "n - 1 }}"
    "{% if loop.index > 1 %}{% break %}{% endif %}{% endfor %}{{ messages | "
    "map('string') | unique | list }}{{ messages | sort(attribute='content', reverse=true) | first "
    "| "
    "dictsort }}"
    "{{ 'a b'.replace('b', '-') | lower ~ ['b', 'a'] | min ~ '12' | int ~ strftime_now('%d') }}",
};
const Strings kConversations = {
    R"({"messages":[{"role":"user","content":"h\u00e9 <x>\n"},{"role":"assistant","content":"yes","weight":1}]})",
    R"({"messages":[{"role":"system","content":""},{"role":"user","content":["a",{"b":1.5}]},)"
    R"({"role":"assistant","content":null,"reasoning":"r","weight":0}],"tools":[{"name":"f"}]})",
};
const Strings kWords = {"{%",
                        "%}",
                        "{{",
                        "}}",
                        "{#",
                        "#}",
                        "-%}",
                        "{%-",
                        "+%}",
                        "(",
                        ")",
                        "[",
                        "]",
                        "{",
                        "}",
                        "|",
                        "|list",
                        "|string",
                        "|tojson",
                        "|map(",
                        "|sort",
                        "|first",
                        "|safe",
                        "|min",
                        "|int",
                        "|unique",
                        "|join",
                        " is ",
                        " not ",
                        " in ",
                        " if ",
                        " else ",
                        " and ",
                        "loop.",
                        "ns.s",
                        "loop",
                        "m(",
                        "messages",
                        "range(9)",
                        "namespace(",
                        "[::-1]",
                        "[1:]",
                        ".items()",
                        ".get(",
                        "~",
                        "|items",
                        "loop.last",
                        "%",
                        "==",
                        "'",
                        "\"",
                        "\\u00e9",
                        "\\n",
                        "none",
                        "9999999999",
                        "none|int",
                        "'a'*99",
                        "{% set x = [x, x] %}",
                        "{% endfor %}",
                        "{% endif %}",
                        "{% for x in x %}",
                        "{% filter trim %}",
                        "{% endfilter %}",
                        "ns.s ~ ns.s",
                        "m(m)",
                        "*",
                        "*[1]",
                        ".format(",
                        "\xc3\xa9"};

// Whatever the template and the conversation: a text with ranges inside of it, or DataError.
bool Accepted(const std::string& source, const std::string& conversation) {
  try {
    const JinjaTemplate parsed("fuzz", source);
    Json line = Json::parse(conversation);
    const JinjaText rendered =
        parsed.Render({{"messages", line.is_object() ? line["messages"] : line},
                       {"bos_token", "<s>"},
                       {"add_generation_prompt", true}},
                      {.date = JinjaDate{2024, 7, 1}, .steps = 20'000, .text_bytes = 100'000});
    size_t at = 0;
    for (const auto& [begin, end] : rendered.generation) {
      if (begin < at || end < begin || end > rendered.text.size())
        throw std::logic_error("a range");
      at = end;
    }
    return true;
  } catch (const DataError&) {
    return false;
  }
}

bool AcceptedChat(const std::string& source, const std::string& conversation) {
  try {
    const ChatTemplate chat("fuzz", source, {{"bos_token", "<s>"}});
    const ChatText text = chat.Render(Json::parse(conversation), {});
    size_t at = 0;
    for (const auto& [begin, end] : text.targets) {
      if (begin < at || end <= begin || end > text.text.size()) throw std::logic_error("a target");
      at = end;
    }
    return true;
  } catch (const DataError&) {
    return false;
  }
}

// Both outcomes must be common enough to mean something.
template <typename Next>
void Fuzz(int inputs, Next next) {
  int accepted = 0;
  for (int i = 0; i < inputs; ++i) accepted += next() ? 1 : 0;
  std::printf("%d of %d inputs accepted\n", accepted, inputs);
  EXPECT_GE(accepted, 0.01 * inputs);
  EXPECT_LE(accepted, 0.9 * inputs);
}

TEST(JinjaFuzz, ATemplate) {
  Mutator mutator(21, kTemplates, kWords, 2000);
  size_t n = 0;
  Fuzz(FuzzInputs(20'000), [&] {
    const std::string source = mutator.Next();
    try {
      return Accepted(source, kConversations[n++ % 2]);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << "\n" << ::testing::PrintToString(source);
      return false;
    }
  });
}

TEST(JinjaFuzz, AConversation) {
  Mutator mutator(22, kConversations,
                  {"\"role\":", "\"content\":", "\"weight\":1", "null", "[]", "{}", "1.5",
                   "\"assistant\"", "-1", "\\ud83d\\ude00", "\\u0000", "9223372036854775808"},
                  1000);
  size_t n = 0;
  Fuzz(FuzzInputs(10'000), [&] {
    const std::string line = mutator.Next();
    if (!Json::accept(line)) return false;
    try {
      const std::string& source = kTemplates[n++ % kTemplates.size()];
      const bool chat = AcceptedChat(source, line);
      return Accepted(source, line) || chat;
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << "\n" << ::testing::PrintToString(line);
      return false;
    }
  });
}

}  // namespace
}  // namespace fsdp
