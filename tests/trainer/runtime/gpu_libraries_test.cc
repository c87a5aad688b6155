#include "trainer/runtime/gpu_libraries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/testing/kept_environment.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A library that says it is NCCL 2.28.9, or 2.27.3.
std::string Directory(const std::string& which) {
  return fs::absolute("tests/trainer/runtime/" + which);
}

TEST(GpuLibraries, TheFirstThatIsNewEnough) {
  const std::string fresh = Directory("nccl_2_28_9"), old = Directory("nccl_2_27_3");
  for (const auto& places : std::vector<std::vector<std::string>>{
           {fresh}, {fresh, old}, {old, fresh}, {"/no/such/place", old, fresh}}) {
    const FoundGpuLibrary found = FindGpuLibrary(GpuLibrary::kNccl, places);
    ASSERT_TRUE(found.function);
    EXPECT_NE(found.function("ncclGetVersion"), nullptr);
    EXPECT_EQ(found.function("ncclSend"), nullptr);
    EXPECT_EQ(found.version, 22809);
    EXPECT_EQ(GpuLibraryVersionText(found.version), "2.28.9");
    EXPECT_TRUE(fs::equivalent(found.path, fresh + "/libnccl.so.2")) << found.path;
    EXPECT_EQ(found.why_not, "");
  }
}

TEST(GpuLibraries, SaysWhatIsWrongAndWhereItLooked) {
  const std::string old = Directory("nccl_2_27_3");
  const FoundGpuLibrary found = FindGpuLibrary(GpuLibrary::kNccl, {"/no/such/place", old});
  EXPECT_FALSE(found.function);
  EXPECT_EQ(found.version, 22703);
  EXPECT_THAT(found.why_not, HasSubstr("libnccl.so.2 is version 2.27.3, and this program needs "
                                       "2.28.0 or newer (looked in /no/such/place, " +
                                       old + "; FSDP_TRAIN_CUDA_LIBS adds directories"));
  EXPECT_THAT(FindGpuLibrary(GpuLibrary::kCudnn, {"/no/such/place"}).why_not,
              HasSubstr("libcudnn.so.9 is not there (looked in /no/such/place;"));
  EXPECT_THAT(FindGpuLibrary(GpuLibrary::kCublasLt, {Directory("broken")}).why_not,
              HasSubstr("broken/libcublasLt.so.13: "));
}

// Libraries that pip puts there are found, behind those that a user names and those that the loader
// knows.
TEST(GpuLibraries, LooksIntoPythonsPackages) {
  const testing::KeptEnvironment kept;
  const std::string environment = ::testing::TempDir() + "/venv";
  const std::string packages = environment + "/lib/python3.12/site-packages/nvidia/";
  fs::create_directories(packages + "nccl/lib");
  fs::create_directories(packages + "cu13/lib");
  setenv("VIRTUAL_ENV", environment.c_str(), 1);
  setenv("FSDP_TRAIN_CUDA_LIBS", "/first::/second", 1);
  const std::vector<std::string> places = GpuLibraryPlaces();
  ASSERT_GE(places.size(), 6u);
  EXPECT_EQ((std::vector<std::string>{places.begin(), places.begin() + 6}),
            (std::vector<std::string>{"/first", "/second", packages + "cu13/lib",
                                      packages + "nccl/lib", "", "/usr/local/cuda/lib64"}));
}

}  // namespace
}  // namespace fsdp
