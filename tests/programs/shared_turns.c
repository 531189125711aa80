/* Two processes take turns at shared memory: one writes it, the other reads it, so the next touch of a written word is the other
 * process'. Second argument: anonymous (of a fork), memfd (at another address there), or private (memory of their own each). */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"
#include <string.h>
#include <sys/wait.h>

#define TURN_WORDS (WORDS / 8)
#define TURN_BYTES (TURN_WORDS * sizeof(uint64_t))

static APART void produce(uint64_t *a, uint64_t round) {
    for (size_t i = 0; i < TURN_WORDS; i++)
        a[i] = round + i;
}

static APART uint64_t consume(const uint64_t *a) {
    uint64_t sum = 0;
    for (size_t i = 0; i < TURN_WORDS; i++)
        sum = mix(sum + a[i]);
    return sum;
}

int main(int argc, char **argv) {
    int there[2], back[2], file = -1, flags = MAP_SHARED;
    uint64_t sum = 0, round = 0;
    char token = 0;
    start(argc, argv);
    const char *how = argc > 2 ? argv[2] : "anonymous";
    if (!strcmp(how, "memfd")) {
        file = memfd_create("turns", 0);
        if (file < 0 || ftruncate(file, TURN_BYTES))
            fail("memfd_create");
    } else {
        flags = (!strcmp(how, "private") ? MAP_PRIVATE : MAP_SHARED) | MAP_ANONYMOUS;
    }
    uint64_t *a = mmap(NULL, TURN_BYTES, PROT_READ | PROT_WRITE, flags, file, 0);
    if (a == MAP_FAILED || pipe(there) || pipe(back))
        fail("setup");
    pid_t reader = fork();
    if (reader == 0) {
        close(there[1]);
        if (file >= 0) {
            void *elsewhere = mmap(NULL, TURN_BYTES, PROT_READ, MAP_SHARED, file, 0);
            munmap(a, TURN_BYTES);
            a = elsewhere;
        }
        while (read(there[0], &token, 1) == 1) {
            sum = mix(sum + consume(a));
            if (write(back[1], &token, 1) != 1)
                break;
        }
        _exit(0);
    }
    ready();
    while (more()) {
        produce(a, round++);
        if (write(there[1], &token, 1) != 1 || read(back[0], &token, 1) != 1)
            fail("turn");
    }
    close(there[1]);
    waitpid(reader, NULL, 0);
    return finish(sum);
}
