/* Watches a variable of its own with a hardware breakpoint, again and again, as data-breakpoint libraries do, and works between
 * two of them. Tells how many the kernel refused and how many counted wrongly. */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"

#include <linux/hw_breakpoint.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/syscall.h>

static volatile long watched;

static int watch(void) {
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.type = PERF_TYPE_BREAKPOINT;
    attr.size = sizeof attr;
    attr.bp_type = HW_BREAKPOINT_W;
    attr.bp_addr = (unsigned long)&watched;
    attr.bp_len = HW_BREAKPOINT_LEN_8;
    attr.exclude_kernel = 1;
    attr.exclude_hv = 1;
    return (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
}

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *a = new_array(WORDS), sum = 0;
    long refused = 0, wrong = 0, rounds = 0;
    ready();
    for (; now() < until; rounds++) {
        int fd = watch();
        uint64_t count = 0;
        watched++;
        if (fd < 0) {
            refused++;
        } else {
            wrong += read(fd, &count, sizeof count) != sizeof count || count != 1;
            close(fd);
        }
        sum = mix(sum + ordinary_work(a, WORDS, (uint64_t)rounds));
    }
    printf("refused %ld wrong %ld of some %d\n", refused, wrong, rounds > 10);
    finish(sum);
    return 0;
}
