#include "trainer/core/unique_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>

namespace fsdp {
namespace {

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFd, ClosesWhatItOwns) {
  int number = -1;
  {
    const UniqueFd fd(::open("/dev/null", O_RDONLY));
    ASSERT_TRUE(fd.open());
    number = fd.get();
    EXPECT_TRUE(IsOpen(number));
  }
  EXPECT_FALSE(IsOpen(number));
}

TEST(UniqueFd, OneOwnerAtATime) {
  UniqueFd a(::open("/dev/null", O_RDONLY));
  const int number = a.get();
  UniqueFd b = std::move(a);
  EXPECT_FALSE(a.open());  // NOLINT(bugprone-use-after-move): that is what it says.
  EXPECT_EQ(b.get(), number);
  a = std::move(b);
  EXPECT_EQ(a.get(), number);
  EXPECT_EQ(a.Release(), number);
  EXPECT_FALSE(a.open());
  EXPECT_TRUE(IsOpen(number));
  b = UniqueFd(number);
  b = UniqueFd();  // The old descriptor is closed at once.
  EXPECT_FALSE(IsOpen(number));
}

TEST(UniqueFd, AFailedOpenIsNone) {
  UniqueFd fd(::open("/dev/null/nothing", O_RDONLY));
  EXPECT_FALSE(fd.open());
  fd.Close();
  EXPECT_FALSE(fd.open());
}

}  // namespace
}  // namespace fsdp
