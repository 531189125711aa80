/* Linked with LeakSanitizer, which looks for leaks at the end and finds one: exit status 23. Under ptrace it cannot look,
 * and says so. */
// build: gcc -O0 -g -fsanitize=leak -o $BIN $SRC
#include "target.h"

static uint64_t *volatile kept;

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *a = new_array(WORDS / 8), sum = 0;
    kept = (uint64_t *)malloc(100);
    kept = NULL;
    ready();
    for (uint64_t round = 0; more(); round++)
        sum ^= ordinary_work(a, WORDS / 8, round);
    return finish(sum);
}
