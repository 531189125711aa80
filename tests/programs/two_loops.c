/* Two loops over one array: the first writes it, the second reads it. */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *a = new_array(WORDS), sum = 0;
    ready();
    for (uint64_t round = 0; more(); round++) {
        uint64_t x = round + 1;
        for (size_t i = 0; i < WORDS; i++) {
            x = mix(x);
            a[i] = x; /* USE:written_read */
        }
        for (size_t i = 0; i < WORDS; i++)
            sum = mix(sum + a[i]); /* REUSE:written_read */
        sum ^= touch_elsewhere(a, WORDS, round);
    }
    return finish(sum);
}
