/* Not dumpable, as ssh-agent and setuid programs are: other processes of its user may not look into it. */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"
#include <sys/prctl.h>

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *a = new_array(WORDS), sum = 0;
    if (prctl(PR_SET_DUMPABLE, 0) != 0)
        fail("prctl");
    ready();
    for (uint64_t round = 0; more(); round++)
        sum ^= ordinary_work(a, WORDS, round);
    return finish(sum);
}
