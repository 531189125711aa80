/* Loads the library given as first argument when it gets SIGUSR1, and waits in it; or executes the program given as
   second argument on SIGUSR2. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, 0);
    puts("ready");
    fflush(stdout);
    int got;
    sigwait(&set, &got);
    if (got == SIGUSR2 && argc > 2) {
        sigprocmask(SIG_UNBLOCK, &set, 0);
        execl(argv[2], argv[2], (char *)0);
    }
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) return 1;
    int (*wait_here)(int) = (int (*)(int))dlsym(library, "exported_wait");
    return wait_here(argc);
}
