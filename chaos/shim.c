/* Loaded into a process with LD_PRELOAD: moves its wall clock and fills its disk, as a shared page
 * says, without root.
 *
 *   LOCKFAST_CHAOS_PAGE  a file with two 64-bit integers: microseconds to add to the wall clock,
 *                        and whether the disk is full
 *   LOCKFAST_CHAOS_DISK  the disk that is full: every file below this directory
 *
 * A full disk refuses only writes that make a file longer, as a real one does.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct page { volatile int64_t shift_us; volatile int64_t disk_is_full; };
static struct page none;
static struct page *page = &none;
static const char *disk;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("LOCKFAST_CHAOS_PAGE");
    disk = getenv("LOCKFAST_CHAOS_DISK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *mapped = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) page = mapped;
    close(fd);
}

/* ── the wall clock ─────────────────────────────────────────────────────────────── */

int clock_gettime(clockid_t clock, struct timespec *at) {
    static __typeof__(&clock_gettime) real;
    if (!real) real = REAL(clock_gettime);
    int failed = real(clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t us = (int64_t)at->tv_sec * 1000000 + at->tv_nsec / 1000 + page->shift_us;
        at->tv_nsec = (us % 1000000) * 1000 + at->tv_nsec % 1000;
        at->tv_sec = us / 1000000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

/* ── the disk ───────────────────────────────────────────────────────────────────── */

/* Whether writing up to `end` makes a file of the full disk longer; end < 0: where it stands. */
static int is_refused(int fd, int64_t end, int64_t count) {
    if (!page->disk_is_full || !disk) return 0;
    char link[64], path[4096];
    struct stat file;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0 || fstat(fd, &file) || !S_ISREG(file.st_mode)) return 0;
    path[length] = 0;
    if (strncmp(path, disk, strlen(disk))) return 0;
    if (end < 0) {
        int appends = fcntl(fd, F_GETFL) & O_APPEND;
        end = (appends ? (int64_t)file.st_size : (int64_t)lseek(fd, 0, SEEK_CUR)) + count;
    }
    if (end <= file.st_size) return 0;
    errno = ENOSPC;
    return 1;
}

static int64_t total(const struct iovec *parts, int count) {
    int64_t sum = 0;
    for (int i = 0; i < count; i++) sum += parts[i].iov_len;
    return sum;
}

ssize_t write(int fd, const void *data, size_t count) {
    static __typeof__(&write) real;
    if (!real) real = REAL(write);
    return is_refused(fd, -1, count) ? -1 : real(fd, data, count);
}

ssize_t pwrite64(int fd, const void *data, size_t count, off64_t at) {
    static __typeof__(&pwrite64) real;
    if (!real) real = REAL(pwrite64);
    return is_refused(fd, at + count, 0) ? -1 : real(fd, data, count, at);
}

ssize_t pwrite(int fd, const void *data, size_t count, off_t at) {
    return pwrite64(fd, data, count, at);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    static __typeof__(&writev) real;
    if (!real) real = REAL(writev);
    return is_refused(fd, -1, total(parts, count)) ? -1 : real(fd, parts, count);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    static __typeof__(&pwritev64) real;
    if (!real) real = REAL(pwritev64);
    return is_refused(fd, at + total(parts, count), 0) ? -1 : real(fd, parts, count, at);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    return pwritev64(fd, parts, count, at);
}

int posix_fallocate64(int fd, off64_t at, off64_t count) {
    static __typeof__(&posix_fallocate64) real;
    if (!real) real = REAL(posix_fallocate64);
    return is_refused(fd, at + count, 0) ? ENOSPC : real(fd, at, count);
}

int posix_fallocate(int fd, off_t at, off_t count) { return posix_fallocate64(fd, at, count); }

int ftruncate64(int fd, off64_t size) {
    static __typeof__(&ftruncate64) real;
    if (!real) real = REAL(ftruncate64);
    return is_refused(fd, size, 0) ? -1 : real(fd, size);
}

int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }
