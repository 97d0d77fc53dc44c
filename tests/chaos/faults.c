/* Faults of the disk, on order: preloaded into a process, it counts every operation that changes a file below one
 * folder, and at the n-th kills the process or makes the operation fail. It can also write down what was done, with a
 * copy of each file as it was when it was synchronised. Python, SQLite, Arrow and the rest all come through here. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define LONG 4096
enum { OFF, COUNT, KILL, FAIL_ONCE, FAIL_FROM };
static int mode = OFF, failure, journal = -1;
static long at;
static char root[LONG], copies[LONG];
static atomic_long count;

#define REAL(name) ({ static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name); real; })

void faults_arm(int what, long number, int error, const char *folder, int log, const char *copies_to) {
    at = number, failure = error, journal = log, count = 0;
    snprintf(root, LONG, "%s", folder);
    snprintf(copies, LONG, "%s", copies_to);
    mode = what;
}

/* The absolute path of what an operation is about; whether it is below our folder. */
static int ours(int folder, const char *path, char *full) {
    if (mode == OFF || !path) return 0;
    if (path[0] == '/') snprintf(full, LONG, "%s", path);
    else {
        char link[64], base[LONG];
        if (folder == AT_FDCWD) snprintf(link, 64, "/proc/self/cwd");
        else snprintf(link, 64, "/proc/self/fd/%d", folder);
        ssize_t size = readlink(link, base, LONG - 1);
        if (size < 0) return 0;
        base[size] = 0;
        if (snprintf(full, LONG, *path ? "%s/%s" : "%s", base, path) >= LONG) return 0;
    }
    size_t length = strlen(root);
    return !strncmp(full, root, length) && full[length] == '/';
}

static int ours_file(int file, char *full) { return ours(file, "", full); }

/* Whether an operation may go on. `space`: it needs room on the disk. */
static int allowed(int space) {
    long number = ++count;
    if (mode == KILL && number == at) kill(getpid(), SIGKILL);
    int hit = mode == FAIL_ONCE ? number == at : mode == FAIL_FROM && number >= at && (space || failure != ENOSPC);
    if (hit) errno = failure;
    return !hit;
}

static void note(const char *kind, const char *path, const char *more) {
    if (journal < 0) return;
    char line[3 * LONG];
    int kept = errno, size = snprintf(line, sizeof line, "%s\t%s\t%s\n", kind, path, more);
    if (REAL(write)(journal, line, size) < 0) abort();
    errno = kept;
}

static void note_size(const char *path) {
    struct stat status;
    char size[32];
    if (journal < 0 || stat(path, &status)) return;
    snprintf(size, 32, "%ld", (long)status.st_size);
    note("write", path, size);
}

/* Remember a file or folder as it is on the disk from now on. */
static void note_synced(const char *path) {
    static atomic_long copied;
    struct stat status;
    char copy[2 * LONG], block[1 << 16];
    ssize_t size;
    if (journal < 0 || stat(path, &status)) return;
    if (S_ISDIR(status.st_mode)) { note("sync-folder", path, ""); return; }
    snprintf(copy, sizeof copy, "%s/%d-%ld", copies, getpid(), ++copied);
    int from = REAL(open)(path, O_RDONLY), to = REAL(open)(copy, O_WRONLY | O_CREAT, 0600);
    while ((size = read(from, block, sizeof block)) > 0)
        if (REAL(write)(to, block, size) != size) abort();
    close(from), close(to);
    note("sync", path, copy);
}

/* Writing: a process that is killed has written half. */
#define HALFWAY(file, number, call) \
    if (mode == KILL && count + 1 == at && (number) > 1) { if (call) {} kill(getpid(), SIGKILL); }
#define WRITES(name, parameters, file, number, half, whole) \
    ssize_t name parameters { \
        char path[LONG]; \
        if (!ours_file(file, path)) return REAL(name) whole; \
        HALFWAY(file, number, REAL(name) half) \
        if (!allowed(1)) return -1; \
        ssize_t done = REAL(name) whole; \
        note_size(path); \
        return done; \
    }
WRITES(write, (int file, const void *data, size_t size), file, size, (file, data, size / 2), (file, data, size))
WRITES(pwrite, (int file, const void *data, size_t size, off_t offset), file, size, (file, data, size / 2, offset),
       (file, data, size, offset))
WRITES(pwrite64, (int file, const void *data, size_t size, off64_t offset), file, size, (file, data, size / 2, offset),
       (file, data, size, offset))
WRITES(writev, (int file, const struct iovec *parts, int number), file, number, (file, parts, number / 2),
       (file, parts, number))
WRITES(sendfile, (int file, int from, off_t *offset, size_t size), file, 0, (file, from, offset, size),
       (file, from, offset, size))
WRITES(sendfile64, (int file, int from, off64_t *offset, size_t size), file, 0, (file, from, offset, size),
       (file, from, offset, size))
WRITES(copy_file_range, (int from, off64_t *a, int file, off64_t *b, size_t size, unsigned flags), file, 0,
       (from, a, file, b, size, flags), (from, a, file, b, size, flags))

size_t fwrite(const void *data, size_t size, size_t number, FILE *stream) {
    char path[LONG];
    if (mode == OFF || !ours_file(fileno(stream), path)) return REAL(fwrite)(data, size, number, stream);
    if (!allowed(1)) return 0;
    size_t done = REAL(fwrite)(data, size, number, stream);
    if (journal >= 0) fflush(stream), note_size(path);
    return done;
}

/* What returns 0 when it is done. */
#define CHANGES(name, parameters, arguments, folder, given, space, kind, more, fail) \
    int name parameters { \
        char path[LONG]; \
        if (!ours(folder, given, path)) return REAL(name) arguments; \
        if (!allowed(space)) return fail; \
        int done = REAL(name) arguments; \
        if (!done) note(kind, path, more); \
        return done; \
    }
CHANGES(unlink, (const char *path_), (path_), AT_FDCWD, path_, 0, "unlink", "", -1)
CHANGES(unlinkat, (int folder, const char *path_, int flags), (folder, path_, flags), folder, path_, 0, "unlink", "", -1)
CHANGES(rmdir, (const char *path_), (path_), AT_FDCWD, path_, 0, "unlink", "", -1)
CHANGES(mkdir, (const char *path_, mode_t bits), (path_, bits), AT_FDCWD, path_, 1, "mkdir", "", -1)
CHANGES(mkdirat, (int folder, const char *path_, mode_t bits), (folder, path_, bits), folder, path_, 1, "mkdir", "", -1)
CHANGES(symlink, (const char *target, const char *path_), (target, path_), AT_FDCWD, path_, 1, "symlink", target, -1)

/* Two paths: the new name decides whether it is ours. */
#define RENAMES(name, parameters, arguments, folder, from, to_folder, to, space, kind) \
    int name parameters { \
        char old[LONG], path[LONG]; \
        if (!ours(to_folder, to, path)) return REAL(name) arguments; \
        ours(folder, from, old); \
        if (!allowed(space)) return -1; \
        int done = REAL(name) arguments; \
        if (!done) note(kind, old, path); \
        return done; \
    }
RENAMES(rename, (const char *a, const char *b), (a, b), AT_FDCWD, a, AT_FDCWD, b, 0, "rename")
RENAMES(renameat, (int x, const char *a, int y, const char *b), (x, a, y, b), x, a, y, b, 0, "rename")
RENAMES(renameat2, (int x, const char *a, int y, const char *b, unsigned flags), (x, a, y, b, flags), x, a, y, b, 0,
        "rename")
RENAMES(link, (const char *a, const char *b), (a, b), AT_FDCWD, a, AT_FDCWD, b, 1, "link")
RENAMES(linkat, (int x, const char *a, int y, const char *b, int flags), (x, a, y, b, flags), x, a, y, b, 1, "link")

#define SIZES(name, parameters, arguments, space, fail) \
    int name parameters { \
        char path[LONG]; \
        if (!ours_file(file, path)) return REAL(name) arguments; \
        if (!allowed(space)) return fail; \
        int done = REAL(name) arguments; \
        note_size(path); \
        return done; \
    }
SIZES(ftruncate, (int file, off_t size), (file, size), 1, -1)
SIZES(ftruncate64, (int file, off64_t size), (file, size), 1, -1)
SIZES(posix_fallocate, (int file, off_t start, off_t size), (file, start, size), 1, failure)
SIZES(posix_fallocate64, (int file, off64_t start, off64_t size), (file, start, size), 1, failure)

#define SYNCS(name) \
    int name(int file) { \
        char path[LONG]; \
        if (!ours_file(file, path)) return REAL(name)(file); \
        if (!allowed(0)) return -1; \
        note_synced(path); /* the disk itself is left alone: nothing here outlives the test */ \
        return 0; \
    }
SYNCS(fsync)
SYNCS(fdatasync)

int msync(void *address, size_t size, int flags) {
    char line[2 * LONG], path[LONG];
    unsigned long start, end;
    FILE *maps = mode == OFF ? NULL : fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %4095[^\n]", &start, &end, path) == 3 &&
            start <= (unsigned long)address && (unsigned long)address < end && ours(AT_FDCWD, path, line)) {
            fclose(maps);
            if (!allowed(0)) return -1;
            note_synced(path);
            return 0;
        }
    if (maps) fclose(maps);
    return REAL(msync)(address, size, flags);
}

/* Opening counts where it makes or empties a file. */
#define OPENS(name, parameters, arguments, folder) \
    int name parameters { \
        char path[LONG]; \
        mode_t bits = 0; \
        if (flags & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); bits = va_arg(more, mode_t); va_end(more); } \
        if (!(flags & (O_CREAT | O_TRUNC)) || !ours(folder, given, path) || \
            (!(flags & O_TRUNC) && !faccessat(folder, given, F_OK, AT_SYMLINK_NOFOLLOW))) return REAL(name) arguments; \
        int new = faccessat(folder, given, F_OK, AT_SYMLINK_NOFOLLOW); \
        if (!allowed(1)) return -1; \
        int file = REAL(name) arguments; \
        if (file >= 0) note(new ? "create" : "empty", path, ""); \
        return file; \
    }
OPENS(open, (const char *given, int flags, ...), (given, flags, bits), AT_FDCWD)
OPENS(open64, (const char *given, int flags, ...), (given, flags, bits), AT_FDCWD)
OPENS(openat, (int base, const char *given, int flags, ...), (base, given, flags, bits), base)
OPENS(openat64, (int base, const char *given, int flags, ...), (base, given, flags, bits), base)

#define OPENS_STREAM(name) \
    FILE *name(const char *given, const char *how) { \
        char path[LONG]; \
        if (how[0] == 'r' || !ours(AT_FDCWD, given, path)) return REAL(name)(given, how); \
        int new = access(given, F_OK); \
        if (!allowed(1)) return NULL; \
        FILE *file = REAL(name)(given, how); \
        if (file) note(new ? "create" : "empty", path, ""); \
        return file; \
    }
OPENS_STREAM(fopen)
OPENS_STREAM(fopen64)
