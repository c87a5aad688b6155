// Directories of the running test alone, below its temporary one.
#ifndef FSDP_TRAIN_TESTS_TESTING_FRESH_DIRECTORY_H_
#define FSDP_TRAIN_TESTS_TESTING_FRESH_DIRECTORY_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace fsdp::testing {

// A path at which there is nothing: removes what an earlier call or run left there.
inline std::string UnusedPath(const std::string& name) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / name;
  std::filesystem::remove_all(path);
  return path;
}

// A new, empty directory.
inline std::string FreshDirectory(const std::string& name) {
  const std::string path = UnusedPath(name);
  std::filesystem::create_directories(path);
  return path;
}

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_FRESH_DIRECTORY_H_
