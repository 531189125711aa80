/* Loads lines of which it uses eight bytes, half of the time below a function whose frame is larger than the part of a stack
 * that is copied, so that nobody can tell from there who called it. */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"

#define SIDE 1024
#define FRAME (64 << 10)

static APART uint64_t by_columns(const uint64_t *matrix, uint64_t sum) {
    for (size_t column = 0; column < SIDE; column++)
        for (size_t row = 0; row < SIDE; row++)
            sum = mix(sum + matrix[row * SIDE + column]); /* LOSS */
    return sum;
}

static APART uint64_t shallow(const uint64_t *matrix, uint64_t sum) { return by_columns(matrix, sum) + 1; }

static APART uint64_t deep(const uint64_t *matrix, uint64_t sum) {
    volatile char frame[FRAME];
    frame[0] = frame[FRAME - 1] = (char)sum;
    sum = by_columns(matrix, sum);
    return sum + (uint64_t)frame[FRAME - 1];
}

static APART uint64_t behind(const uint64_t *matrix, uint64_t sum) { return deep(matrix, sum) + 1; }

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *matrix = new_array((size_t)SIDE * SIDE), sum = 0;
    ready();
    while (more()) {
        sum = shallow(matrix, sum);
        sum = behind(matrix, sum);
    }
    return finish(sum);
}
