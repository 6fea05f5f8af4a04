/* Shifts the wall clock of one process: preload it, and name in SHIFT_CLOCK_FILE a file of eight bytes, the shift in
 * nanoseconds (native byte order). The file is mapped, so that a write to it sets the clock while the process runs.
 * Only CLOCK_REALTIME moves; timers and waits go by clocks that nobody can set, and stay as they are. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift;

__attribute__((constructor)) static void map_shift(void) {
    const char *path = getenv("SHIFT_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) shift = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *found) {
    int failed = (int)syscall(SYS_clock_gettime, clock, found);
    if (failed || !shift || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
    int64_t total = (int64_t)found->tv_sec * 1000000000 + found->tv_nsec + *shift;
    found->tv_sec = total / 1000000000;
    found->tv_nsec = total % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
