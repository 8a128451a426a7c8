#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long long ahead(void) {
  static volatile long long *page;
  if (!page) {
    int fd = open(getenv("CLOCK_FILE"), O_RDONLY);
    page = mmap(0, sizeof *page, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
  }
  return *page;
}
int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
  struct timespec ts;
  int r = syscall(SYS_clock_gettime, CLOCK_REALTIME, &ts);
  tv->tv_sec = ts.tv_sec + ahead();
  tv->tv_usec = ts.tv_nsec / 1000;
  return r;
}
int clock_gettime(clockid_t id, struct timespec *ts) {
  int r = syscall(SYS_clock_gettime, id, ts);
  if (id == CLOCK_REALTIME) ts->tv_sec += ahead();
  return r;
}
time_t time(time_t *t) {
  struct timeval tv;
  gettimeofday(&tv, 0);
  if (t) *t = tv.tv_sec;
  return tv.tv_sec;
}
