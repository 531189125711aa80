/* Children that each live for twice the first argument, in seconds: the first half as one program, the second as another, each at work on
 * a table of a shared library. One source, compiled twice. */
// build: gcc -O2 -g -fPIC -shared -DLIBRARY -o $OUT/libshort_lived.so $SRC
// build: gcc -O2 -g -o $BIN $SRC -L$OUT -lshort_lived -Wl,-rpath,$ORIGIN
#include "target.h"
#include <string.h>
#include <sys/wait.h>

#define N (1 << 16)

void first_work(void);
void second_work(void);

#ifdef LIBRARY
static volatile long first_library_table[N], second_library_table[N];

void first_work(void) {
    for (size_t i = 0; i < N; i++)
        first_library_table[i];
}

void second_work(void) {
    for (size_t i = 0; i < N; i++)
        second_library_table[i];
}
#else
static void work(void (*of)(void)) {
    for (double end = now() + asked_seconds; now() < end;)
        of();
}

int main(int argc, char **argv) {
    start(argc, argv);
    const char *part = argc > 2 ? argv[2] : "";
    if (!strcmp(part, "first")) {
        work(first_work);
        execl(argv[0], argv[0], argv[1], "second", (char *)NULL);
        fail("execl");
    }
    if (!strcmp(part, "second")) {
        work(second_work);
        return 0;
    }
    ready();
    for (int i = 0; i < 4; i++) {
        pid_t child = fork();
        if (child == 0) {
            execl(argv[0], argv[0], argv[1], "first", (char *)NULL);
            fail("execl");
        }
        waitpid(child, NULL, 0);
    }
    return finish(0);
}
#endif
