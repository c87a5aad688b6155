#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/data/chat/jinja/template.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

std::string Render(const std::string& source, const Json& variables = Json::object(),
                   const JinjaOptions& options = {}) {
  return JinjaTemplate("t", source).Render(variables, options).text;
}

// Why a template is refused; empty: it is not.
std::string Why(const std::string& source, const Json& variables = Json::object(),
                const JinjaOptions& options = {}) {
  try {
    Render(source, variables, options);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

// Why it cannot be parsed.
std::string WhyNotParsed(const std::string& source) {
  try {
    const JinjaTemplate parsed("t", source);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

std::string Times(size_t n, const std::string& text) {
  std::string all;
  for (size_t i = 0; i < n; ++i) all += text;
  return all;
}

// --- Against jinja2 ---

TEST(JinjaTemplate, ExpressionsAreThoseOfJinja2) {
  std::ifstream file("tests/fixtures/chat_templates/expressions.json");
  const Json table = Json::parse(file);
  ASSERT_GT(table["cases"].size(), 450u);
  int errors = 0;
  for (const Json& one : table["cases"]) {
    const std::string source = one[0];
    std::optional<std::string> text;
    std::string why;
    try {
      text = Render(source, table["variables"]);
    } catch (const DataError& error) {
      why = error.what();
      ++errors;
    }
    if (one[1].is_null()) {
      EXPECT_FALSE(text) << source << "\ngives " << *text << "\nwhere jinja2 refuses it";
      EXPECT_TRUE(why.starts_with("t:")) << why;
    } else {
      EXPECT_EQ(text, one[1].get<std::string>()) << source << "\n" << why;
    }
  }
  EXPECT_GT(errors, 100);
}

TEST(JinjaTemplate, AMarkedPartIsARangeOfBytes) {
  const JinjaTemplate parsed("t",
                             "\u00e9{% for x in [1, 2] %}<{% generation %}\u00df{{ x }}"
                             "{% endgeneration %}>{% endfor %}");
  EXPECT_TRUE(parsed.has_generation());
  const JinjaText rendered = parsed.Render(Json::object());
  EXPECT_EQ(rendered.text, "\u00e9<\u00df1><\u00df2>");
  EXPECT_EQ(rendered.generation, (std::vector<std::pair<size_t, size_t>>{{3, 6}, {8, 11}}));
  EXPECT_FALSE(JinjaTemplate("t", "{# {% generation %} #}").has_generation());
}

TEST(JinjaTemplate, OrderOfKeysIsThatOfTheJson) {
  EXPECT_EQ(Render("{{ d | tojson }}{{ d }}", Json::parse(R"({"d": {"b": 1, "a": null}})")),
            "{\"b\": 1, \"a\": null}{'b': 1, 'a': None}");
}

// --- Mistakes ---

TEST(JinjaTemplate, AMistakeHasNameAndLine) {
  EXPECT_EQ(WhyNotParsed("a\n{% if x %}\nb\n{% endfor %}\n"),
            "t:4: there is no tag {% endfor %}; want {% endif %} first");
  EXPECT_EQ(WhyNotParsed("a\n{{ x +\n }}"), "t:3: want an expression, got `}}`");
  EXPECT_EQ(Why("a\r\nb\r\n{{ x.y }}", {{"x", nullptr}}), "");
  EXPECT_EQ(Why("a\r\nb\r{{ x.y.z }}", {{"x", nullptr}}), "t:3: a None has no `y`");
  EXPECT_EQ(Why("{% set a = 1 %}\n\n{{ a\n + 'x' }}"), "t:4: has no `+` for int and str");
  EXPECT_EQ(Why("{% macro m(x) %}\n{{ x.y.z }}{% endmacro %}\n\n{{ m(1) }}"),
            "t:2: a int has no `y`");
  EXPECT_EQ(Why("{#\n\n#}{{ '' }}\n{{- nothing() }}"), "t:4: `nothing` is undefined");
  EXPECT_EQ(Why("\n{{ raise_exception('so ' ~ 1) }}"), "t:2: the template refuses this: so 1");
}

// Each stands where it is never run.
TEST(JinjaTemplate, WhatChatTemplatesDoNotUseIsNamedBeforeItRuns) {
  const auto not_among = [](const std::string& what) {
    return "t:2: " + what + " is not among what chat templates use";
  };
  for (const char* tag :
       {"extends 'a'", "include 'a'", "import 'a' as b", "from 'a' import b", "block a",
        "autoescape true", "call m()", "do x", "trans", "print x", "with a = 1", "raw"}) {
    const std::string text = tag, name = text.substr(0, text.find(' '));
    EXPECT_EQ(WhyNotParsed("{% if false %}\n{% " + text + " %}{% endif %}"),
              not_among("{% " + name + " %}"));
  }
  const std::vector<std::pair<std::string, std::string>> expressions = {
      {"'a' | urlize", "the filter `urlize`"},
      {"'a' | truncate(3)", "the filter `truncate`"},
      {"'a' | escape", "the filter `escape`"},
      {"'%d' | format(1)", "the filter `format`"},
      {"[1] | batch(2)", "the filter `batch`"},
      {"[1] | map('round') | list", "the filter `round`"},
      {"[1] | select('sameas', 1) | list", "the test `sameas`"},
      {"[1] | rejectattr('a', 'odd') | list", "the test `odd`"},
      {"1 is divisibleby(2)", "the test `divisibleby`"},
      {"1 is eq 1", "a test's argument without ("},
      {"s is in 'ab'", "a test's argument without ("},
      {"s is defined is true", "a test's argument without ("},
      {"d | tojson(sort_keys=true)", "the argument `sort_keys` of `tojson`"},
      {"d | dictsort(by='value')", "the argument `by` of `dictsort`"},
      {"s.encode()", "the method `encode`"},
      {"s.center(9)", "the method `center`"},
      {"s.count('a')", "the method `count`"},
      {"d.copy()", "the method `copy`"},
      {"loop.changed(1)", "`loop.changed`"},
      {"loop.cycle('a', 'b')", "`loop.cycle`"},
      {"cycler(1, 2)", "`cycler`"},
      {"joiner()", "`joiner`"},
      {"dict(a=1)", "`dict`"},
      {"lipsum()", "`lipsum`"},
      {"self", "`self`"},
      {"caller()", "`caller`"},
      {"f(**d)", "`**` in a call"},
      {"'%s' % 1", "formatting by `%`"},
      {"2 ** 3", "`**`"},
      {"4 / 2", "`/`"},
      {"4 // 2", "`//`"},
      {"1 < n < 3", "a chain of comparisons"},
      {"l[::2]", "a slice in steps other than [::-1]"},
      {"l[1:2:3]", "a slice in steps other than [::-1]"},
      {"1.5", "a number other than a decimal integer"},
      {"0x1f", "a number other than a decimal integer"},
      {"1e3", "a number other than a decimal integer"},
      {"'\\x41'", "an escape in a text other than \\n and its like"},
      {"'\\u00e9'", "an escape in a text other than \\n and its like"}};
  for (const auto& [expression, what] : expressions) {
    EXPECT_EQ(WhyNotParsed("{% if false %}\n{{ " + expression + " }}{% endif %}"), not_among(what));
  }
  EXPECT_EQ(WhyNotParsed("\n{% for x in y recursive %}{% endfor %}"),
            not_among("a `recursive` loop"));
  EXPECT_EQ(WhyNotParsed("{% for x in y %}\n{% macro m() %}{% endmacro %}{% endfor %}"),
            not_among("{% macro %} within a loop or another block"));
  EXPECT_EQ(WhyNotParsed("\n{{ 'a' | nosuch }}"), "t:2: the filter `nosuch` is not there");
  EXPECT_EQ(WhyNotParsed("\n{{ 'a' is nosuch }}"), "t:2: the test `nosuch` is not there");
}

// Only a run shows the types.
TEST(JinjaTemplate, WhatChatTemplatesDoNotUseIsNamedWhereItRuns) {
  for (const char* expression :
       {"s % 1", "x % 2", "'{0}'.format(1)", "'a'.replace('', 'b')", "'4.5' | int", "x | int",
        "namespace({'a': 1})", "'abc'[::-1]", "range(3)", "{}.items()", "namespace()", "s.upper",
        "l | map('string')", "l | map(attribute='a.b') | list", "l * 2", "l < l"}) {
    EXPECT_NE(Why("{{ " + std::string(expression) + " }}",
                  Json::parse(R"({"s": "%d", "x": 2.5, "l": [1]})"))
                  .find(" is not among what chat templates use"),
              std::string::npos)
        << expression;
  }
  EXPECT_NE(Why("{% set n = namespace(a=1) %}{% for i in [1] if n.a %}{% endfor %}")
                .find("a loop's condition that reads a namespace is not among"),
            std::string::npos);
  EXPECT_NE(Why("{% set g = [1] | map('string') %}{{ g | list }}{{ g | list }}")
                .find("runs through a generator again"),
            std::string::npos);
}

// jinja2 asks for a filter under an if when it gets there.
TEST(JinjaTemplate, AFilterThatIsNotThereMayBeUnderAnIf) {
  const std::string source = "{% if x is string %}{{ x | from_json }}{% else %}{{ x }}{% endif %}";
  EXPECT_EQ(Render(source, {{"x", 1}}), "1");
  EXPECT_EQ(Why(source, {{"x", "1"}}), "t:1: `from_json` is neither a filter nor a test");
  EXPECT_EQ(Render("{{ x | from_json if x is string else x }}", {{"x", 1}}), "1");
  EXPECT_EQ(WhyNotParsed("{{ (1 if x else 2) | from_json }}"),
            "t:1: the filter `from_json` is not there");
}

TEST(JinjaTemplate, APartThatGoesElsewhereFirstCannotBeMarked) {
  for (const char* around :
       {"{% set x %}G{% endset %}", "{% filter trim %}G{% endfilter %}",
        "{% macro m() %}G{% endmacro %}", "{% generation %}G{% endgeneration %}"}) {
    std::string source = around;
    source.replace(source.find('G'), 1, "{% generation %}a{% endgeneration %}");
    EXPECT_NE(WhyNotParsed(source).find("{% generation %} stands within {% "), std::string::npos)
        << source;
  }
}

TEST(JinjaTemplate, AnIntegerOfMoreThan64BitsIsRefusedByName) {
  EXPECT_EQ(Why("{{ 9223372036854775807 + 1 }}"),
            "t:1: integer overflow: 9223372036854775807 + 1 does not fit 64 bits");
  EXPECT_EQ(WhyNotParsed("{{ 9223372036854775808 }}"),
            "t:1: integer overflow: 9223372036854775808 does not fit 64 bits");
  for (const char* expression :
       {"-9223372036854775807 - 2", "4611686018427387904 * 2", "-(-9223372036854775807 - 1)"}) {
    EXPECT_NE(Why("{{ " + std::string(expression) + " }}").find("integer overflow: "),
              std::string::npos)
        << expression;
  }
  EXPECT_EQ(Render("{{ (-9223372036854775807 - 1) % -1 }}"), "0");
  EXPECT_EQ(Why("{{ x }}", Json::parse(R"({"x": 18446744073709551615})")),
            "t:1: is given integer overflow: 18446744073709551615 does not fit 64 bits");
}

TEST(JinjaTemplate, ADateIsGivenOrThereIsNone) {
  const std::string source = "{{ strftime_now('%A, %-d %b %Y, %j, %H:%M %p %%') }}";
  JinjaOptions options;
  options.date = JinjaDate{2024, 2, 9};
  EXPECT_EQ(Render(source, Json::object(), options), "Friday, 9 Feb 2024, 040, 00:00 AM %");
  EXPECT_NE(Why(source).find("`data.train.date`"), std::string::npos);
  EXPECT_EQ(Render("{{ strftime_now is defined }}"), "False");
  EXPECT_EQ(Why("{{ strftime_now('%Q') }}", Json::object(), options),
            "t:1: `strftime_now` knows no `%Q`");
}

TEST(JinjaTemplate, TextThatIsNoUtf8IsRefused) {
  EXPECT_EQ(WhyNotParsed("a\nb\xff"), "t:2: is no UTF-8");
  EXPECT_EQ(Why("{{ x }}", {{"x", "a\xc3"}}), "t:1: is given a text that is no UTF-8");
}

// --- Bounds ---

TEST(JinjaTemplate, NestingOfATemplateIsBounded) {
  // A stack of 8 MiB holds no hundred thousand of anything; far fewer of the others are too many.
  constexpr size_t kMost = 100'000, kMany = 3000;
  EXPECT_NE(WhyNotParsed("{{ " + Times(kMost, "(") + "1" + Times(kMost, ")") + " }}"), "");
  EXPECT_NE(WhyNotParsed("{{ a" + Times(kMost, "+1") + " }}"), "");
  EXPECT_NE(WhyNotParsed(Times(kMost, "{% if a %}")), "");
  for (const auto& [open, close] :
       std::vector<std::pair<std::string, std::string>>{{"(", ")"},
                                                        {"[", "]"},
                                                        {"{1:", "}"},
                                                        {"not ", ""},
                                                        {"-", ""},
                                                        {"a[", "]"},
                                                        {"a(", ")"},
                                                        {"1 if ", ""},
                                                        {"1 if 1 else ", ""},
                                                        {"a|d(", ")"},
                                                        {"a is eq(", ")"}}) {
    EXPECT_NE(WhyNotParsed("{{ " + Times(kMany, open) + "1" + Times(kMany, close) + " }}"), "")
        << open;
  }
  for (const char* chain : {"+1", "-a", "*a", "~a", ".a", "[0]", "()", "|d", " is defined", " or a",
                            " and a", " if a"}) {
    EXPECT_NE(WhyNotParsed("{{ a" + Times(kMany, chain) + " }}"), "") << chain;
  }
  for (const char* tag :
       {"{% if a %}", "{% for a in b %}", "{% set a %}", "{% filter trim %}", "{% generation %}"}) {
    EXPECT_NE(WhyNotParsed(Times(kMany, tag)), "") << tag;
  }
  // Wide is not deep.
  EXPECT_EQ(Render("{{ [" + Times(kMost, "1,") + "] | length }}"), "100000");
  EXPECT_EQ(Render("{{ ('a'" + Times(200, " ~ 'b'") + ") | length }}"), "201");
  EXPECT_EQ(Render("{% if a %}" + Times(1000, "{% elif a %}") + "{% else %}x{% endif %}"), "x");
}

TEST(JinjaTemplate, NestingOfARunIsBounded) {
  EXPECT_NE(Why("{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}").find("too deeply"),
            std::string::npos);
  EXPECT_NE(
      Why("{% macro m(x) %}{% for a in [1] %}{% if a %}{% set b %}{{ [m(x ~ a)] }}{% endset %}"
          "{{ b }}{% endif %}{% endfor %}{% endmacro %}{{ m(1) }}")
          .find("too deeply"),
      std::string::npos);
  EXPECT_EQ(Render("{% macro m(x) %}{% if x %}{{ m(x - 1) }}.{% endif %}{% endmacro %}{{ m(60) }}"),
            Times(60, "."));
  const auto grow = [](const std::string& by) {
    return "{% set n = namespace(x=[1]) %}{% for i in range(1000) %}{% set n.x = " + by +
           " %}{% endfor %}{{ n.x | first }}{{ n.x == n.x }}{{ n.x | string | length }}";
  };
  for (const char* by : {"[n.x]", "{'a': n.x}", "(n.x,)", "[n.x | select]", "[{'a': n.x}.items()]",
                         "{'a': n.x}.get"}) {
    EXPECT_NE(Why(grow(by)).find("nests more than 200 deep"), std::string::npos)
        << by << " " << Why(grow(by));
  }
  // As a tree it has 2^100 leaves.
  const std::string trees =
      "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(100) %}{% set n.x = [n.x, n.x] %}"
      "{% set n.y = [n.y, n.y] %}{% endfor %}";
  for (const char* use :
       {"{{ n.x }}", "{{ n.x | tojson }}", "{{ n.x == n.y }}", "{{ n.x in [n.y] }}"}) {
    const JinjaOptions options{.date = {}, .steps = 100'000};
    EXPECT_NE(Why(trees + use, Json::object(), options).find("takes more than"), std::string::npos)
        << use;
  }
  EXPECT_EQ(Render("{% set n = namespace() %}{% set n.a = [n] %}{{ n.a | length }}"), "1");
  Json deep = 1;
  for (int i = 0; i < 1000; ++i) deep = Json::array({deep});
  EXPECT_EQ(Why("", {{"x", deep}}), "t:1: is given JSON that nests more than 200 deep");
}

TEST(JinjaTemplate, WorkIsBounded) {
  const JinjaOptions options{.date = {}, .steps = 100'000, .text_bytes = 10'000};
  const auto why = [&](const std::string& source) { return Why(source, Json::object(), options); };
  const std::string loop = "{% for i in range(100000) %}";
  EXPECT_EQ(why(loop + "{% for j in range(100000) %}{% endfor %}{% endfor %}"),
            "t:1: takes more than 100000 steps");
  for (const char* source :
       {"{{ range(100000) | list | sort | length }}{{ range(100000) | list }}",
        "{{ '' * 9223372036854775807 }}",
        "{{ range(100000) | map('string') | list | unique | list | length }}",
        "{% set x = range(9999) | list %}{% for i in x %}{{ '' if i in x }}{% endfor %}"}) {
    EXPECT_NE(why(source).find("steps"), std::string::npos) << source << why(source);
  }
  EXPECT_EQ(why("{% for i in range(9999) %}ab{% endfor %}"),
            "t:1: makes a text of 10002 bytes, the most is 10000");
  for (const char* expression :
       {"'a' * 1000000000", "'ab' * 9223372036854775807", "('a' * 5000) ~ ('a' * 5001)",
        "'a' * 6000 + 'b' * 6000", "('a' * 200) | replace('a', 'b' * 100)",
        "('a\\n' * 200) | indent(100)", "('{}' * 200).format(*['b' * 100] * 1)",
        "['a' * 9000, 'a' * 9000] | join", "['a' * 9000, 'a' * 9000] | tojson",
        "[[[1]]] | tojson(indent=10000000)", "[[[[[1]]]]] | tojson(indent=3000)",
        "('\u00df' * 4000) | upper", "('a' * 9000) | upper", "('<' * 9000) | safe + '<' * 9000",
        "['a' * 6000, 'a' * 6000] | string"}) {
    EXPECT_NE(why("{{ " + std::string(expression) + " }}"), "") << expression;
  }
}

TEST(JinjaTemplate, ThreadsRenderAtOnce) {
  const JinjaTemplate parsed(
      "t",
      "{% macro m(x) %}<{{ x }}>{% endmacro %}{% set n = namespace(s='') %}{% for x in l %}"
      "{% set n.s = n.s ~ m(x) %}{{ 'const' | upper }}{% endfor %}{{ n.s }}{{ l | map('string') | "
      "join }}");
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < texts.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 50; ++n) {
        texts[i] = parsed.Render({{"l", Json::array({i, i + 1})}}).text;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(texts[2], "CONSTCONST<2><3>23");
  EXPECT_EQ(texts[3], "CONSTCONST<3><4>34");
}

}  // namespace
}  // namespace fsdp
