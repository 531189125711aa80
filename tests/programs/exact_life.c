/* What a process may do with its life, for the exact engine: `exact_life WHAT`. */
// build: gcc -O1 -g -pthread -o $BIN $SRC
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 4096, ROUNDS = 50 };
static volatile long array[WORDS];
static volatile sig_atomic_t handled;
extern char **environ;

static void work(void) {
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < WORDS; i++)
            array[i]; /* work */
}

static void *thread(void *unused) {
    work();
    return unused;
}

static void handler(int signal) { handled += signal; }

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "threads")) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++)
            pthread_create(&threads[i], NULL, thread, NULL);
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
    } else if (!strcmp(what, "fork")) {
        for (int i = 0; i < 3; i++)
            if (fork() == 0) {
                work();
                _exit(i);
            }
        int status, sum = 0;
        while (wait(&status) > 0)
            sum += WEXITSTATUS(status);
        return sum == 3 ? 0 : 1;
    } else if (!strcmp(what, "exec")) {
        work();
        char *arguments[] = {"renamed", "end", "7", NULL};
        execv("/proc/self/exe", arguments);
    } else if (!strcmp(what, "spawn")) {
        char *arguments[] = {"sh", "-c", "exit 3", NULL};
        pid_t child;
        int status;
        if (posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ))
            return 1;
        waitpid(child, &status, 0);
        return WEXITSTATUS(status) == 3 ? 0 : 1;
    } else if (!strcmp(what, "exec-missing")) {
        char *arguments[] = {"x", NULL};
        execv("/no/such/program", arguments);
        work();
    } else if (!strcmp(what, "signal")) {
        signal(SIGUSR1, handler);
        for (int i = 0; i < 10; i++)
            raise(SIGUSR1);
        work();
        return handled == 10 * SIGUSR1 ? 0 : 1;
    } else if (!strcmp(what, "segv")) {
        work();
        *(volatile int *)8 = 1;
    } else if (!strcmp(what, "kill")) {
        work();
        raise(SIGKILL);
    } else if (!strcmp(what, "busy")) {
        puts("waiting");
        fflush(stdout);
        for (;;)
            work();
    } else if (!strcmp(what, "avx512")) {
        work();
        __asm__ volatile(".byte 0x62, 0xf1, 0x7d, 0x48, 0xfe, 0xc1"); /* vpaddd %zmm1, %zmm0, %zmm0 */
    } else if (!strcmp(what, "ud2")) {
        work();
        __asm__ volatile("ud2");
    } else if (!strcmp(what, "wait")) {
        work();
        puts("waiting");
        fflush(stdout);
        pause();
    } else if (!strcmp(what, "outlive")) {
        puts("waiting");
        fflush(stdout);
        while (getchar() != EOF)
            ;
        work();
        puts("worked");
    } else if (!strcmp(what, "end")) {
        printf("%s %s\n", argv[0], getenv("LOCALITY_TEST") ? getenv("LOCALITY_TEST") : "-");
        return atoi(argv[2]);
    }
    return 0;
}
