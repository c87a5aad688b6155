#include "trainer/data/text/json_line.h"

#include <optional>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/json_text.h"

namespace fsdp {
namespace {

[[noreturn]] void Refuse(const JsonFault& fault, const std::string& member) {
  throw DataError((fault.line > 1 ? "line " + std::to_string(fault.line) + ", column "
                                  : std::string("column ")) +
                  std::to_string(fault.column) + ": " + fault.reason +
                  (member.empty() ? "" : ", and `" + member + "` is read"));
}

}  // namespace

std::string PlainJson(std::string_view line, const ReadsMember& reads) {
  std::optional<PythonJson> python = ReadPythonJson(line);
  if (!python) Refuse(FaultOfRefused(line), "");
  for (const auto& [member, odd] : python->odd) {
    if (reads == nullptr || reads(member)) Refuse(FaultAt(line, odd.at, odd.reason), member);
  }
  return std::move(python->text);
}

}  // namespace fsdp
