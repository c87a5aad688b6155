/* Functions that gcc 12's libraries and headers use and glibc 2.28 lacks, and the program's start. Each is seen
 * in the program alone, so that a library that is loaded later takes the system's.
 * Tests: tests/tools/portable_test.py */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

int __xstat(int version, const char* path, struct stat* out);
int __lxstat(int version, const char* path, struct stat* out);
int __fxstat(int version, int fd, struct stat* out);
int __fxstatat(int version, int fd, const char* path, struct stat* out, int flags);

#pragma GCC visibility push(hidden)

/* gcc's start files leave constructors to glibc since 2.34; an older one calls what start.S hands it. A newer
 * one does so, too, and then calls none itself. */
typedef void Constructor(int argc, char** argv, char** environment);
extern Constructor* const __init_array_start[];
extern Constructor* const __init_array_end[];

void FsdpConstruct(int argc, char** argv, char** environment) {
  for (Constructor* const* at = __init_array_start; at != __init_array_end; ++at) {
    (*at)(argc, argv, environment);
  }
}

void FsdpDestruct(void) {} /* The loader calls destructors. */

void* __dso_handle = 0; /* The program itself, for atexit(). */

/* 2.33. Version 1 of the structure is x86-64's only one. */
int stat(const char* path, struct stat* out) { return __xstat(1, path, out); }
int lstat(const char* path, struct stat* out) { return __lxstat(1, path, out); }
int fstat(int fd, struct stat* out) { return __fxstat(1, fd, out); }
int fstat64(int fd, struct stat64* out) { return __fxstat(1, fd, (struct stat*)out); }
int fstatat(int fd, const char* path, struct stat* out, int flags) {
  return __fxstatat(1, fd, path, out, flags);
}

/* 2.32. "There may be other threads": shared pointers always count atomically. */
char __libc_single_threaded = 0;

/* 2.36, for std::random_device. */
uint32_t arc4random(void) {
  uint32_t number;
  while (getrandom(&number, sizeof number, 0) != sizeof number) {
    if (errno != EINTR) abort();
  }
  return number;
}

/* 2.30. The system's where it has one. Otherwise the deadline is told by the clock that the condition has,
 * at most a second ahead: whoever waits looks at his clock again, because waits may end early. */
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* deadline) {
  typedef int Wait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
  static _Atomic(Wait*) systems = 0;
  static _Atomic int looked = 0;
  if (!looked) {
    systems = (Wait*)dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
    looked = 1;
  }
  Wait* wait = systems;
  if (wait) return wait(condition, mutex, clock, deadline);
  struct timespec now;
  clock_gettime(clock, &now);
  const int64_t second = 1000000000;
  int64_t left = (deadline->tv_sec - now.tv_sec) * second + deadline->tv_nsec - now.tv_nsec;
  const int whole = left <= second;
  if (!whole) left = second;
  if (left < 0) left = 0;
  clock_gettime(CLOCK_REALTIME, &now);
  left += now.tv_nsec;
  const struct timespec until = {now.tv_sec + left / second, left % second};
  const int status = pthread_cond_timedwait(condition, mutex, &until);
  return status == ETIMEDOUT && !whole ? 0 : status;
}

/* 2.35: where the unwinder finds the frames of the code at `pc`. */
struct Found {
  uintptr_t pc;
  struct dl_find_object* result;
};

static int LooksInto(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  const struct Found* found = data;
  uintptr_t begin = UINTPTR_MAX, end = 0, frames = 0;
  int here = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &info->dlpi_phdr[i];
    const uintptr_t at = info->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_GNU_EH_FRAME) frames = at;
    if (part->p_type != PT_LOAD) continue;
    if (at < begin) begin = at;
    if (at + part->p_memsz > end) end = at + part->p_memsz;
    if (at <= found->pc && found->pc < at + part->p_memsz) here = 1;
  }
  if (!here) return 0;
  found->result->dlfo_map_start = (void*)begin;
  found->result->dlfo_map_end = (void*)end;
  found->result->dlfo_eh_frame = (void*)frames;
  return frames ? 1 : -1;
}

int _dl_find_object(void* pc, struct dl_find_object* result) {
  struct Found found = {(uintptr_t)pc, result};
  *result = (struct dl_find_object){0};
  return dl_iterate_phdr(LooksInto, &found) == 1 ? 0 : -1;
}

#pragma GCC visibility pop
