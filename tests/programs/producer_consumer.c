/* Two threads hand buffers over: what one writes, the other reads. Two buffers, so that both threads run at a time. */
// build: gcc -O1 -g -pthread -o $BIN $SRC
#include "target.h"
#include <pthread.h>
#include <semaphore.h>

static uint64_t *buffers[2];
static sem_t empty, full;
static volatile int stop;

static void *producer(void *arg) {
    uint64_t x = 1;
    for (uint64_t round = 0;; round++) {
        sem_wait(&empty);
        if (stop)
            return arg;
        uint64_t *a = buffers[round % 2];
        for (size_t i = 0; i < WORDS; i++) {
            x = mix(x);
            a[i] = x; /* USE:handed_over */
        }
        sem_post(&full);
    }
}

static APART uint64_t consume(const uint64_t *a, uint64_t sum) {
    for (size_t i = 0; i < WORDS; i++)
        sum = mix(sum + a[i]); /* REUSE:handed_over */
    return sum;
}

int main(int argc, char **argv) {
    start(argc, argv);
    pthread_t thread;
    buffers[0] = new_array(WORDS);
    buffers[1] = new_array(WORDS);
    sem_init(&empty, 0, 2);
    sem_init(&full, 0, 0);
    ready();
    if (pthread_create(&thread, NULL, producer, NULL) != 0)
        fail("pthread_create");
    uint64_t sum = 0;
    for (uint64_t round = 0; more(); round++) {
        sem_wait(&full);
        sum = consume(buffers[round % 2], sum);
        /* In turn by pairs of rounds: each buffer must see all four lines. */
        sum ^= touch_elsewhere(buffers[round % 2], WORDS, round / 2);
        sem_post(&empty);
    }
    stop = 1;
    sem_post(&empty);
    sem_post(&empty);
    pthread_join(thread, NULL);
    return finish(sum);
}
