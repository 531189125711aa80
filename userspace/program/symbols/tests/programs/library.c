/* A library to be loaded late. Lines that tests look for carry "AT name". */
volatile int waiting = 1;

static __attribute__((noinline)) int hidden(int n) {
    while (waiting) {} /* AT hidden */
    return n;
}

int exported_wait(int n) {
    int got = hidden(n); /* AT exported_wait */
    return got + waiting;
}
