/* Two threads on different words of one cache line, at least one of which writes. */
// build: gcc -O2 -g -pthread -o $BIN $SRC
#include "advice.h"

enum { VALUES = 4096, REPEATS = 16, THREADS = 2 };

static size_t values;
static int32_t *value, *shifted[THREADS];

static void take_values(void) {
    values = VALUES;
    value = filled(VALUES * sizeof *value);
    for (int i = 0; i < VALUES; i++)
        value[i] = i * 7919 % 1000;
    for (int thread = 0; thread < THREADS; thread++)
        shifted[thread] = filled(VALUES * sizeof *shifted[thread]);
}

/* A counter for each thread, side by side. They are volatile because others show them meanwhile. */
/* flaw: counters */
static volatile int64_t odd[THREADS] __attribute__((aligned(64)));

static uint64_t count_side_by_side(void) {
    int me = thread_number;
    int32_t *to = shifted[me];
    odd[me] = 0;
    /* flaw: counters */
    for (int repeat = 0; repeat < REPEATS; repeat++)
        for (size_t i = 0; i < values; i++) {
            to[i] = value[i] + 1;
            odd[me] += value[i] & 1;
        }
    return (uint64_t)odd[me];
}

static volatile struct { int64_t odd; char padding[120]; } apart[THREADS] __attribute__((aligned(128)));

static uint64_t count_apart(void) {
    int me = thread_number;
    int32_t *to = shifted[me];
    apart[me].odd = 0;
    for (int repeat = 0; repeat < REPEATS; repeat++)
        for (size_t i = 0; i < values; i++) {
            to[i] = value[i] + 1;
            apart[me].odd += value[i] & 1;
        }
    return (uint64_t)apart[me].odd;
}

/* What one thread counts stands beside the limit that the other reads and that nobody changes. */
/* flaw: monitor */
struct monitor {
    volatile int64_t limit;
    volatile int64_t received;
};

static struct monitor monitor __attribute__((aligned(64)));

struct monitor_padded {
    volatile int64_t limit;
    char padding[120];
    volatile int64_t received;
};

static struct monitor_padded padded __attribute__((aligned(128)));

static void take_monitors(void) {
    take_values();
    monitor.limit = padded.limit = 400;
}

/* flaw: monitor */
static uint64_t receive(volatile int64_t *received) {
    *received = 0;
    for (int repeat = 0; repeat < REPEATS; repeat++)
        for (size_t i = 0; i < values; i++)
            *received += value[i];
    return (uint64_t)*received;
}

/* flaw: monitor */
static uint64_t supervise(const volatile int64_t *limit) {
    int64_t above = 0;
    for (int repeat = 0; repeat < REPEATS; repeat++)
        for (size_t i = 0; i < values; i++)
            above += value[i] * 3 % 512 > *limit;
    return (uint64_t)above;
}

static uint64_t watch(void) {
    return thread_number == 0 ? supervise(&monitor.limit) : receive(&monitor.received);
}

static uint64_t watch_padded(void) {
    return thread_number == 0 ? supervise(&padded.limit) : receive(&padded.received);
}

KERNELS({"counters", {{"flawed", take_values, count_side_by_side}, {"mended", take_values, count_apart}}, THREADS},
        {"monitor", {{"flawed", take_monitors, watch}, {"mended", take_monitors, watch_padded}}, THREADS})
