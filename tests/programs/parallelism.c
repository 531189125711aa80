/* Loops whose dependences are known, for the parallelism of exact runs. Argument: what to do at the end.
 *
 * `chain`: 1000 multiplications in a row, `apart`: 1000 additions that wait for nothing, both called twice;
 * `flips`: a branch whose outcome a generator draws. With "kill" the program kills itself, with
 * "thread" a thread of its own runs `chain` a thousand times. */
// build: gcc -O1 -g -pthread -o $BIN $SRC
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { TURNS = 1000 };

__attribute__((noinline)) long chain(long value) {
    long turns = TURNS;
    __asm__ volatile("1: imul %0, %0\n dec %1\n jnz 1b" : "+r"(value), "+r"(turns) : : "cc");
    return value;
}

__attribute__((noinline)) long apart(long value) {
    long turns = TURNS, result;
    __asm__ volatile("1: lea 1(%2), %0\n dec %1\n jnz 1b" : "=&r"(result), "+r"(turns) : "r"(value) : "cc");
    return result;
}

__attribute__((noinline)) long flips(uint64_t seed) {
    long taken = 0;
    for (int i = 0; i < TURNS; i++) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        if (seed & 1) /* flip */
            __asm__ volatile("" : "+r"(taken));
        else
            taken += 3;
    }
    return taken;
}

static void *run(void *unused) {
    for (int i = 0; i < TURNS; i++)
        chain(i);
    return unused;
}

int main(int argc, char **argv) {
    volatile long sink = 0;
    for (int i = 0; i < 2; i++)
        sink += chain(i) + apart(i) + flips(88172645463325252u + (uint64_t)i);
    if (argc > 1 && !strcmp(argv[1], "kill"))
        kill(getpid(), SIGKILL);
    if (argc > 1 && !strcmp(argv[1], "thread")) {
        pthread_t other;
        pthread_create(&other, 0, run, 0);
        pthread_join(other, 0);
    }
    return sink == 1;
}
