/* Starts children by fork; each works a little, then becomes another program by exec, which works and exits with 3.
 * Exit status 1 when a child ended in any other way. */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"
#include <string.h>
#include <sys/wait.h>

static void work(uint64_t rounds) {
    uint64_t *a = new_array(WORDS / 8);
    for (uint64_t round = 0; round < rounds; round++)
        ordinary_work(a, WORDS / 8, round);
    munmap(a, WORDS);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "child") == 0) {
        work(100);
        return 3;
    }
    start(argc, argv);
    int children = 0, wrong = 0;
    ready();
    while (more()) {
        pid_t child = fork();
        if (child < 0)
            fail("fork");
        if (child == 0) {
            work(20);
            execl("/proc/self/exe", "fork_exec-child", "child", (char *)NULL);
            _exit(127);
        }
        int status;
        work(20);
        if (waitpid(child, &status, 0) != child)
            fail("waitpid");
        children++;
        wrong += !WIFEXITED(status) || WEXITSTATUS(status) != 3;
    }
    printf("children %d wrong %d\n", children, wrong);
    return wrong ? 1 : 0;
}
