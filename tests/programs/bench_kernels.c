/* Kernels for `cargo xtask bench overhead`:
 * `bench_kernels stream|matmul|list|hash|small|large|reads|copies|splits` works until it is killed and
 * prints a line after each unit of work, some 20 to 50 ms on a machine of 2023. All units of a kernel are
 * the same work. */
// build: gcc -O2 -g -o $BIN $SRC
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static volatile uint64_t result;

/* Says that a unit is done; its result keeps the compiler from leaving it out. */
static void unit(uint64_t value) {
    result = value;
    if (write(1, "\n", 1) != 1)
        exit(0);
}

static void *block(size_t bytes) {
    void *memory = aligned_alloc(64, bytes);
    if (!memory)
        exit(1);
    memset(memory, 1, bytes);
    return memory;
}

/* Three arrays of 16 MiB, added and scaled. */
static void stream(void) {
    size_t n = 2 << 20;
    double *a = block(n * 8), *b = block(n * 8), *c = block(n * 8);
    for (size_t i = 0; i < n; i++)
        b[i] = (double)i, c[i] = 1.0 / (double)(i + 1);
    for (;;) {
        for (int round = 0; round < 16; round++)
            for (size_t i = 0; i < n; i++)
                a[i] = b[i] + 3.0 * c[i] + a[i] * 0.5;
        unit((uint64_t)a[n / 2]);
    }
}

/* Square matrices of 512 by 512, in the textbook's order. */
static void matmul(void) {
    enum { N = 512 };
    double *a = block(N * N * 8), *b = block(N * N * 8), *c = block(N * N * 8);
    for (size_t i = 0; i < N * N; i++)
        a[i] = (double)(i % 7), b[i] = (double)(i % 5), c[i] = 0;
    for (;;)
        for (size_t i = 0; i < N; i++) {
            for (size_t j = 0; j < N; j++) {
                double sum = 0;
                for (size_t k = 0; k < N; k++)
                    sum += a[i * N + k] * b[k * N + j];
                c[i * N + j] += sum;
            }
            if (i % 64 == 63)
                unit((uint64_t)c[i * N + 1]);
        }
}

/* A list in random order through 32 MiB. */
static void list(void) {
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
    for (;;) {
        for (size_t step = 0; step < n; step++)
            at = node[at][0], sum += at;
        unit(sum);
    }
}

/* Random updates of a table of 8 MiB. */
static void hash(void) {
    size_t n = 1 << 20;
    uint64_t *table = block(n * 8), sum = 0;
    for (uint64_t step = 0;;) {
        for (uint64_t end = step + (8 << 20); step < end; step++) {
            uint64_t *slot = &table[mix(step) & (n - 1)];
            sum += *slot;
            *slot = sum ^ step;
        }
        unit(sum);
    }
}

/* 40,000 allocations a unit, a million or so in a second, each in place of a random one of 4,096 blocks: of 16 to 496 bytes with
 * every 64th of 4 KiB, or all of 1 to 16 KiB. What is allocated is worked on, as programs do. */
static void allocate(int large) {
    enum { BLOCKS = 4096, UNIT = 40000 };
    static uint64_t *kept[BLOCKS];
    uint64_t sum = 0;
    for (uint64_t step = 1;; step++) {
        uint64_t random = mix(step), **slot = &kept[random % BLOCKS];
        size_t small = 16 + (random >> 20) % 31 * 16;
        size_t bytes = large ? 1024 + (random >> 20) % 16 * 1024 : step % 64 ? small : 4096;
        if (*slot)
            sum += **slot;
        free(*slot);
        if (!(*slot = malloc(bytes)))
            exit(1);
        **slot = step;
        for (int work = 0; work < 240; work++)
            sum = mix(sum);
        if (step % UNIT == 0)
            unit(sum);
    }
}

/* Random words of 64 MiB, which are hardly met again, and with every 64 of them a copy of `bytes` bytes by a string instruction: the
 * kernel's, of a read, or the program's own. While a word is watched, some processors make such copies byte by byte. */
static void copy(int read_them, size_t bytes) {
    size_t n = 8 << 20;
    uint64_t *words = block(n * 8), sum = 0;
    static char buffers[2][4096];
    int zeros = open("/dev/zero", O_RDONLY);
    if (zeros < 0)
        exit(1);
    for (uint64_t step = 1;; step++) {
        sum += words[mix(step) & (n - 1)];
        if (step % 64 == 0 && read_them) {
            if (read(zeros, buffers[0], bytes) != (ssize_t)bytes)
                exit(1);
        } else if (step % 64 == 0) {
            void *to = buffers[0], *from = buffers[1];
            size_t count = bytes;
            __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count)::"memory");
        }
        if (step % (2 << 20) == 0)
            unit(sum);
    }
}

/* Two neighbouring words across the ends of lines, at random places of 32 MiB. While a word is watched, some
 * processors make such stores slowly, one after another. */
static void splits(void) {
    size_t n = (32 << 20) / 64;
    char *lines = block((n + 2) * 64);
    uint64_t sum = 0;
    for (uint64_t step = 1;; step++) {
        uint64_t random = mix(step);
        char *record = lines + (random & (n - 1)) * 64 + 60;
        for (uint64_t piece = 0; piece < 2; piece++) {
            uint64_t value = random + piece;
            memcpy(record + piece * 64, &value, sizeof value);
        }
        for (int work = 0; work < 12; work++)
            sum = mix(sum + random);
        if (step % (1 << 18) == 0)
            unit(sum);
    }
}

int main(int argc, char **argv) {
    const char *kernel = argc > 1 ? argv[1] : "";
    if (!strcmp(kernel, "stream"))
        stream();
    else if (!strcmp(kernel, "matmul"))
        matmul();
    else if (!strcmp(kernel, "list"))
        list();
    else if (!strcmp(kernel, "hash"))
        hash();
    if (!strcmp(kernel, "small"))
        allocate(0);
    if (!strcmp(kernel, "large"))
        allocate(1);
    if (!strcmp(kernel, "reads"))
        copy(1, 4096);
    if (!strcmp(kernel, "copies"))
        copy(0, 2000);
    if (!strcmp(kernel, "splits"))
        splits();
    return fprintf(stderr, "usage: bench_kernels stream|matmul|list|hash|small|large|reads|copies|splits\n"), 2;
}
