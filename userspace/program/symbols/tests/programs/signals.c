/* Waits inside a signal handler. First argument: "plain", "alternate" (another stack) or "first" (the signal comes at the
   first instruction of a function). Lines that tests look for carry "AT name". */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#define KEEP __attribute__((noinline, noclone))

volatile int waiting = 1;
volatile int sink;

KEEP int wait_here(int n) {
    puts("ready");
    fflush(stdout);
    while (waiting) {} /* AT wait_here */
    return n;
}

KEEP void handler(int signal) {
    sink += wait_here(signal); /* AT handler */
}

/* The padding before it belongs to another function, so looking up one byte less would give that one. */
__attribute__((naked, noinline)) void faults_at_once(void) {
    __asm__("ud2\n ret");
}

KEEP int interrupted(int n) {
    sink += n;
    if (n == 2) faults_at_once(); /* AT call_first */
    else __asm__ volatile("ud2"); /* AT interrupted */
    return n + sink;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "plain";
    struct sigaction action = {.sa_handler = handler};
    if (!strcmp(how, "alternate")) {
        stack_t stack = {.ss_size = 1 << 16};
        stack.ss_sp = mmap(0, stack.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        sigaltstack(&stack, 0);
        action.sa_flags = SA_ONSTACK;
    }
    sigaction(SIGILL, &action, 0);
    int got = interrupted(!strcmp(how, "first") ? 2 : 1); /* AT main */
    return got + sink;
}
