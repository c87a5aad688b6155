#include "trainer/data/jinja/filters.h"

#include <algorithm>
#include <iterator>

#include "trainer/data/jinja/number_filters.h"
#include "trainer/data/jinja/sequence_filters.h"
#include "trainer/data/jinja/text_filters.h"

namespace fsdp::jinja {
namespace {

constexpr Filter kFilters[] = {
    {"abs", AbsFilter},
    {"attr", AttrFilter},
    {"batch", BatchFilter},
    {"capitalize", CapitalizeFilter},
    {"center", CenterFilter},
    {"count", LengthFilter},
    {"d", DefaultFilter},
    {"default", DefaultFilter},
    {"dictsort", DictsortFilter},
    {"e", EscapeFilter},
    {"escape", EscapeFilter},
    {"first", FirstFilter},
    {"float", FloatFilter},
    {"format", FormatFilter},
    {"indent", IndentFilter},
    {"int", IntFilter},
    {"items", ItemsFilter},
    {"join", JoinFilter},
    {"last", LastFilter},
    {"length", LengthFilter},
    {"list", ListFilter},
    {"lower", LowerFilter},
    {"map", MapFilter},
    {"max", MaxFilter},
    {"min", MinFilter},
    {"reject", RejectFilter},
    {"rejectattr", RejectattrFilter},
    {"replace", ReplaceFilter},
    {"reverse", ReverseFilter},
    {"round", RoundFilter},
    {"safe", SafeFilter},
    {"select", SelectFilter},
    {"selectattr", SelectattrFilter},
    {"sort", SortFilter},
    {"string", StringFilter},
    {"sum", SumFilter},
    {"title", TitleFilter},
    {"tojson", TojsonFilter},
    {"trim", TrimFilter},
    {"truncate", TruncateFilter},
    {"unique", UniqueFilter},
    {"upper", UpperFilter},
};

// jinja2's others: for web pages, or with an outcome by chance.
constexpr std::string_view kForeign[] = {"filesizeformat", "forceescape", "groupby",   "pprint",
                                         "random",         "slice",       "striptags", "urlencode",
                                         "urlize",         "wordcount",   "wordwrap",  "xmlattr"};

}  // namespace

const Filter* FindFilter(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                         [&](const Filter& filter) { return filter.name == name; });
  return found == std::end(kFilters) ? nullptr : found;
}

bool IsForeignFilter(std::string_view name) {
  return std::find(std::begin(kForeign), std::end(kForeign), name) != std::end(kForeign);
}

}  // namespace fsdp::jinja
