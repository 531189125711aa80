/* What the target programs share: when to start and stop, an array, and work that a compiler cannot shorten.
 *
 * A program whose heaviest far reuse is known marks it in its source: USE:name stands in a comment at the end of the
 * line of the use, REUSE:name at that of the reuse; USE:name=function where there is no line to name. Lines that begin
 * with "// build:" are the commands that build it, without a shell: $SRC the source, $BIN the program, $OUT the directory
 * for anything else, $RUSTC the Rust compiler.
 *
 * Why each word is used three times a round: a word that is only written, read, written, read, ... has two pairs of the
 * same weight, write -> read and read -> write. touch_elsewhere() reads it once more, in turn from one of four lines, so
 * that write -> read keeps its weight and the way back is split into pairs of a quarter of it.
 */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))
/* noipa also keeps the compiler from cloning, renaming or merging the function, so that its name is the one written here. */
#define APART __attribute__((noipa, unused))

/* 8 MiB: larger than the private caches, and a pass takes a few milliseconds. */
#define WORDS ((size_t)1 << 20)

static double until;
static double asked_seconds;

static UNUSED double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static UNUSED void fail(const char *what) {
    perror(what);
    exit(1);
}

/* First argument: seconds to run; without it the program runs until it is killed. */
static UNUSED void start(int argc, char **argv) { asked_seconds = argc > 1 ? atof(argv[1]) : 0; }

/* Tells that the phase worth tracing begins. */
static UNUSED void ready(void) {
    until = asked_seconds > 0 ? now() + asked_seconds : 0;
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
}

static UNUSED int more(void) { return until == 0 || now() < until; }

static UNUSED int finish(uint64_t sum) {
    printf("checksum %016llx\n", (unsigned long long)sum);
    return 0;
}

static UNUSED uint64_t *new_array(size_t words) {
    void *a = mmap(NULL, words * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (a == MAP_FAILED)
        fail("mmap");
    return (uint64_t *)a;
}

/* One step of a xorshift generator (Marsaglia 2003): each step needs the one before, so that no loop is vectorised. */
static inline __attribute__((always_inline, unused)) uint64_t mix(uint64_t x) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

static APART uint64_t elsewhere_0(const uint64_t *a, size_t words, uint64_t x) {
    for (size_t i = 0; i < words; i++)
        x = mix(x + a[i]);
    return x;
}

static APART uint64_t elsewhere_1(const uint64_t *a, size_t words, uint64_t x) {
    for (size_t i = 0; i < words; i++)
        x = mix(x + a[i]) + 1;
    return x;
}

static APART uint64_t elsewhere_2(const uint64_t *a, size_t words, uint64_t x) {
    for (size_t i = 0; i < words; i++)
        x = mix(x + a[i]) + 2;
    return x;
}

static APART uint64_t elsewhere_3(const uint64_t *a, size_t words, uint64_t x) {
    for (size_t i = 0; i < words; i++)
        x = mix(x + a[i]) + 3;
    return x;
}

static UNUSED uint64_t touch_elsewhere(const uint64_t *a, size_t words, uint64_t round) {
    switch (round % 4) {
    case 0:
        return elsewhere_0(a, words, round);
    case 1:
        return elsewhere_1(a, words, round);
    case 2:
        return elsewhere_2(a, words, round);
    default:
        return elsewhere_3(a, words, round);
    }
}

/* Work for the programs that are about something else than the pair. */
static APART uint64_t ordinary_work(uint64_t *a, size_t words, uint64_t round) {
    uint64_t x = round + 1, sum = 0;
    for (size_t i = 0; i < words; i++)
        a[i] = x = mix(x);
    for (size_t i = 0; i < words; i++)
        sum = mix(sum + a[i]);
    return sum;
}
