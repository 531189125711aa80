/* Kernels with a fixed amount of work, about five seconds each on a machine of 2023, for `cargo xtask bench overhead`:
 * `bench_kernels stream|matmul|list|hash`. Prints a checksum: traced or not, it is the same. */
// build: gcc -O2 -g -o $BIN $SRC
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void *block(size_t bytes) {
    void *memory = aligned_alloc(64, bytes);
    if (!memory)
        exit(1);
    memset(memory, 1, bytes);
    return memory;
}

/* Three arrays of 16 MiB, added and scaled. */
static uint64_t stream(void) {
    size_t n = 2 << 20;
    double *a = block(n * 8), *b = block(n * 8), *c = block(n * 8);
    for (size_t i = 0; i < n; i++)
        b[i] = (double)i, c[i] = 1.0 / (double)(i + 1);
    for (int round = 0; round < 2800; round++)
        for (size_t i = 0; i < n; i++)
            a[i] = b[i] + 3.0 * c[i] + a[i] * 0.5;
    return (uint64_t)a[n / 2];
}

/* Square matrices of 512 by 512, in the textbook's order. */
static uint64_t matmul(void) {
    enum { N = 512 };
    double *a = block(N * N * 8), *b = block(N * N * 8), *c = block(N * N * 8);
    for (size_t i = 0; i < N * N; i++)
        a[i] = (double)(i % 7), b[i] = (double)(i % 5), c[i] = 0;
    for (int round = 0; round < 18; round++)
        for (size_t i = 0; i < N; i++)
            for (size_t j = 0; j < N; j++) {
                double sum = 0;
                for (size_t k = 0; k < N; k++)
                    sum += a[i * N + k] * b[k * N + j];
                c[i * N + j] += sum;
            }
    return (uint64_t)c[N + 1];
}

/* A list in random order through 32 MiB. */
static uint64_t list(void) {
    size_t n = (32 << 20) / 64;
    uint64_t(*node)[8] = block(n * 64);
    uint64_t *order = block(n * 8);
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    for (size_t i = n - 1; i > 0; i--) {
        size_t j = mix(i) % (i + 1);
        uint64_t other = order[i];
        order[i] = order[j], order[j] = other;
    }
    for (size_t i = 0; i < n; i++)
        node[order[i]][0] = order[(i + 1) % n];
    uint64_t at = 0, sum = 0;
    for (uint64_t step = 0; step < 35u * 1000 * 1000; step++)
        at = node[at][0], sum += at;
    return sum;
}

/* Random updates of a table of 8 MiB. */
static uint64_t hash(void) {
    size_t n = 1 << 20;
    uint64_t *table = block(n * 8), sum = 0;
    for (uint64_t step = 0; step < 1600u * 1000 * 1000; step++) {
        uint64_t *slot = &table[mix(step) & (n - 1)];
        sum += *slot;
        *slot = sum ^ step;
    }
    return sum;
}

int main(int argc, char **argv) {
    const char *kernel = argc > 1 ? argv[1] : "";
    uint64_t sum;
    if (!strcmp(kernel, "stream"))
        sum = stream();
    else if (!strcmp(kernel, "matmul"))
        sum = matmul();
    else if (!strcmp(kernel, "list"))
        sum = list();
    else if (!strcmp(kernel, "hash"))
        sum = hash();
    else
        return fprintf(stderr, "usage: bench_kernels stream|matmul|list|hash\n"), 2;
    printf("%016llx\n", (unsigned long long)sum);
    return 0;
}
