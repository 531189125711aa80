/* Four threads work; after half of the time one that is not the first ends the process with status 9 ("exit"), or turns
 * it into another program that works for the other half and ends with status 5 ("exec"). */
// build: gcc -O1 -g -pthread -o $BIN $SRC
#include "target.h"
#include <pthread.h>
#include <string.h>

static const char *mode = "exit";

static void *work(void *arg) {
    uint64_t *a = new_array(WORDS / 8);
    double half = now() + asked_seconds / 2;
    for (uint64_t round = 0;; round++) {
        ordinary_work(a, WORDS / 8, round);
        if (arg == NULL || now() < half)
            continue;
        if (strcmp(mode, "exit") == 0)
            exit(9);
        char seconds[32];
        snprintf(seconds, sizeof seconds, "%f", asked_seconds / 2);
        execl("/proc/self/exe", "executed", seconds, "then", (char *)NULL);
        fail("execl");
    }
}

int main(int argc, char **argv) {
    start(argc, argv);
    if (argc > 2)
        mode = argv[2];
    if (strcmp(mode, "then") == 0) {
        uint64_t *a = new_array(WORDS / 8);
        double end = now() + asked_seconds;
        for (uint64_t round = 0; now() < end; round++)
            ordinary_work(a, WORDS / 8, round);
        printf("executed\n");
        return 5;
    }
    ready();
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)i) != 0)
            fail("pthread_create");
    work(NULL);
}
