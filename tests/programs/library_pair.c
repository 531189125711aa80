/* An array that the program writes and a function of a shared library reads. One source, compiled twice. */
// build: gcc -O1 -g -fPIC -shared -DLIBRARY -o $OUT/liblibrary_pair.so $SRC
// build: gcc -O1 -g -o $BIN $SRC -L$OUT -llibrary_pair -Wl,-rpath,$ORIGIN
#include "target.h"

uint64_t library_total(const uint64_t *a, size_t words, uint64_t sum);

#ifdef LIBRARY
uint64_t library_total(const uint64_t *a, size_t words, uint64_t sum) {
    for (size_t i = 0; i < words; i++)
        sum = mix(sum + a[i]); /* REUSE:across_library */
    return sum;
}
#else
static APART void produce(uint64_t *a, size_t words, uint64_t x) {
    for (size_t i = 0; i < words; i++) {
        x = mix(x);
        a[i] = x; /* USE:across_library */
    }
}

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *a = new_array(WORDS), sum = 0;
    ready();
    for (uint64_t round = 0; more(); round++) {
        produce(a, WORDS, round + 1);
        sum = library_total(a, WORDS, sum);
        sum ^= touch_elsewhere(a, WORDS, round);
    }
    return finish(sum);
}
#endif
