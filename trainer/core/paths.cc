#include "trainer/core/paths.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "trainer/core/utf8.h"

namespace fsdp {
namespace {

// The home directory that the password file names; empty: it names none. `name`: empty for the
// user's own.
std::string HomeOf(const std::string& name) {
  std::vector<char> text(1 << 14);
  passwd entry{}, *found = nullptr;
  if (name.empty()) {
    ::getpwuid_r(::getuid(), &entry, text.data(), text.size(), &found);
  } else {
    ::getpwnam_r(name.c_str(), &entry, text.data(), text.size(), &found);
  }
  return found == nullptr || found->pw_dir == nullptr ? "" : found->pw_dir;
}

}  // namespace

std::string ExpandHome(std::string& path) {
  if (!path.starts_with('~')) return "";
  const size_t end = std::min(path.find('/'), path.size());
  const std::string name = path.substr(1, end - 1);
  const char* const own = name.empty() ? std::getenv("HOME") : nullptr;
  const std::string home = own != nullptr && *own != '\0' ? own : HomeOf(name);
  if (!home.empty()) {
    path.replace(0, end, home);
  } else if (name.empty()) {
    return "~ is $HOME, which is not set, and the password file names no home directory";
  }
  return "";
}

std::string ShellWord(const std::string& text) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("/._-+=,:@%").find(c) != std::string_view::npos;
  };
  if (!text.empty() && text[0] != '-' && std::all_of(text.begin(), text.end(), is_plain)) {
    return text;
  }
  // printf makes what a message would show as an escape; line feeds at the end are lost.
  if (PrintableName(text) != text) {
    std::string word = text.starts_with("-") ? "\"$(printf './" : "\"$(printf '";
    for (const char c : text) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), is_plain(c) && c != '%' ? "%c" : "\\%03o",
                    static_cast<unsigned char>(c));
      word += escape;
    }
    return word + "')\"";
  }
  std::string word = text.starts_with("-") ? "./'" : "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

}  // namespace fsdp
