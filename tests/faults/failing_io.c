/* Preloaded into a gateway: changes to files below $FAILING_DIR fail with the error number in the file $FAILING_FLAG, while that exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int (*real_open)(const char *, int, ...);

static int told(void) {
    const char *flag = getenv("FAILING_FLAG");
    char text[16] = {0};
    if (!flag) return 0;
    if (!real_open) real_open = dlsym(RTLD_NEXT, "open");
    int file = real_open(flag, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    return size > 0 ? atoi(text) : 0;
}

static int fails(const char *path) {
    const char *folder = getenv("FAILING_DIR");
    int saved = errno, found = 0;
    if (folder && path && !strncmp(path, folder, strlen(folder))) found = told();
    errno = found ? found : saved;
    return found;
}

static int fails_at(int file) {
    char link[64], path[PATH_MAX];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (size < 0) return 0;
    path[size] = 0;
    return fails(path);
}

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, #name)

#define ON_FILE(type, name, declared, ...) \
    type name declared { \
        static type (*real) declared; \
        if (!real) real = dlsym(RTLD_NEXT, #name); \
        return fails_at(file) ? -1 : real(__VA_ARGS__); \
    }

ON_FILE(ssize_t, write, (int file, const void *data, size_t size), file, data, size)
ON_FILE(ssize_t, pwrite, (int file, const void *data, size_t size, off_t at), file, data, size, at)
ON_FILE(ssize_t, pwrite64, (int file, const void *data, size_t size, off64_t at), file, data, size, at)
ON_FILE(int, ftruncate, (int file, off_t size), file, size)
ON_FILE(int, ftruncate64, (int file, off64_t size), file, size)
ON_FILE(int, fsync, (int file), file)
ON_FILE(int, fdatasync, (int file), file)

#define OPENING(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = va_arg(rest, mode_t); \
        va_end(rest); \
        REAL(int, name, const char *, int, ...); \
        return (flags & (O_WRONLY | O_RDWR | O_CREAT)) && fails(path) ? -1 : real(path, flags, mode); \
    }

OPENING(open)
OPENING(open64)

int mkdir(const char *path, mode_t mode) {
    REAL(int, mkdir, const char *, mode_t);
    return fails(path) ? -1 : real(path, mode);
}

int unlink(const char *path) {
    REAL(int, unlink, const char *);
    return fails(path) ? -1 : real(path);
}

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *);
    return fails(to) ? -1 : real(from, to);
}
