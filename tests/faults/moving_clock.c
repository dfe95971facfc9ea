/* Preloaded into a gateway: its wall clock is ahead by the seconds (a double) that the file $CLOCK_AHEAD holds at that moment. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile double *ahead;

__attribute__((constructor)) static void map_file(void) {
    const char *path = getenv("CLOCK_AHEAD");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) ahead = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    if (!failed && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += (time_t)*ahead;
    return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    at->tv_sec = exact.tv_sec;
    at->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (at) *at = exact.tv_sec;
    return exact.tv_sec;
}
