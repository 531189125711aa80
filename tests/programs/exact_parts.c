/* Parts with known reuse, each a function of its own, for restrictions, types, sets and optimal replacement. */
// build: gcc -O1 -g -msse2 -fno-tree-vectorize -o $BIN $SRC
#include <emmintrin.h>
#include <stdlib.h>

enum { LINES = 64, ROUNDS = 1500 };
static volatile struct {
    long words[8];
} lines[LINES] __attribute__((aligned(4096)));
static volatile double floats[512] __attribute__((aligned(64)));
static __m128i vectors[256] __attribute__((aligned(64)));

/* LINES lines around and around: LRU misses all in a cache of fewer, the optimum does not. */
__attribute__((noinline)) void around(void) {
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < LINES; i++)
            lines[i].words[0] = i;
}

/* Every 16th line: in 16 sets all of them fall into one. */
__attribute__((noinline)) void strided(void) {
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < LINES; i += 16)
            lines[i].words[1] = i;
}

__attribute__((noinline)) void doubles(void) {
    for (int i = 0; i < 512; i++)
        floats[i] = 1;
}

__attribute__((noinline)) void wide(void) {
    for (int i = 0; i < 256; i++)
        *(volatile __m128i *)&vectors[i] = _mm_setzero_si128();
}

int main(void) {
    around();
    strided();
    doubles();
    wide();
    return 0;
}
