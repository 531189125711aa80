/* Starts and ends 1,000 threads at an even pace within the given time (default 8 s); each does some work. The checksum
 * is the same in every run. */
// build: gcc -O1 -g -pthread -o $BIN $SRC
#include "target.h"
#include <pthread.h>

#define THREADS 1000
#define ALIVE 8
#define THREAD_WORDS 4096

static void *work(void *arg) {
    uint64_t *a = (uint64_t *)malloc(THREAD_WORDS * sizeof *a), sum = 0;
    if (!a)
        fail("malloc");
    for (uint64_t pass = 0; pass < 50; pass++)
        sum += ordinary_work(a, THREAD_WORDS, (uint64_t)(uintptr_t)arg + pass);
    free(a);
    return (void *)(uintptr_t)sum;
}

int main(int argc, char **argv) {
    start(argc, argv);
    double seconds = asked_seconds > 0 ? asked_seconds : 8;
    pthread_t threads[ALIVE];
    uint64_t sum = 0;
    void *result;
    ready();
    double began = now();
    for (uintptr_t n = 0; n < THREADS + ALIVE; n++) {
        if (n >= ALIVE) {
            pthread_join(threads[n % ALIVE], &result);
            sum ^= (uint64_t)(uintptr_t)result;
        }
        if (n >= THREADS)
            continue;
        double ahead = began + seconds * (double)n / THREADS - now();
        if (ahead > 0)
            usleep((useconds_t)(ahead * 1e6));
        if (pthread_create(&threads[n % ALIVE], NULL, work, (void *)n) != 0)
            fail("pthread_create");
    }
    printf("threads %d\n", THREADS);
    return finish(sum);
}
