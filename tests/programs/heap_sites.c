/* Known blocks: allocates in every way after SIGUSR1, in functions named after what they allocate, and says at which moment which
 * block stood ("at TIME NAME ADDRESS BYTES", TIME of CLOCK_MONOTONIC in ns), was gone ("gone TIME NAME ADDRESS") or was never any
 * ("none TIME NAME ADDRESS"). With a second argument, "fork", a child goes on with a copy of the blocks. */
// build: gcc -g -O1 -pthread -o $BIN $SRC
// build: gcc -g -O1 -pthread -static -o $BIN.static $SRC
#include "target.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

static long long at(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void stands(const char *name, const void *block, size_t bytes) {
    printf("at %lld %s %llu %zu\n", at(), name, (unsigned long long)(uintptr_t)block, bytes);
}

/* No block of the program. */
static void none(const char *name, const volatile void *address) {
    printf("none %lld %s %llu\n", at(), name, (unsigned long long)(uintptr_t)address);
}

static void gone(const char *name, uintptr_t block) { printf("gone %lld %s %llu\n", at(), name, (unsigned long long)block); }

static APART void *site_malloc(size_t bytes) { return malloc(bytes); }
static APART void *site_calloc(size_t n, size_t bytes) { return calloc(n, bytes); }
static APART void *site_realloc(void *block, size_t bytes) { return realloc(block, bytes); }
static APART void *site_reallocarray(void *block, size_t n, size_t bytes) { return reallocarray(block, n, bytes); }
static APART void *site_memalign(size_t bytes) { return aligned_alloc(256, bytes); }
static APART void *site_posix(size_t bytes) {
    void *block = NULL;
    if (posix_memalign(&block, 4096, bytes) != 0)
        fail("posix_memalign");
    return block;
}
static APART void *site_mmap(size_t bytes) {
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        fail("mmap");
    return block;
}
static APART void *site_small(void) { return malloc(24); }

static pthread_barrier_t all_stand;

static APART void *site_thread(size_t bytes) { return malloc(bytes); }

static void *in_thread(void *number) {
    for (int i = 0; i < 50; i++) {
        void *block = site_thread(2000 + i);
        stands("site_thread", block, 2000 + (size_t)i);
        free(block);
        gone("site_thread", (uintptr_t)block);
    }
    size_t bytes = 40000 + 16 * (size_t)(uintptr_t)number;
    void *block = site_thread(bytes);
    pthread_barrier_wait(&all_stand);
    stands("site_thread", block, bytes);
    pthread_barrier_wait(&all_stand);
    free(block);
    return NULL;
}

/* Only small blocks: the memory for them is mapped inside of malloc. */
static void *in_small_thread(void *file) {
    volatile char stack[64];
    for (int i = 0; i < 1000; i++)
        ((volatile char *)site_small())[0] = 1;
    none("small", site_small());
    stack[0] = 1;
    none("stack", stack);
    none("file", file);
    return NULL;
}

static void what_is_no_block(const char *program) {
    int fd = open(program, O_RDONLY);
    void *file = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, fd, 0);
    if (fd < 0 || file == MAP_FAILED)
        fail("mmap of a file");
    pthread_t thread;
    pthread_create(&thread, NULL, in_small_thread, file);
    pthread_join(thread, NULL);
}

static void in_every_way(void) {
    char *a = site_malloc(100000), *b = site_calloc(5000, 8), *c = site_memalign(8192), *d = site_posix(70000), *e = site_mmap(1 << 20);
    char *small = site_small();
    stands("site_malloc", a, 100000);
    stands("site_calloc", b, 40000);
    stands("site_memalign", c, 8192);
    stands("site_posix", d, 70000);
    stands("site_mmap", e, 1 << 20);
    /* Grown twice: the first time something stands behind it. */
    char *grown = site_malloc(5000), *wall = site_malloc(3000);
    uintptr_t before = (uintptr_t)grown;
    stands("site_malloc", grown, 5000);
    grown = site_realloc(grown, 300000);
    stands("site_realloc", grown, 300000);
    if ((uintptr_t)grown != before)
        gone("site_malloc", before);
    before = (uintptr_t)grown;
    grown = site_reallocarray(grown, 10, 100000);
    stands("site_reallocarray", grown, 1000000);
    /* Shrunk below what is followed: it stays known. */
    grown = site_realloc(grown, 100);
    stands("site_realloc", grown, 100);
    free(grown);
    gone("site_realloc", (uintptr_t)grown);
    free(a);
    gone("site_malloc", (uintptr_t)a);
    /* The same place again, from elsewhere: who stood there depends on when. */
    char *again = site_calloc(25000, 4);
    stands("site_calloc", again, 100000);
    munmap(e, 1 << 20);
    gone("site_mmap", (uintptr_t)e);
    memset(small, 1, 24);
    /* Kept, so that it can be looked for at any later time. */
    stands("site_posix", d, 70000);
    (void)wall;
}

int main(int argc, char **argv) {
    sigset_t go;
    int signal;
    start(argc, argv);
    sigemptyset(&go);
    sigaddset(&go, SIGUSR1);
    sigprocmask(SIG_BLOCK, &go, NULL);
    char *early = site_malloc(30000);
    ready();
    sigwait(&go, &signal);
    what_is_no_block(argv[0]);
    in_every_way();
    pthread_t threads[4];
    pthread_barrier_init(&all_stand, NULL, 4);
    for (uintptr_t n = 0; n < 4; n++)
        pthread_create(&threads[n], NULL, in_thread, (void *)n);
    for (int n = 0; n < 4; n++)
        pthread_join(threads[n], NULL);
    if (argc > 2 && strcmp(argv[2], "fork") == 0) {
        char *block = site_malloc(123456), *other = site_malloc(7777);
        stands("site_malloc", block, 123456);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            usleep(300000);
            printf("child %d\n", (int)getpid());
            stands("site_malloc", block, 123456);
            free(block);
            gone("site_malloc", (uintptr_t)block);
            char *own = site_calloc(1, 9999);
            stands("site_calloc", own, 9999);
            stands("site_malloc", other, 7777);
            printf("parent\n");
            fflush(stdout);
            _exit(0);
        }
        waitpid(child, NULL, 0);
        stands("site_malloc", block, 123456);
        free(block);
        gone("site_malloc", (uintptr_t)block);
    }
    free(early);
    return finish(0);
}
