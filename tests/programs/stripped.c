/* No debug information and no symbol table: only the names that the dynamic linker needs are left. */
// build: gcc -O1 -rdynamic -o $BIN $SRC
// build: strip --strip-all $BIN
#include "target.h"

/* USE:by_dynamic_symbol=exported_write */
__attribute__((noipa)) void exported_write(uint64_t *a, size_t words, uint64_t x) {
    for (size_t i = 0; i < words; i++) {
        x = mix(x);
        a[i] = x;
    }
}

/* REUSE:by_dynamic_symbol=exported_read */
__attribute__((noipa)) uint64_t exported_read(const uint64_t *a, size_t words, uint64_t sum) {
    for (size_t i = 0; i < words; i++)
        sum = mix(sum + a[i]);
    return sum;
}

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *a = new_array(WORDS), sum = 0;
    ready();
    for (uint64_t round = 0; more(); round++) {
        exported_write(a, WORDS, round + 1);
        sum = exported_read(a, WORDS, sum);
        sum ^= touch_elsewhere(a, WORDS, round);
    }
    return finish(sum);
}
