/* A buffer that the program reads and a thread of the kernel refills, by io_uring: a worker (second argument async) or the thread
 * that polls for submissions (poll). Without io_uring it ends with status 77. */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"
#include <fcntl.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/syscall.h>

#define BYTES (1 << 16)

static unsigned *at(char *base, unsigned offset) { return (unsigned *)(base + offset); }

int main(int argc, char **argv) {
    static char buffer[BYTES];
    struct io_uring_params p;
    uint64_t sum = 0;
    start(argc, argv);
    int poll = argc > 2 && !strcmp(argv[2], "poll");
    memset(&p, 0, sizeof p);
    if (poll) {
        p.flags = IORING_SETUP_SQPOLL;
        p.sq_thread_idle = 2000;
    }
    int ring = (int)syscall(SYS_io_uring_setup, 4, &p);
    if (ring < 0) {
        perror("io_uring_setup");
        return 77;
    }
    char *sq = mmap(NULL, p.sq_off.array + p.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE, MAP_SHARED, ring,
                    IORING_OFF_CQ_RING);
    struct io_uring_sqe *entries =
        mmap(NULL, p.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    int file = memfd_create("numbers", 0);
    if (sq == MAP_FAILED || cq == MAP_FAILED || (void *)entries == MAP_FAILED || file < 0 || ftruncate(file, BYTES))
        fail("setup");
    ready();
    while (more()) {
        unsigned *tail = at(sq, p.sq_off.tail), *head = at(cq, p.cq_off.head), slot = *tail & *at(sq, p.sq_off.ring_mask);
        memset(&entries[slot], 0, sizeof entries[slot]);
        entries[slot].opcode = IORING_OP_READ;
        entries[slot].flags = poll ? 0 : IOSQE_ASYNC;
        entries[slot].fd = file;
        entries[slot].addr = (uint64_t)(uintptr_t)buffer;
        entries[slot].len = BYTES;
        at(sq, p.sq_off.array)[slot] = slot;
        __atomic_store_n(tail, *tail + 1, __ATOMIC_SEQ_CST);
        unsigned flags = IORING_ENTER_GETEVENTS;
        if (poll && (__atomic_load_n(at(sq, p.sq_off.flags), __ATOMIC_SEQ_CST) & IORING_SQ_NEED_WAKEUP))
            flags |= IORING_ENTER_SQ_WAKEUP;
        while (syscall(SYS_io_uring_enter, ring, poll ? 0 : 1, 1, flags, NULL, 0) < 0)
            ;
        while (*head != __atomic_load_n(at(cq, p.cq_off.tail), __ATOMIC_ACQUIRE))
            __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
        for (int round = 0; round < 4; round++)
            for (size_t i = 0; i < BYTES / sizeof(uint64_t); i++)
                sum = mix(sum + ((volatile uint64_t *)buffer)[i]);
    }
    return finish(sum);
}
