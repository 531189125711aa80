/* What the kernels of `cargo xtask bench accuracy` share: `PROGRAM KERNEL REPETITIONS` does the kernel's whole work that many
 * times, each time the same, and prints a checksum after each.
 *
 * Memory taken with take() lies at the same place in each repetition and is filled anew; nodes come from malloc and are
 * freed. So each repetition but the first makes the same accesses after the same accesses, however many there are, and what
 * a sampler sees of a long run can be compared with the difference of two short exact runs.
 */
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_state;

/* xorshift64* (Vigna 2016). */
static inline uint64_t draw(void) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545f4914f6cdd1du;
}

static inline uint64_t below(uint64_t limit) { return (uint64_t)((unsigned __int128)draw() * limit >> 64); }

static char *arena;
static size_t arena_used;
enum { ARENA = 96 << 20 };

static void *take(size_t bytes) {
    void *memory = arena + arena_used;
    arena_used += (bytes + 4095) & ~(size_t)4095;
    if (arena_used > ARENA)
        abort();
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

struct kernel {
    const char *name;
    uint64_t (*work)(void);
};

static int run(const struct kernel *kernels, size_t count, int argc, char **argv) {
    arena = aligned_alloc(4096, ARENA);
    if (!arena || argc != 3)
        return fprintf(stderr, "usage: %s KERNEL REPETITIONS\n", argv[0]), 2;
    for (size_t i = 0; i < count; i++)
        if (!strcmp(argv[1], kernels[i].name)) {
            uint64_t sum = 0;
            for (long left = atol(argv[2]); left > 0; left--) {
                random_state = 0x9e3779b97f4a7c15u;
                arena_used = 0;
                sum = sum * 31 + kernels[i].work();
                if (printf("%016llx\n", (unsigned long long)sum) < 0 || fflush(stdout))
                    return 1;
            }
            return 0;
        }
    return fprintf(stderr, "%s has no kernel %s\n", argv[0], argv[1]), 2;
}

#define KERNELS(...)                                                                                                    \
    int main(int argc, char **argv) {                                                                                   \
        static const struct kernel kernels[] = {__VA_ARGS__};                                                           \
        return run(kernels, sizeof kernels / sizeof *kernels, argc, argv);                                              \
    }
