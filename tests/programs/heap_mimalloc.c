/* mimalloc's own functions, found at run time: run it with the library preloaded. Says what stands and what is gone as heap_sites does. */
// build: gcc -g -O1 -o $BIN $SRC
#include "target.h"
#include <dlfcn.h>
#include <signal.h>

static long long at(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void *of(const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    if (!found)
        fail(name);
    return found;
}

typedef void *(*one)(size_t);
typedef void *(*two)(size_t, size_t);
typedef void *(*three)(size_t, size_t, size_t);
typedef void *(*re_one)(void *, size_t);
typedef void *(*re_two)(void *, size_t, size_t);
typedef void *(*heap_four)(void *, size_t, size_t, size_t);
typedef void *(*heap_re)(void *, void *, size_t);
typedef void *(*heap_re_aligned)(void *, void *, size_t, size_t);

static void *kept;

static void stands(void *block, size_t bytes) {
    printf("at %lld main %llu %zu\n", at(), (unsigned long long)(uintptr_t)block, bytes);
    kept = block;
}

/* The block before, where another has taken over. */
static void moved(void *block, size_t bytes) {
    if (kept && kept != block)
        printf("gone %lld main %llu\n", at(), (unsigned long long)(uintptr_t)kept);
    stands(block, bytes);
}

int main(int argc, char **argv) {
    sigset_t go;
    int signal;
    start(argc, argv);
    void *heap = ((void *(*)(void))of("mi_heap_new"))();
    sigemptyset(&go);
    sigaddset(&go, SIGUSR1);
    sigprocmask(SIG_BLOCK, &go, NULL);
    ready();
    sigwait(&go, &signal);
    stands(((one)of("mi_malloc"))(2001), 2001);
    stands(((one)of("mi_zalloc"))(2002), 2002);
    stands(((two)of("mi_malloc_aligned"))(2003, 64), 2003);
    stands(((two)of("mi_zalloc_aligned"))(2004, 64), 2004);
    stands(((three)of("mi_malloc_aligned_at"))(2005, 64, 0), 2005);
    stands(((three)of("mi_zalloc_aligned_at"))(2006, 64, 0), 2006);
    stands(((two)of("mi_new_nothrow"))(2007, 0), 2007);
    stands(((two)of("mi_mallocn"))(3, 1000), 3000);
    stands(((three)of("mi_calloc_aligned"))(4, 1000, 64), 4000);
    stands(((re_one)of("mi_heap_malloc"))(heap, 3001), 3001);
    stands(((re_one)of("mi_heap_zalloc"))(heap, 3002), 3002);
    stands(((re_two)of("mi_heap_malloc_aligned"))(heap, 3003, 64), 3003);
    stands(((re_two)of("mi_heap_zalloc_aligned"))(heap, 3004, 64), 3004);
    stands(((re_two)of("mi_heap_calloc"))(heap, 5, 1000), 5000);
    stands(((re_two)of("mi_heap_mallocn"))(heap, 5, 1001), 5005);
    stands(((heap_four)of("mi_heap_calloc_aligned"))(heap, 5, 1002, 64), 5010);
    moved(((heap_re)of("mi_heap_realloc"))(heap, kept, 60000), 60000);
    moved(((heap_re)of("mi_heap_reallocf"))(heap, kept, 160000), 160000);
    moved(((heap_re)of("mi_heap_rezalloc"))(heap, kept, 360000), 360000);
    moved(((heap_re_aligned)of("mi_heap_realloc_aligned"))(heap, kept, 760000, 64), 760000);
    moved(((re_one)of("mi_realloc"))(kept, 1600000), 1600000);
    moved(((re_one)of("mi_reallocf"))(kept, 2600000), 2600000);
    moved(((re_one)of("mi_rezalloc"))(kept, 4600000), 4600000);
    moved(((re_two)of("mi_realloc_aligned"))(kept, 6600000, 64), 6600000);
    moved(((re_two)of("mi_rezalloc_aligned"))(kept, 9600000, 64), 9600000);
    moved(((re_two)of("mi_reallocn"))(kept, 3, 4000000), 12000000);
    moved(((re_two)of("mi_recalloc"))(kept, 4, 4000000), 16000000);
    ((void (*)(void *, size_t))of("mi_free_size"))(kept, 16000000);
    printf("gone %lld main %llu\n", at(), (unsigned long long)(uintptr_t)kept);
    return finish(0);
}
