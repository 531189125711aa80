/* Walks over an array again and again, so that the next touch of each word comes after one round, and
 * how long a round takes is told at the end. Use and reuse are one instruction. Arguments: seconds,
 * words, and 1 for a walk that waits for floating point at each step, 2 for one that waits and loads
 * and stores each word, so that a store is the use and a load the reuse; 3 for one that does so with
 * halves of words, 4 for one that only loads these. Walks with stores wait because without that, a
 * processor was seen to run them up to 1.7 times slower for tens of microseconds after an
 * interruption. */
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
    int how = argc > 3 ? atoi(argv[3]) : 0;
    volatile uint64_t *a = new_array(words);
    volatile uint32_t *halves = (volatile uint32_t *)a;
    uint64_t sum = 0, rounds = 0;
    double x = 1;
    ready();
    double began = cpu_ns();
    for (; more(); rounds += 100)
        for (int round = 0; round < 100; round++)
            if (how == 1)
                for (size_t i = 0; i < words; i++)
                    sum += a[i], x = (x * 1.0000001 + 1e-9) * 0.9999999 + 1e-9;
            else if (how == 2)
                for (size_t i = 0; i < words; i++)
                    a[i] = a[i] + 1, x = (x * 1.0000001 + 1e-9) * 0.9999999 + 1e-9;
            else if (how == 3)
                for (size_t i = 0; i < 2 * words; i++)
                    halves[i] = halves[i] + 1, x = (x * 1.0000001 + 1e-9) * 0.9999999 + 1e-9;
            else if (how == 4)
                for (size_t i = 0; i < 2 * words; i++)
                    sum += halves[i], x = (x * 1.0000001 + 1e-9) * 0.9999999 + 1e-9;
            else
                for (size_t i = 0; i < words; i++)
                    sum += a[i];
    printf("ns a round %.0f\n", (cpu_ns() - began) / (double)rounds);
    return finish(sum + (x > 2));
}
