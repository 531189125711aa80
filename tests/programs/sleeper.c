/* Like an idle server: mostly blocked in epoll_wait, read and clock_nanosleep, with a little work at each wake. It sends
 * itself no signal, so that every EINTR was caused from outside: exit status 1. */
// build: gcc -O1 -g -pthread -o $BIN $SRC
#include "target.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

static int wake_pipe[2];
static atomic_long wakes, interrupted;

static void woken(uint64_t *a, long result) {
    if (result < 0 && errno == EINTR)
        atomic_fetch_add(&interrupted, 1);
    else if (result < 0)
        fail("wait");
    ordinary_work(a, WORDS / 64, (uint64_t)atomic_fetch_add(&wakes, 1));
}

static void *reader(void *arg) {
    uint64_t *a = new_array(WORDS / 64);
    char byte;
    for (;;) {
        long got = read(wake_pipe[0], &byte, 1);
        if (got == 0)
            return arg;
        woken(a, got);
    }
}

static void *napper(void *arg) {
    uint64_t *a = new_array(WORDS / 64);
    struct timespec nap = {.tv_nsec = 15 * 1000 * 1000};
    while (more()) {
        errno = clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, NULL);
        woken(a, errno ? -1 : 0);
    }
    return arg;
}

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *a = new_array(WORDS / 64), expirations;
    int epoll = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec every = {{0, 20 * 1000 * 1000}, {0, 20 * 1000 * 1000}};
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll < 0 || timer < 0 || pipe(wake_pipe) != 0 || timerfd_settime(timer, 0, &every, NULL) != 0 ||
        epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &event) != 0)
        fail("setup");
    ready();
    pthread_t threads[2];
    if (pthread_create(&threads[0], NULL, reader, NULL) != 0 || pthread_create(&threads[1], NULL, napper, NULL) != 0)
        fail("pthread_create");
    while (more()) {
        woken(a, epoll_wait(epoll, &event, 1, -1));
        if (read(timer, &expirations, sizeof expirations) < 0)
            woken(a, -1);
        if (write(wake_pipe[1], "x", 1) != 1)
            fail("write");
    }
    close(wake_pipe[1]);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    printf("wakes %ld interrupted %ld\n", atomic_load(&wakes), atomic_load(&interrupted));
    return atomic_load(&interrupted) ? 1 : 0;
}
