/* A fixed amount of work, about the given seconds (default 5) on a machine of 2023, in steps of some 20 microseconds; the
 * clock is read after each step. Prints a line a fifth of a second and ends with exit status 7, traced or not; the longest
 * time between two clock readings, in milliseconds, goes to stderr: so long did the program stand still. */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"

#define LINES_PER_SECOND 5
#define STEPS_PER_LINE 11200
#define STEP_WORDS 4096

int main(int argc, char **argv) {
    start(argc, argv);
    double seconds = asked_seconds > 0 ? asked_seconds : 5;
    uint64_t *a = new_array(STEP_WORDS), sum = 0;
    double longest = 0, longest_at = 0, began;
    printf("working\n");
    ready();
    began = now();
    double last = began;
    for (int line = 1; line <= (int)(seconds * LINES_PER_SECOND); line++) {
        for (uint64_t step = 0; step < STEPS_PER_LINE; step++) {
            sum = mix(sum + ordinary_work(a, STEP_WORDS, step));
            double at = now();
            if (at - last > longest) {
                longest = at - last;
                longest_at = at;
            }
            last = at;
        }
        printf("line %d %016llx\n", line, (unsigned long long)sum);
        fflush(stdout);
        /* Writing to a full pipe is the reader's fault. */
        last = now();
    }
    fprintf(stderr, "gap %.3f ms at %.6f, ran %.3f s\n", longest * 1e3, longest_at, now() - began);
    finish(sum);
    return 7;
}
