/* Takes the four debug registers of its thread for itself, as a debugger with four watchpoints does, and says at the
 * end how often they trapped: once each, which another's use of the registers must not change. */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"
#include <linux/hw_breakpoint.h>
#include <linux/perf_event.h>
#include <sys/syscall.h>

static volatile uint64_t watched[4];

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *a = new_array(WORDS), sum = 0;
    int events[4];
    for (int i = 0; i < 4; i++) {
        struct perf_event_attr attr = {
            .type = PERF_TYPE_BREAKPOINT,
            .size = sizeof attr,
            .bp_type = HW_BREAKPOINT_W,
            .bp_addr = (uintptr_t)&watched[i],
            .bp_len = HW_BREAKPOINT_LEN_8,
            .exclude_kernel = 1,
            .exclude_hv = 1,
        };
        events[i] = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
        if (events[i] < 0)
            fail("perf_event_open");
    }
    ready();
    for (uint64_t round = 0; more(); round++)
        sum ^= ordinary_work(a, WORDS, round);
    uint64_t traps = 0, count;
    for (int i = 0; i < 4; i++) {
        watched[i] = sum;
        if (read(events[i], &count, sizeof count) != sizeof count)
            fail("read");
        traps += count;
    }
    printf("traps %d\n", (int)traps);
    finish(sum);
    return traps == 4 ? 0 : 1;
}
