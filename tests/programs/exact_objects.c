/* Data objects of simulated caches: what is lost of each is known. Lines have 64 bytes and no cache holds an array, so
 * that of each line of `strided` 8 bytes are used, of `sequential` all, and of the block 32.
 *
 * No arguments. The block's memory is a mapping of its own, and so is a second one that takes the place of the first, as
 * large, of which nothing but 16 bytes a line are used; a smaller third one comes to lie where the second lay. */
// build: gcc -O1 -g -fno-tree-vectorize -o $BIN $SRC
#include <stdlib.h>
#include <sys/mman.h>

enum { WORDS = 1 << 18, SMALL = WORDS / 2 };

static volatile double strided[WORDS] __attribute__((aligned(64)));
static volatile double sequential[WORDS] __attribute__((aligned(64)));

static double walk(volatile double *words, int count, int step) {
    double sum = 0;
    for (int i = 0; i < count; i += step)
        sum += words[i];
    return sum;
}

static volatile double *map(void *where, int words) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (where ? MAP_FIXED : 0);
    void *mapped = mmap(where, words * sizeof(double), PROT_READ | PROT_WRITE, flags, -1, 0);
    if (mapped == MAP_FAILED)
        abort();
    return mapped;
}

int main(void) {
    double sum = walk(strided, WORDS, 8) + walk(sequential, WORDS, 1);
    /* Glibc's malloc has a header of 16 bytes in front, so that the last word is in a line more. */
    volatile double *block = malloc(4 * WORDS * sizeof *block);
    sum += walk(block, 4 * WORDS, 2);
    volatile double *second = map(0, WORDS);
    sum += walk(second, WORDS, 4);
    if (munmap((void *)second, WORDS * sizeof *second))
        abort();
    sum += walk(map((void *)second, SMALL), SMALL, 8);
    return sum != 0;
}
