/* Walks over an array again and again, so that the next touch of each word comes after one round: use and reuse are one instruction, and
 * how long a round takes is told at the end. Arguments: seconds, words, and 1 for a walk that waits for floating point at each step. */
// build: gcc -O2 -g -o $BIN $SRC
#include "target.h"

static double cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    start(argc, argv);
    size_t words = argc > 2 ? (size_t)atol(argv[2]) : 12000;
    int slow = argc > 3 && atoi(argv[3]);
    volatile uint64_t *a = new_array(words);
    uint64_t sum = 0, rounds = 0;
    double x = 1;
    ready();
    double began = cpu_ns();
    for (; more(); rounds += 100)
        for (int round = 0; round < 100; round++)
            if (slow)
                for (size_t i = 0; i < words; i++)
                    sum += a[i], x = (x * 1.0000001 + 1e-9) * 0.9999999 + 1e-9;
            else
                for (size_t i = 0; i < words; i++)
                    sum += a[i];
    printf("ns a round %.0f\n", (cpu_ns() - began) / (double)rounds);
    return finish(sum + (x > 2));
}
