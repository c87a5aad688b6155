#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "trainer/launch/launch_output.h"
#include "trainer/launch/spawn.h"

namespace fsdp {
namespace {

std::string ReadSome(int fd) {
  std::string text(1 << 20, 0);
  const ssize_t length = read(fd, text.data(), text.size());
  text.resize(length > 0 ? static_cast<size_t>(length) : 0);
  return text;
}

std::string Numbers(size_t bytes) {
  std::string text;
  for (int i = 0; text.size() < bytes; ++i) text += std::to_string(i) + "\n";
  return text;
}

// The pipe is blocking: a Drain that wrote too much would hang here.
TEST(SinkTest, ASlowReaderGetsEverythingAndBlocksNobody) {
  auto [read_end, write_end] = MakePipe();
  fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  Sink sink(write_end.get());
  const std::string text = Numbers(3 << 20);
  std::string got;
  for (size_t i = 0; i < text.size(); i += 100000) {
    sink.Write(std::string_view(text).substr(i, 100000));
    sink.Drain();
    if (i % 300000 == 0) got += ReadSome(read_end.get());
  }
  EXPECT_TRUE(sink.full());
  while (!sink.empty()) {
    sink.Drain();
    got += ReadSome(read_end.get());
  }
  got += ReadSome(read_end.get());
  EXPECT_FALSE(sink.full());
  EXPECT_TRUE(got == text) << got.size() << " bytes, want " << text.size();
}

TEST(SinkTest, WithoutAReaderTextIsDropped) {
  const auto previous = signal(SIGPIPE, SIG_IGN);
  auto [read_end, write_end] = MakePipe();
  Sink sink(write_end.get());
  sink.Write("a");
  EXPECT_FALSE(sink.empty());
  read_end.Close();
  sink.Drain();
  EXPECT_TRUE(sink.empty());
  sink.Write(std::string(3 << 20, 'b'));
  EXPECT_TRUE(sink.empty());
  EXPECT_FALSE(sink.full());
  signal(SIGPIPE, previous);
}

}  // namespace
}  // namespace fsdp
