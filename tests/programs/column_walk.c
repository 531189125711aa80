/* The demo: two habits that cost cache. A matrix that lies row by row is walked column by column, and an array larger
 * than the caches is passed over twice where one pass would do. */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"

#define SIDE 1024
#define LONG_WORDS (4 * WORDS)

static APART uint64_t sum_by_columns(const uint64_t *matrix, uint64_t sum) {
    for (size_t column = 0; column < SIDE; column++)
        for (size_t row = 0; row < SIDE; row++)
            sum = mix(sum + matrix[row * SIDE + column]);
    return sum;
}

static APART void generate(uint64_t *a, uint64_t x) {
    for (size_t i = 0; i < LONG_WORDS; i++) {
        x = mix(x);
        a[i] = x; /* USE:second_pass */
    }
}

static APART uint64_t total(const uint64_t *a, uint64_t sum) {
    for (size_t i = 0; i < LONG_WORDS; i++)
        sum = mix(sum + a[i]); /* REUSE:second_pass */
    return sum;
}

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *matrix = new_array((size_t)SIDE * SIDE), *a = new_array(LONG_WORDS), sum = 0;
    ready();
    for (uint64_t round = 0; more(); round++) {
        sum = sum_by_columns(matrix, sum);
        generate(a, round + 1);
        sum = total(a, sum);
        sum ^= touch_elsewhere(a, LONG_WORDS, round);
    }
    return finish(sum);
}
