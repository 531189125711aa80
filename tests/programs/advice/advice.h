/* What the kernels of `cargo xtask bench advice` share: `PROGRAM KERNEL WAY SECONDS` repeats one round of
 * work for that long. A way is `flawed`, `mended`, or the name of a further fix. All ways of a kernel do the
 * same work with the same result.
 *
 * The program prints `ready` after its set-up, `checksum` of the first round, and at the end
 * `rounds_per_second`, of CPU time, which other programs lengthen less; those of several threads are added.
 * The comment `flaw: KERNEL` stands before the loop or the structure to change; the place ends at the next
 * brace in the first column. Values are small integers, so that sums do not depend on their order.
 */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* One way to do a kernel's work: what comes before the clock starts, and one round. */
struct way {
    const char *name;
    void (*set_up)(void);
    uint64_t (*round)(void);
};

struct kernel {
    const char *name;
    struct way ways[4];
    int threads; /* 0 or 1: the main thread does the rounds */
};

static uint64_t random_state = 0x9e3779b97f4a7c15u;

/* xorshift64* (Vigna 2016). */
static inline uint64_t draw(void) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545f4914f6cdd1du;
}

static inline uint64_t below(uint64_t limit) { return (uint64_t)(((unsigned __int128)draw() * limit) >> 64); }

/* Memory that is there: each page written once, before the clock starts. */
static inline void *filled(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory)
        exit(1);
    memset(memory, 0, bytes);
    return memory;
}

/* The same at a multiple of 2 MiB. */
static inline void *filled_aligned(size_t bytes, int advice) {
    void *memory = aligned_alloc(2 << 20, bytes);
    if (!memory)
        exit(1);
    if (advice && madvise(memory, bytes, advice))
        exit(1);
    memset(memory, 0, bytes);
    return memory;
}

/* 0 … n - 1 in random order. */
static inline void shuffle(uint32_t *order, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n - 1; i > 0; i--) {
        uint32_t j = (uint32_t)below(i + 1), other = order[i];
        order[i] = order[j], order[j] = other;
    }
}

static inline double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Number of the thread in a kernel of several. */
static __thread int thread_number;
static volatile uint64_t result;

struct worker {
    pthread_t thread;
    int number, of;
    const struct way *way;
    double seconds, rounds_per_second;
};

/* A processor for each of several threads, so that they work at the same time. */
static void stay(int number) {
    cpu_set_t processor;
    CPU_ZERO(&processor);
    CPU_SET(number, &processor);
    /* Where this one is not ours, the scheduler chooses. */
    pthread_setaffinity_np(pthread_self(), sizeof processor, &processor);
}

static void *repeat(void *argument) {
    struct worker *worker = (struct worker *)argument;
    thread_number = worker->number;
    if (worker->of > 1)
        stay(worker->number);
    double start = now(CLOCK_MONOTONIC), cpu_start = now(CLOCK_THREAD_CPUTIME_ID);
    long rounds = 0;
    do {
        result = worker->way->round();
        rounds++;
    } while (now(CLOCK_MONOTONIC) - start < worker->seconds);
    worker->rounds_per_second = (double)rounds / (now(CLOCK_THREAD_CPUTIME_ID) - cpu_start);
    return NULL;
}

static int run(const struct kernel *kernel, const struct way *way, double seconds) {
    if (way->set_up)
        way->set_up();
    printf("ready\n");
    printf("checksum %016llx\n", (unsigned long long)way->round());
    fflush(stdout);
    int threads = kernel->threads > 1 ? kernel->threads : 1;
    struct worker workers[8];
    double rate = 0;
    for (int i = 0; i < threads; i++) {
        workers[i].number = i;
        workers[i].of = threads;
        workers[i].way = way;
        workers[i].seconds = seconds;
        if (i && pthread_create(&workers[i].thread, NULL, repeat, &workers[i]))
            return 1;
    }
    repeat(&workers[0]);
    for (int i = 0; i < threads; i++) {
        if (i)
            pthread_join(workers[i].thread, NULL);
        rate += workers[i].rounds_per_second;
    }
    printf("rounds_per_second %.6f\n", rate);
    return 0;
}

static int choose(const struct kernel *kernels, size_t count, int argc, char **argv) {
    if (argc != 4)
        return fprintf(stderr, "usage: %s KERNEL flawed|mended|… SECONDS\n", argv[0]), 2;
    for (size_t i = 0; i < count; i++)
        for (size_t w = 0; w < 4 && kernels[i].ways[w].name; w++)
            if (!strcmp(argv[1], kernels[i].name) && !strcmp(argv[2], kernels[i].ways[w].name))
                return run(&kernels[i], &kernels[i].ways[w], atof(argv[3]));
    return fprintf(stderr, "%s has no kernel %s with a way %s\n", argv[0], argv[1], argv[2]), 2;
}

#define KERNELS(...)                                                                                                    \
    int main(int argc, char **argv) {                                                                                   \
        static const struct kernel kernels[] = {__VA_ARGS__};                                                           \
        return choose(kernels, sizeof kernels / sizeof *kernels, argc, argv);                                           \
    }
