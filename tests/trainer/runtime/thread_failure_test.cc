// A machine that has no more threads to give: pthread_create() is ours here and can refuse.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "trainer/core/errors.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/thread_pool.h"

namespace {
std::atomic<int> threads_left{1 << 30};
}

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return threads_left-- > 0 ? create(thread, attributes, start, argument) : EAGAIN;
}

namespace fsdp {
namespace {

class ThreadFailure : public ::testing::Test {
 protected:
  ~ThreadFailure() override { threads_left = 1 << 30; }
};

TEST_F(ThreadFailure, PoolEndsTheHelpersItHas) {
  for (int helpers = 0; helpers < 3; ++helpers) {
    threads_left = helpers;
    EXPECT_THROW(ThreadPool(4, false), std::system_error);
  }
}

TEST_F(ThreadFailure, StreamIsADeviceError) {
  CpuDevice device;
  for (int threads = 0; threads < 3; ++threads) {
    threads_left = threads;
    try {
      (void)device.CreateStream("compute", 3);
      FAIL() << threads;
    } catch (const DeviceError& error) {
      EXPECT_NE(std::string(error.what()).find("the 3 threads of stream compute"),
                std::string::npos)
          << error.what();
    }
  }
  threads_left = 3;
  device.CreateStream("compute", 3)->Synchronize();  // And works when there are enough.
  EXPECT_TRUE(device.TakeTrace().empty());           // No failed stream is on the device's list.
}

}  // namespace
}  // namespace fsdp
