/* Preempts its worker threads with SIGURG as Go's runtime does: a flag is set by compare-and-swap, the signal sent, and
 * the handler clears the flag. A signal that is swallowed leaves the flag set for ever, which here is counted after a
 * second, and in Go would stop the garbage collector. Exit status 1 when sent and received differ. */
// build: gcc -O1 -g -pthread -o $BIN $SRC
#include "target.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#define WORKERS 2

static struct worker {
    _Alignas(64) atomic_int pending;
    atomic_int tid;
    atomic_long received;
    long sent, lost;
    double sent_at;
} workers[WORKERS];
static _Thread_local struct worker *self;
static atomic_int stop;

static void on_sigurg(int signal) {
    (void)signal;
    atomic_fetch_add(&self->received, 1);
    atomic_store(&self->pending, 0);
}

static void *work(void *arg) {
    self = (struct worker *)arg;
    uint64_t *a = new_array(WORDS / 8), round = 0;
    atomic_store(&self->tid, (int)syscall(SYS_gettid));
    while (!atomic_load(&stop))
        ordinary_work(a, WORDS / 8, round++);
    return NULL;
}

/* Sends unless the last one is still under way; counts one that never arrived. */
static void preempt(struct worker *w) {
    int idle = 0;
    if (atomic_compare_exchange_strong(&w->pending, &idle, 1)) {
        w->sent++;
        w->sent_at = now();
        if (syscall(SYS_tgkill, getpid(), atomic_load(&w->tid), SIGURG) != 0)
            fail("tgkill");
    } else if (now() - w->sent_at > 1) {
        w->lost++;
        atomic_store(&w->pending, 0);
    }
}

int main(int argc, char **argv) {
    start(argc, argv);
    struct sigaction action = {.sa_handler = on_sigurg, .sa_flags = SA_RESTART};
    sigaction(SIGURG, &action, NULL);
    pthread_t threads[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0)
            fail("pthread_create");
        while (!atomic_load(&workers[i].tid))
            usleep(100);
    }
    ready();
    while (more()) {
        for (int i = 0; i < WORKERS; i++)
            preempt(&workers[i]);
        usleep(100);
    }
    /* The last ones may still be on their way. */
    double drain = now() + 2;
    for (int i = 0; i < WORKERS; i++)
        while (atomic_load(&workers[i].pending) && now() < drain)
            usleep(100);
    atomic_store(&stop, 1);
    long sent = 0, received = 0, lost = 0;
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(threads[i], NULL);
        sent += workers[i].sent;
        received += atomic_load(&workers[i].received);
        lost += workers[i].lost;
    }
    printf("sent %ld received %ld stuck %ld\n", sent, received, lost);
    return sent == received && lost == 0 ? 0 : 1;
}
