// Objects of a second thread. Lines as in kinds.c; "thread TID" names it.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

struct state { long step; double sum[8]; };
__thread struct state of_thread = {1};
struct state shared;

static void *work(void *argument) {
    struct state own = {2};
    printf("thread-local %p of_thread|.sum[]|state\n", (void *)&of_thread.sum[3]);
    printf("stack %p own|.step|state\n", (void *)&own.step);
    printf("static %p shared|.sum[]|state\n", (void *)&shared.sum[1]);
    printf("stack %p of_main|.sum[]|state\n", (void *)&((struct state *)argument)->sum[2]);
    printf("thread %ld\nready\n", (long)syscall(SYS_gettid));
    fflush(stdout);
    for (;;) pause();
}

int main(void) {
    struct state of_main = {3};
    pthread_t thread;
    pthread_create(&thread, NULL, work, &of_main);
    pthread_join(thread, NULL);
}
