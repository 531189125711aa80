/* A signal handler that loads lines of its own: nobody called it, so neither `main` nor `raise` pays for them.
 *
 * No arguments. Both arrays are larger than a first level; of each line 8 bytes are used. */
// build: gcc -O1 -g -fno-tree-vectorize -o $BIN $SRC
#include <signal.h>

enum { LINES = 1 << 14, WORDS = 8, SIGNALS = 4 };
static volatile long ours[LINES * WORDS] __attribute__((aligned(64)));
static volatile long theirs[LINES * WORDS] __attribute__((aligned(64)));
static volatile sig_atomic_t handled;

static void handler(int signal) {
    for (int i = 0; i < LINES; i++)
        theirs[i * WORDS];
    handled += signal;
}

__attribute__((noinline)) static void walk(void) {
    for (int i = 0; i < LINES; i++)
        ours[i * WORDS];
}

int main(void) {
    signal(SIGUSR1, handler);
    for (int i = 0; i < SIGNALS; i++) {
        raise(SIGUSR1);
        walk();
    }
    return handled == SIGNALS * SIGUSR1 ? 0 : 1;
}
