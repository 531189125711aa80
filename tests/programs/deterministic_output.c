/* A fixed amount of work, about the given seconds (default 5) on a machine of 2023: prints a line a fifth of a second
 * and ends with exit status 7. Traced or not, the output is the same. */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"

#define LINES_PER_SECOND 5
#define ROUNDS_PER_LINE 350

int main(int argc, char **argv) {
    start(argc, argv);
    double seconds = asked_seconds > 0 ? asked_seconds : 5;
    uint64_t *a = new_array(WORDS / 8), sum = 0;
    printf("working\n");
    ready();
    for (int line = 1; line <= (int)(seconds * LINES_PER_SECOND); line++) {
        for (uint64_t round = 0; round < ROUNDS_PER_LINE; round++)
            sum = mix(sum + ordinary_work(a, WORDS / 8, round));
        printf("line %d %016llx\n", line, (unsigned long long)sum);
        fflush(stdout);
    }
    finish(sum);
    return 7;
}
