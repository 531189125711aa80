/* Compiled as distributions do, without frame pointers; use and reuse stand at the end of known call paths. */
// build: gcc -O2 -g -fomit-frame-pointer -fno-optimize-sibling-calls -o $BIN $SRC
// path USE:deep_calls write_inner write_middle write_outer main
// path REUSE:deep_calls read_inner read_middle read_outer main
#include "target.h"

static APART void write_inner(uint64_t *a, uint64_t x) {
    for (size_t i = 0; i < WORDS; i++) {
        x = mix(x);
        a[i] = x; /* USE:deep_calls */
    }
}

static APART uint64_t write_middle(uint64_t *a, uint64_t x, uint64_t y) {
    write_inner(a, x);
    return x * y + 1;
}

static APART uint64_t write_outer(uint64_t *a, uint64_t x) { return write_middle(a, x, x + 3) ^ x; }

static APART uint64_t read_inner(const uint64_t *a, uint64_t sum) {
    for (size_t i = 0; i < WORDS; i++)
        sum = mix(sum + a[i]); /* REUSE:deep_calls */
    return sum;
}

static APART uint64_t read_middle(const uint64_t *a, uint64_t sum, uint64_t y) { return read_inner(a, sum) * y; }

static APART uint64_t read_outer(const uint64_t *a, uint64_t sum) { return read_middle(a, sum, sum | 1) + sum; }

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *a = new_array(WORDS), sum = 1;
    ready();
    for (uint64_t round = 0; more(); round++) {
        sum += write_outer(a, round + 1);
        sum = read_outer(a, sum);
        sum ^= touch_elsewhere(a, WORDS, round);
    }
    return finish(sum);
}
