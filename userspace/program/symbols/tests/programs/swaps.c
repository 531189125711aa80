/* Loads the libraries given as arguments one after the other, each in the place of the one before, and
 * waits in each until SIGUSR1. Compiled with NAME, it is such a library, whose function has that name. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#ifdef NAME
int NAME(volatile int *turn) {
    int now = *turn;
    while (*turn == now) {}
    return *turn;
}
#else
static volatile int turn;
static void next(int number) { turn += number == SIGUSR1; }

int main(int argc, char **argv) {
    signal(SIGUSR1, next);
    puts("ready");
    fflush(stdout);
    for (int i = 1; i + 1 < argc; i += 2) {
        void *library = dlopen(argv[i], RTLD_NOW);
        ((int (*)(volatile int *))dlsym(library, argv[i + 1]))(&turn);
        dlclose(library);
    }
    return 0;
}
#endif
