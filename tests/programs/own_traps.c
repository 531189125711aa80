/* Raises SIGTRAP by breakpoints of its own (INT3, INT1) while it works, and once sends itself one that looks like a trap
 * whose cause was lost. Exit status 1 when a trap of an instruction did not arrive; the last line counts all. */
// build: gcc -O1 -g -o $BIN $SRC
#define _GNU_SOURCE
#include "target.h"
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>

#ifndef TRAP_BRKPT
#define TRAP_BRKPT 1
#endif

static volatile sig_atomic_t traps;

/* Some virtual machines with AMD processors do not go on behind INT1, which would trap for ever. */
static void on_trap(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    greg_t *ip = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    *ip += *(const uint8_t *)*ip == 0xf1;
    traps++;
}

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *a = new_array(WORDS / 8), sum = 0;
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &action, NULL);
    ready();
    int raised = 0, missing = 0, stray = 0;
    double half = now() + (until - now()) / 2;
    for (uint64_t round = 0; more(); round++) {
        sum ^= ordinary_work(a, WORDS / 8, round);
        if (round % 500 == 0) {
            int before = (int)traps;
            __asm__ volatile("int3\n\tnop\n\t.byte 0xf1\n\tnop" ::: "memory");
            raised += 2;
            missing += traps != before + 2;
        }
        if (!stray && now() > half) {
            siginfo_t info;
            memset(&info, 0, sizeof info);
            info.si_signo = SIGTRAP;
            info.si_code = TRAP_BRKPT;
            stray = 1;
            if (syscall(SYS_rt_tgsigqueueinfo, getpid(), getpid(), SIGTRAP, &info) != 0)
                fail("rt_tgsigqueueinfo");
        }
    }
    printf("raised %d strays %d\n", raised, (int)traps - raised);
    finish(sum);
    return missing || raised == 0 ? 1 : 0;
}
