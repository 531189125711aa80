/* Takes a timer signal 1,000 times a second while it works. Every expiry of the timer must be seen, by a signal or as
 * the overrun of one: exit status 1 when more than a hundredth is missing. */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"
#include <signal.h>

static volatile sig_atomic_t ticks, overruns;
static timer_t timer;

static void on_alarm(int signal) {
    (void)signal;
    ticks++;
    int missed = timer_getoverrun(timer);
    overruns += missed > 0 ? missed : 0;
}

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *a = new_array(WORDS / 8), sum = 0;
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    struct itimerspec every = {{0, 1000 * 1000}, {0, 1000 * 1000}}, off = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, NULL);
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0)
        fail("timer_create");
    ready();
    double began = now();
    timer_settime(timer, 0, &every, NULL);
    for (uint64_t round = 0; more(); round++)
        sum ^= ordinary_work(a, WORDS / 8, round);
    timer_settime(timer, 0, &off, NULL);
    double expected = (now() - began) * 1000;
    printf("expiries %.0f signals %d overruns %d\n", expected, (int)ticks, (int)overruns);
    finish(sum);
    return ticks + overruns < expected * 0.99 - 2 ? 1 : 0;
}
