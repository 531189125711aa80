/* Calls and loops with known dependences and known communication, for the tasks of exact runs.
 *
 * `in_turn`: 200 calls of `work`, each with the last result; `apart`: 200 calls that wait for nothing.
 * `hand_over`: `produce` writes 1000 words that `consume` adds. `stepped`: a loop whose only chain is a
 * counter in memory, on one line. With "kill" the program kills itself at the end, with "share" a thread of
 * its own adds the words that the main thread wrote. */
// build: gcc -O1 -g -pthread -o $BIN $SRC
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { CALLS = 200, TURNS = 1000 };

static unsigned long words[TURNS], results[CALLS];
static volatile unsigned long counter;

__attribute__((noinline)) unsigned long work(unsigned long value) {
    long turns = TURNS;
    __asm__ volatile("1: imul %0, %0\n dec %1\n jnz 1b" : "+r"(value), "+r"(turns) : : "cc");
    return value;
}

__attribute__((noinline)) unsigned long in_turn(unsigned long value) {
    for (int i = 0; i < CALLS; i++)
        value = work(value);
    return value;
}

__attribute__((noinline)) void apart(unsigned long value) {
    for (int i = 0; i < CALLS; i++)
        results[i] = work(value);
}

__attribute__((noinline)) void produce(unsigned long factor) {
    for (unsigned long i = 0; i < TURNS; i++)
        words[i] = factor * (i ^ factor);
}

__attribute__((noinline)) unsigned long consume(void) {
    unsigned long sum = 0;
    for (int i = 0; i < TURNS; i++)
        sum += words[i];
    return sum;
}

__attribute__((noinline)) unsigned long hand_over(unsigned long factor) {
    produce(factor);
    return consume();
}

__attribute__((noinline)) void stepped(void) {
    for (int i = 0; i < TURNS; i++) {
        counter = counter + 3; /* stepped */
        words[i] = words[i] * 7 + 1;
    }
}

static void *add(void *sum) {
    *(unsigned long *)sum = consume();
    return 0;
}

int main(int argc, char **argv) {
    unsigned long sink = in_turn((unsigned long)argc);
    apart((unsigned long)argc);
    sink += hand_over((unsigned long)argc + 2);
    stepped();
    if (argc > 1 && !strcmp(argv[1], "kill"))
        kill(getpid(), SIGKILL);
    if (argc > 1 && !strcmp(argv[1], "share")) {
        pthread_t other;
        pthread_create(&other, 0, add, results);
        pthread_join(other, 0);
        sink += results[0];
    }
    return sink == 1;
}
