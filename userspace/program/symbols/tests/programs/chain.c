/* A chain of calls that ends in a loop. Lines that tests look for carry "AT name". */
#include <stdio.h>
#include <unistd.h>
#define KEEP __attribute__((noinline, noclone))

volatile int waiting = 1;
volatile int sink;

KEEP int leaf(int n) {
    while (waiting) {} /* AT leaf */
    return n + sink;
}

KEEP int middle(int n) {
    int got = leaf(n + 1); /* AT middle */
    return got + sink;
}

static inline __attribute__((always_inline)) int folded(int n) {
    int got = middle(n * 3); /* AT folded */
    return got + sink;
}

KEEP int outer(int n) {
    int got = folded(n + 1); /* AT outer */
    return got + sink;
}

KEEP int recursive(int n) {
    int got = n > 0 ? recursive(n - 1) : outer(n); /* AT recursive */
    return got + sink;
}

int main(int argc, char **argv) {
    (void)argv;
    puts("ready");
    fflush(stdout);
    int got = argc > 1 ? recursive(argc > 2 ? 2000 : 100) : outer(argc); /* AT main */
    return got + sink;
}
