/* Places where stacks are hard. First argument: "realigned" (a frame aligned to 64 bytes, with alloca), "vdso", "library"
   (waits in a library call), "thread", or "jit" (through generated code; a perf map is written). */
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#define KEEP __attribute__((noinline, noclone))

volatile int waiting = 1;
volatile int sink;

static void say_ready(void) {
    puts("ready");
    fflush(stdout);
}

KEEP int wait_here(int n) {
    say_ready();
    while (waiting) {}
    return n + sink;
}

KEEP int realigned(int n) {
    _Alignas(64) volatile char line[128];
    volatile char *more = alloca(n * 100);
    line[n] = 1;
    more[n] = 2;
    int got = wait_here(n);
    return got + line[n] + more[n];
}

KEEP int reads_clock(int n) {
    struct timespec now;
    say_ready();
    while (waiting) { clock_gettime(CLOCK_MONOTONIC, &now); sink += now.tv_nsec; }
    return n;
}

KEEP int in_library(int n) {
    say_ready();
    pause();
    return n + sink;
}

KEEP void *thread(void *n) {
    sink += wait_here(1);
    return n;
}

KEEP int through_generated_code(int n) {
    /* push rbp; mov rbp, rsp; mov rax, rsi; call rax; pop rbp; ret */
    static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf0, 0xff, 0xd0, 0x5d, 0xc3};
    void *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, code, sizeof code);
    if (!getenv("NO_PERF_MAP")) {
        char path[64];
        snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
        FILE *map = fopen(path, "w");
        if (!map) return 1;
        fprintf(map, "%lx %zx generated::function\n", (unsigned long)page, sizeof code);
        fclose(map);
    }
    int got = ((int (*)(int, int (*)(int)))page)(n, wait_here);
    return got + sink;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    int got = 0;
    if (!strcmp(how, "realigned")) got = realigned(argc);
    if (!strcmp(how, "vdso")) got = reads_clock(argc);
    if (!strcmp(how, "library")) got = in_library(argc);
    if (!strcmp(how, "jit")) got = through_generated_code(argc);
    if (!strcmp(how, "thread")) {
        pthread_t id;
        pthread_create(&id, 0, thread, 0);
        pthread_join(id, 0);
    }
    return got + sink;
}
