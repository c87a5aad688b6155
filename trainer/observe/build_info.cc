#include "trainer/observe/build_info.h"

#include "trainer/observe/cuda_build.h"
#include "trainer/observe/git_hash.h"

namespace fsdp {

std::string_view BuildVersion() { return "0.1.0"; }

std::string_view BuildGitHash() { return kGitHash; }

std::string_view BuildCompiler() {
#ifdef __clang__
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

std::string_view BuildCuda() { return kCuda; }

}  // namespace fsdp
