/* Works in threads whose names are any bytes: one thread for each argument after the first, named by it (the kernel keeps
 * 15 bytes). The first argument is the time to run.
 */
// build: gcc -O1 -g -pthread -o $BIN $SRC
#include "target.h"
#include <pthread.h>
#include <sys/prctl.h>

static uint64_t sums[64];

static void *work(void *name) {
    static _Atomic unsigned next;
    unsigned number = next++;
    prctl(PR_SET_NAME, name);
    uint64_t *a = new_array(WORDS / 16), sum = 0;
    for (uint64_t round = 0; more(); round++)
        sum ^= ordinary_work(a, WORDS / 16, round);
    sums[number % 64] = sum;
    return NULL;
}

int main(int argc, char **argv) {
    start(argc, argv);
    ready();
    pthread_t threads[64];
    int count = argc - 2 > 64 ? 64 : argc - 2;
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, work, argv[i + 2]))
            fail("pthread_create");
    if (count <= 0)
        work("main");
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    return finish(sums[0]);
}
