/* A buffer that the program reads and the kernel refills: the reuse is made by the kernel, inside read(), or by the program in its
 * next round where the kernel is passed over. The way back,
 * kernel -> program, cannot be sampled, as a sample that hits the kernel is none. */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"

#define BYTES (WORDS * sizeof(uint64_t) / 4)

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *a = new_array(BYTES / sizeof(uint64_t)), sum = 0;
    int file = memfd_create("numbers", 0);
    if (file < 0)
        fail("memfd_create");
    sum = ordinary_work(a, BYTES / sizeof(uint64_t), 1);
    if (write(file, a, BYTES) != (ssize_t)BYTES)
        fail("write");
    ready();
    while (more()) {
        lseek(file, 0, SEEK_SET);
        ssize_t got = read(file, a, BYTES); /* REUSE:refilled_by_kernel */
        if (got != (ssize_t)BYTES)
            fail("read");
        for (size_t i = 0; i < BYTES / sizeof(uint64_t); i++)
            sum = mix(sum + a[i]); /* USE:refilled_by_kernel USE:next_round REUSE:next_round */
    }
    return finish(sum);
}
