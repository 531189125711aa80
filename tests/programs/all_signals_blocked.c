/* Blocks the three signals that are ignored by default, so that none is left to stop its thread with. */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"
#include <signal.h>

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *a = new_array(WORDS), sum = 0;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGURG);
    sigaddset(&set, SIGWINCH);
    sigaddset(&set, SIGCHLD);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
        fail("sigprocmask");
    ready();
    for (uint64_t round = 0; more(); round++)
        sum ^= ordinary_work(a, WORDS, round);
    return finish(sum);
}
