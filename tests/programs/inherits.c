// Prints what a program gets from whoever starts it: signals, limits, descriptors, environment and the rest that
// `execve` keeps, one a line, for a comparison of a run alone with launched ones. `--wait SECONDS` waits at the end,
// so that a timer that was given can end it.
//
// build: gcc -O1 -g -o $BIN $SRC
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static void signals(void) {
    sigset_t blocked, pending;
    sigprocmask(SIG_SETMASK, 0, &blocked);
    sigpending(&pending);
    for (int n = 1; n <= 64; n++) {
        struct sigaction now;
        if (sigaction(n, 0, &now)) continue;
        if (now.sa_handler != SIG_DFL) printf("signal %d %s\n", n, now.sa_handler == SIG_IGN ? "ignored" : "handled");
        if (sigismember(&blocked, n)) printf("signal %d blocked\n", n);
        if (sigismember(&pending, n)) printf("signal %d pending\n", n);
    }
}

static void limits(void) {
    for (int n = 0; n < 16; n++) {
        struct rlimit now;
        if (!getrlimit(n, &now)) printf("limit %d %lu %lu\n", n, (long)now.rlim_cur, (long)now.rlim_max);
    }
    static const int timers[] = {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF};
    for (int n = 0; n < 3; n++) {
        struct itimerval now;
        if (!getitimer(timers[n], &now))
            printf("timer %d %s %ld\n", n, now.it_value.tv_sec || now.it_value.tv_usec ? "runs" : "off",
                   (long)now.it_interval.tv_sec);
    }
}

static void descriptors(void) {
    for (int fd = 0; fd < 1024; fd++) {
        struct stat about;
        int flags = fcntl(fd, F_GETFL);
        if (flags < 0 || fstat(fd, &about)) continue;
        // QEMU has no O_LARGEFILE to show.
        printf("descriptor %d flags %o type %o", fd, flags & ~0100000, about.st_mode & S_IFMT);
        if (S_ISREG(about.st_mode) && fd > 2) printf(" file %lu at %ld", (long)about.st_ino, (long)lseek(fd, 0, SEEK_CUR));
        printf("\n");
    }
    int lowest = open("/dev/null", O_RDONLY);
    printf("next descriptor %d\n", lowest);
    close(lowest);
    DIR *open_now = opendir("/proc/self/fd");
    int n = 0;
    for (struct dirent *entry; open_now && (entry = readdir(open_now));) n += entry->d_name[0] != '.';
    printf("descriptors listed %d\n", n - 1);
    closedir(open_now);
}

static long of_status(const char *field, int base) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[512];
    long value = -1;
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, field, strlen(field))) value = strtol(line + strlen(field), 0, base);
    if (file) fclose(file);
    return value;
}

static void process(void) {
    char text[4096];
    printf("folder %s\n", getcwd(text, sizeof text));
    mode_t mask = umask(0);
    umask(mask);
    printf("umask %o\n", mask);
    printf("ids %d %d %d %d\n", getuid(), geteuid(), getgid(), getegid());
    // A launched program does not lead the session that its parent made.
    printf("session %s\n", getsid(0) == getpid() || getsid(0) == getsid(getppid()) ? "its parent's" : "another");
    printf("foreground %d\n", isatty(2) ? tcgetpgrp(2) == getpgrp() : -1);
    printf("nice %d\n", getpriority(PRIO_PROCESS, 0));
    struct sched_param priority;
    sched_getparam(0, &priority);
    printf("scheduler %d %d\n", sched_getscheduler(0), priority.sched_priority);
    printf("io priority %ld\n", syscall(SYS_ioprio_get, 1, 0));
    cpu_set_t processors;
    sched_getaffinity(0, sizeof processors, &processors);
    printf("processors %d first %d\n", CPU_COUNT(&processors), CPU_ISSET(0, &processors));
    int n = 0;
    prctl(PR_GET_PDEATHSIG, &n);
    printf("death signal %d\n", n);
    // QEMU refuses to tell.
    n = 0;
    prctl(PR_GET_CHILD_SUBREAPER, &n);
    printf("subreaper %d\n", n);
    printf("slack %d\n", prctl(PR_GET_TIMERSLACK));
    printf("no new privileges %d\n", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    printf("dumpable %d\n", prctl(PR_GET_DUMPABLE));
    printf("keeps capabilities %d\n", prctl(PR_GET_KEEPCAPS));
    printf("personality %x\n", personality(0xffffffff));
    printf("capabilities %lx\n", of_status("CapEff:", 16));
    FILE *score = fopen("/proc/self/oom_score_adj", "r");
    if (score && fgets(text, sizeof text, score)) printf("oom score %s", text);
    if (score) fclose(score);
    prctl(PR_GET_NAME, text);
    printf("name %s\n", text);
    ssize_t length = readlink("/proc/self/exe", text, sizeof text - 1);
    printf("executable %.*s\n", (int)(length < 0 ? 0 : length), text);
    printf("executed as %s\n", (char *)getauxval(AT_EXECFN));
    printf("secure %ld page %ld\n", getauxval(AT_SECURE), getauxval(AT_PAGESZ));
}

int main(int count, char **words) {
    // Before this program opens anything.
    descriptors();
    for (int n = 0; n < count; n++) printf("argument %d %s\n", n, words[n]);
    for (char **word = environ; *word; word++) printf("environment %s\n", *word);
    signals();
    limits();
    process();
    fflush(stdout);
    if (count > 2 && !strcmp(words[1], "--wait")) {
        struct timespec left = {atoi(words[2]), 0};
        while (nanosleep(&left, &left)) {}
    }
    return 3;
}
