/* Three branches in a loop: of a random bit, of one random number in ten, and of every third turn.
 * `branches SECONDS` */
// build: gcc -O1 -g -o $BIN $SRC
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile long bits, tenths, thirds;

static uint64_t next(uint64_t state) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^ state << 17;
}

__attribute__((noinline)) static uint64_t count(uint64_t state) {
    for (long turn = 0; turn < 1000000; turn++) {
        state = next(state);
        if (state & 1)
            bits++;
        if ((state >> 8) % 10 == 0)
            tenths++;
        if (turn % 3 == 0)
            thirds++;
    }
    return state;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    uint64_t state = 88172645463325252u;
    for (clock_t begun = clock(); (double)(clock() - begun) / CLOCKS_PER_SEC < seconds;)
        state = count(state);
    printf("%ld %ld %ld\n", bits, tenths, thirds);
    return state == 0;
}
