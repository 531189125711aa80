/* Small programs for `cargo xtask bench conversions`: `kernels NAME`. Each makes some 5 to 40 million accesses; all are
 * deterministic. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 0x10ca;
static uint64_t draw(void) {
    uint64_t x = state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void *room(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!memory)
        exit(1);
    memset(memory, 1, bytes);
    return memory;
}

static uint64_t stream(void) {
    size_t n = 400000;
    double *a = room(n * 8), *b = room(n * 8), *c = room(n * 8);
    for (int round = 0; round < 10; round++)
        for (size_t i = 0; i < n; i++)
            a[i] = b[i] + 3 * c[i];
    return a[7];
}

static uint64_t matmul(void) {
    enum { N = 180 };
    double *a = room(N * N * 8), *b = room(N * N * 8), *c = room(N * N * 8);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int k = 0; k < N; k++)
                sum += a[i * N + k] * b[k * N + j];
            c[i * N + j] = sum;
        }
    return c[7];
}

static uint64_t blocked(void) {
    enum { N = 192, B = 24 };
    double *a = room(N * N * 8), *b = room(N * N * 8), *c = room(N * N * 8);
    for (int ii = 0; ii < N; ii += B)
        for (int jj = 0; jj < N; jj += B)
            for (int kk = 0; kk < N; kk += B)
                for (int i = ii; i < ii + B; i++)
                    for (int j = jj; j < jj + B; j++) {
                        double sum = c[i * N + j];
                        for (int k = kk; k < kk + B; k++)
                            sum += a[i * N + k] * b[k * N + j];
                        c[i * N + j] = sum;
                    }
    return c[7];
}

static uint64_t transpose(void) {
    enum { N = 1000 };
    uint64_t *a = room(N * N * 8), *b = room(N * N * 8);
    for (int round = 0; round < 5; round++)
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++)
                b[j * N + i] = a[i * N + j];
    return b[7];
}

static uint64_t stencil(void) {
    enum { N = 600 };
    double *a = room(N * N * 8), *b = room(N * N * 8);
    for (int step = 0; step < 6; step++) {
        double *from = step % 2 ? b : a, *to = step % 2 ? a : b;
        for (int i = 1; i < N - 1; i++)
            for (int j = 1; j < N - 1; j++) {
                double *at = from + i * N + j;
                to[i * N + j] = (at[0] + at[1] + at[-1] + at[N] + at[-N]) / 5;
            }
    }
    return a[7];
}

static uint64_t fft(void) {
    enum { BITS = 16, N = 1 << BITS };
    typedef struct { double re, im; } number;
    number *a = room(N * 16), *w = room(N * 8);
    for (unsigned i = 0; i < N; i++) {
        unsigned j = 0;
        for (int bit = 0; bit < BITS; bit++)
            j |= (i >> bit & 1) << (BITS - 1 - bit);
        if (i < j) {
            number other = a[i];
            a[i] = a[j], a[j] = other;
        }
    }
    for (size_t half = 1; half < N; half *= 2)
        for (size_t start = 0; start < N; start += 2 * half)
            for (size_t k = 0; k < half; k++) {
                number *x = a + start + k, *y = x + half, *f = w + k * (N / 2 / half);
                double re = y->re * f->re - y->im * f->im, im = y->re * f->im + y->im * f->re;
                y->re = x->re - re, y->im = x->im - im, x->re += re, x->im += im;
            }
    return a[7].re;
}

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void sort(uint64_t *data, long low, long high) {
    while (high - low > 1) {
        uint64_t pivot = data[(low + high - 1) / 2];
        long i = low - 1, j = high;
        for (;;) {
            do i++; while (data[i] < pivot);
            do j--; while (data[j] > pivot);
            if (i >= j)
                break;
            uint64_t other = data[i];
            data[i] = data[j], data[j] = other;
        }
        sort(data, low, j + 1);
        low = j + 1;
    }
}

static uint64_t quicksort(void) {
    long n = 300000;
    uint64_t *data = room(n * 8);
    for (long i = 0; i < n; i++)
        data[i] = draw();
    sort(data, 0, n);
    return data[7];
}

static uint64_t mergesort(void) {
    size_t n = 1 << 17;
    uint32_t *from = room(n * 4), *to = room(n * 4);
    for (size_t i = 0; i < n; i++)
        from[i] = draw();
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t start = 0; start < n; start += 2 * width) {
            size_t i = start, j = start + width, middle = j, end = start + 2 * width;
            for (size_t k = start; k < end; k++)
                to[k] = i < middle && (j >= end || from[i] <= from[j]) ? from[i++] : from[j++];
        }
        uint32_t *other = from;
        from = to, to = other;
    }
    return from[7];
}

static uint64_t list(void) {
    size_t n = 120000, *order = room(n * 8);
    uint64_t(*node)[4] = room(n * 32), sum = 0;
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    for (size_t i = n - 1; i > 0; i--) {
        size_t j = draw() % (i + 1), other = order[i];
        order[i] = order[j], order[j] = other;
    }
    for (size_t i = 0; i < n; i++)
        node[order[i]][0] = order[(i + 1) % n];
    size_t at = order[0];
    for (size_t step = 0; step < 30 * n; step++)
        sum += node[at][1], at = node[at][0];
    return sum;
}

static uint64_t hash(void) {
    size_t n = 200000, slots = 1 << 17;
    uint32_t *slot = room(slots * 4);
    struct { uint64_t key, value, next[4]; } *entry = room(n * 48);
    uint64_t sum = 0;
    for (int i = 0; i < 2000000; i++) {
        double u = (double)(draw() >> 11) / 9007199254740992.0;
        size_t key = (size_t)(u * u * u * (double)n);
        sum += slot[key * 0x9e3779b97f4a7c15u >> 47];
        for (size_t hop = 0; hop <= key % 3; hop++)
            sum += entry[(key + hop * 7919) % n].key;
        entry[key].value = sum;
    }
    return sum;
}

static uint64_t bfs(void) {
    enum { N = 100000, DEGREE = 8 };
    uint32_t *edge = room(N * DEGREE * 4), *queue = room(N * 4), *first = room(N * 4);
    uint8_t *seen = room(N);
    for (size_t i = 0; i < N * DEGREE; i++)
        edge[i] = draw() % N;
    for (uint32_t i = 0; i < N; i++)
        first[i] = i * DEGREE;
    uint32_t tail = 0;
    for (int root = 0; root < 6; root++) {
        memset(seen, 0, N);
        uint32_t head = 0;
        tail = 0;
        queue[tail++] = root * 997, seen[root * 997] = 1;
        while (head < tail) {
            uint32_t at = first[queue[head++]];
            for (int i = 0; i < DEGREE; i++) {
                uint32_t next = edge[at + i];
                if (!seen[next])
                    seen[next] = 1, queue[tail++] = next;
            }
        }
    }
    return tail;
}

static uint64_t zipf(void) {
    uint64_t *data = room((1 << 20) * 8), sum = 0;
    for (int i = 0; i < 5000000; i++) {
        /* Log-uniform ranks: shares fall with the rank. */
        uint64_t bits = draw() % 20, rank = (1u << bits) + draw() % (1u << bits);
        sum += data[rank * 0x9e3779b9u % (1 << 20)];
    }
    return sum;
}

static uint64_t uniform(void) {
    uint64_t *data = room(200000 * 8), sum = 0;
    for (int i = 0; i < 5000000; i++)
        sum += data[draw() % 200000];
    return sum;
}

static uint64_t spmv(void) {
    enum { ROWS = 60000, EACH = 9 };
    uint32_t *column = room(ROWS * EACH * 4), *start = room(ROWS * 4);
    double *value = room(ROWS * EACH * 8), *x = room(ROWS * 8), *y = room(ROWS * 8);
    for (size_t i = 0; i < ROWS * EACH; i++)
        column[i] = i % 3 ? (i / EACH + draw() % 50) % ROWS : draw() % ROWS;
    for (uint32_t row = 0; row < ROWS; row++)
        start[row] = row * EACH;
    for (int round = 0; round < 6; round++)
        for (size_t row = 0; row < ROWS; row++) {
            double sum = 0;
            for (size_t i = start[row]; i < start[row] + EACH; i++)
                sum += value[i] * x[column[i]];
            y[row] = sum;
        }
    return y[7];
}

static uint64_t btree(void) {
    enum { LEVELS = 4, KEYS = 32, LEAVES = 1 << 20 };
    struct node { uint64_t key[KEYS]; uint64_t child[KEYS]; } *level[LEVELS];
    uint64_t sum = 0;
    for (int i = 0; i < LEVELS; i++)
        level[i] = room(((size_t)1 << 5 * i) * sizeof(struct node));
    for (int i = 0; i < LEVELS; i++)
        for (size_t n = 0; n < (size_t)1 << 5 * i; n++)
            for (int k = 0; k < KEYS; k++)
                level[i][n].key[k] = k, level[i][n].child[k] = n * KEYS + k;
    for (int i = 0; i < 300000; i++) {
        uint64_t leaf = draw() % LEAVES, at = 0;
        for (int depth = 0; depth < LEVELS; depth++) {
            uint64_t wanted = leaf >> 5 * (LEVELS - 1 - depth) & 31;
            struct node *node = &level[depth][at];
            int low = 0, high = KEYS;
            while (high - low > 1) {
                int middle = (low + high) / 2;
                if (node->key[middle] > wanted)
                    high = middle;
                else
                    low = middle;
            }
            at = node->child[low];
        }
        sum += at;
    }
    return sum;
}

static uint64_t phases(void) {
    uint64_t *a = room(1000000 * 8), (*b)[8] = room(40000 * 64), *c = room(50000 * 8), sum = 0;
    for (size_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < 1000000; i++)
            sum += ((volatile uint64_t *)a)[i % 300];
        for (size_t i = 0; i < 1000000; i++)
            sum += b[i % (20000 + 3000 * round)][0];
        for (size_t i = 0; i < 500000; i++)
            sum += c[draw() % 50000];
        for (size_t i = 0; i < 1000000; i++)
            sum += a[i];
    }
    return sum;
}

static uint64_t vector(void) {
    typedef uint64_t wide __attribute__((vector_size(16)));
    wide *a = room(30000 * 16), *b = room(30000 * 16);
    for (int round = 0; round < 60; round++)
        for (int i = 0; i < 20000 + 2000 * (round % 5); i++)
            a[i] += b[i];
    return a[7][0];
}

static uint64_t library_sort(void) {
    size_t n = 150000;
    uint64_t *data = room(n * 8);
    for (size_t i = 0; i < n; i++)
        data[i] = draw();
    qsort(data, n, 8, compare);
    return data[7];
}

static const struct { const char *name; uint64_t (*run)(void); } all[] = {
    {"stream", stream}, {"matmul", matmul}, {"blocked", blocked}, {"transpose", transpose}, {"stencil", stencil},
    {"fft", fft}, {"quicksort", quicksort}, {"mergesort", mergesort}, {"list", list}, {"hash", hash}, {"bfs", bfs},
    {"zipf", zipf}, {"uniform", uniform}, {"spmv", spmv}, {"btree", btree}, {"phases", phases}, {"vector", vector},
    {"qsort", library_sort},
};

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (argc > 1 && !strcmp(argv[1], all[i].name))
            return printf("%llu\n", (unsigned long long)all[i].run()) < 0;
    return fprintf(stderr, "usage: kernels NAME\n"), 2;
}
