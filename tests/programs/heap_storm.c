/* Allocates and gives back as often as it can, mostly little, and says how often. One block of each size stays. */
// build: gcc -g -O1 -o $BIN $SRC
#include "target.h"

static APART void *site_storm(size_t bytes) { return malloc(bytes); }

int main(int argc, char **argv) {
    uint64_t calls = 0, sum = 0;
    start(argc, argv);
    ready();
    while (more()) {
        for (int i = 0; i < 1000; i++) {
            unsigned char *block = site_storm(i % 50 == 0 ? 4000 : 64);
            *block = (unsigned char)i;
            sum += *block;
            free(block);
            calls++;
        }
    }
    printf("calls %llu\n", (unsigned long long)calls);
    return finish(sum);
}
