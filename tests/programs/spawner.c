/* Starts children in the other ways than fork: vfork, posix_spawn and system. Exit status 1 when one ended wrongly. */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static int exits_with(pid_t child, int expected) {
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child)
        fail("waitpid");
    return WIFEXITED(status) && WEXITSTATUS(status) == expected;
}

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *a = new_array(WORDS / 8), sum = 0;
    int children = 0, wrong = 0;
    ready();
    while (more()) {
        pid_t child = vfork();
        if (child == 0) {
            execl("/bin/sh", "sh", "-c", "exit 3", (char *)NULL);
            _exit(127);
        }
        wrong += !exits_with(child, 3);
        char *words[] = {"sh", "-c", "exit 4", NULL};
        if (posix_spawn(&child, "/bin/sh", NULL, NULL, words, environ) != 0)
            fail("posix_spawn");
        wrong += !exits_with(child, 4);
        int status = system("exit 5");
        wrong += !WIFEXITED(status) || WEXITSTATUS(status) != 5;
        children += 3;
        for (uint64_t round = 0; round < 20; round++)
            sum ^= ordinary_work(a, WORDS / 8, round);
    }
    printf("children %d wrong %d\n", children, wrong);
    finish(sum);
    return wrong ? 1 : 0;
}
