/* Signals that the program handles itself, while it works: queued real-time signals, SIGCHLD of its children, SIGWINCH,
 * and SIGURG that the kernel sends for out-of-band data on a socket. The handlers are installed only after half of the
 * time, when a tracer that uses such signals has done so for a while. Exit status 1 when one came too often or not. */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define QUEUED 32

static uint64_t *work;
static volatile sig_atomic_t urgent, resized, children, queued, out_of_order;

static void count(int signal) {
    if (signal == SIGURG)
        urgent++;
    else if (signal == SIGWINCH)
        resized++;
    else
        children++;
}

static void count_queued(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    out_of_order += info->si_value.sival_int != queued % QUEUED;
    queued++;
}

/* Works until the counter stands at `expected`, at most two seconds, and a moment longer for one too many. */
static int arrives(volatile sig_atomic_t *counter, int expected) {
    double last = now() + 2;
    while (*counter < expected && now() < last)
        ordinary_work(work, WORDS / 64, 1);
    ordinary_work(work, WORDS / 64, 2);
    return *counter == expected;
}

static void connect_pair(int pair[2]) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    pair[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&address, &size) ||
        connect(pair[0], (struct sockaddr *)&address, size) || (pair[1] = accept(listener, NULL, NULL)) < 0 ||
        fcntl(pair[1], F_SETOWN, getpid()))
        fail("socket");
    close(listener);
}

int main(int argc, char **argv) {
    start(argc, argv);
    int sockets[2], rounds = 0, wrong = 0;
    char byte;
    work = new_array(WORDS / 64);
    connect_pair(sockets);
    ready();
    double half = now() + (until - now()) / 2;
    while (now() < half)
        ordinary_work(work, WORDS / 64, 0);
    struct sigaction counts = {.sa_handler = count, .sa_flags = SA_RESTART};
    struct sigaction queue = {.sa_sigaction = count_queued, .sa_flags = SA_RESTART | SA_SIGINFO};
    sigaction(SIGURG, &counts, NULL);
    sigaction(SIGWINCH, &counts, NULL);
    sigaction(SIGCHLD, &counts, NULL);
    sigaction(SIGRTMIN, &queue, NULL);
    while (more()) {
        rounds++;
        if (send(sockets[0], "!", 1, MSG_OOB) != 1)
            fail("send");
        wrong += !arrives(&urgent, rounds);
        if (recv(sockets[1], &byte, 1, MSG_OOB) != 1)
            fail("recv");
        kill(getpid(), SIGWINCH);
        wrong += !arrives(&resized, rounds);
        pid_t child = fork();
        if (child == 0)
            _exit(3);
        int status = 0;
        if (waitpid(child, &status, 0) != child)
            fail("waitpid");
        wrong += WEXITSTATUS(status) != 3 || !arrives(&children, rounds);
        for (int i = 0; i < QUEUED; i++)
            sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = i});
        wrong += !arrives(&queued, rounds * QUEUED);
    }
    printf("rounds %d urgent %d resized %d children %d queued %d wrong %d\n", rounds, (int)urgent, (int)resized,
           (int)children, (int)queued, wrong + (int)out_of_order);
    return wrong || out_of_order || rounds == 0 ? 1 : 0;
}
