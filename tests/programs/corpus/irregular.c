/* Pointers and indices: distances that depend on the data. */
// build: gcc -O2 -g -o $BIN $SRC
#include "corpus.h"

static void *node(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory)
        abort();
    return memory;
}

/* A list of 6 MiB in random order, walked 40 times. */
static uint64_t list(void) {
    enum { N = 100000 };
    struct item {
        struct item *next;
        uint64_t value, unused[6];
    } *items = take(N * sizeof *items), *at = items;
    uint32_t *order = take(N * sizeof *order);
    shuffle(order, N);
    for (uint32_t i = 0; i < N; i++)
        items[order[i]].next = &items[order[(i + 1) % N]], items[order[i]].value = i;
    uint64_t sum = 0;
    for (uint32_t step = 0; step < 40 * N; step++, at = at->next)
        sum += at->value;
    return sum;
}

/* Chained table: 100,000 insertions, a million searches of which half succeed. */
static uint64_t hash(void) {
    enum { N = 100000, BUCKETS = 1 << 16 };
    struct entry {
        struct entry *next;
        uint64_t key, value;
    } **bucket = take(BUCKETS * sizeof *bucket);
    memset(bucket, 0, BUCKETS * sizeof *bucket);
    for (uint64_t key = 0; key < N; key++) {
        struct entry *entry = node(sizeof *entry), **head = &bucket[key * 0x9e3779b97f4a7c15u >> 48];
        *entry = (struct entry){*head, key, key};
        *head = entry;
    }
    uint64_t sum = 0;
    for (int i = 0; i < 1000000; i++) {
        uint64_t key = below(2 * N);
        for (struct entry *entry = bucket[key * 0x9e3779b97f4a7c15u >> 48]; entry; entry = entry->next)
            if (entry->key == key) {
                sum += entry->value++;
                break;
            }
    }
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct entry *entry = bucket[i], *next; entry; entry = next)
            next = entry->next, free(entry);
    return sum;
}

/* Search tree that is not balanced: 40,000 insertions, 200,000 searches. */
static uint64_t tree(void) {
    enum { N = 40000 };
    struct leaf {
        struct leaf *side[2];
        uint64_t key, seen;
    } *root = NULL;
    struct leaf **all = take(N * sizeof *all);
    size_t count = 0;
    while (count < N) {
        uint64_t key = below(4 * N);
        struct leaf **at = &root;
        while (*at && (*at)->key != key)
            at = &(*at)->side[key > (*at)->key];
        if (!*at) {
            *at = all[count++] = node(sizeof **at);
            **at = (struct leaf){{NULL, NULL}, key, 0};
        }
    }
    uint64_t sum = 0;
    for (int i = 0; i < 200000; i++) {
        uint64_t key = below(4 * N);
        struct leaf *at = root;
        while (at && at->key != key)
            at = at->side[key > at->key];
        if (at)
            sum += ++at->seen;
    }
    while (count > 0)
        free(all[--count]);
    return sum;
}

static void quick(uint32_t *a, long low, long high) {
    while (low < high) {
        uint32_t pivot = a[(low + high) / 2];
        long i = low, j = high;
        while (i <= j) {
            while (a[i] < pivot)
                i++;
            while (a[j] > pivot)
                j--;
            if (i <= j) {
                uint32_t other = a[i];
                a[i++] = a[j], a[j--] = other;
            }
        }
        if (j - low < high - i) {
            quick(a, low, j);
            low = i;
        } else {
            quick(a, i, high);
            high = j;
        }
    }
}

/* Quicksort of 400,000 numbers. */
static uint64_t quicksort(void) {
    enum { N = 400000 };
    uint32_t *a = take(N * sizeof *a);
    for (int i = 0; i < N; i++)
        a[i] = (uint32_t)draw();
    quick(a, 0, N - 1);
    return a[N / 2];
}

/* Sparse matrix by vector, 60,000 rows of 12 in random columns, five times. */
static uint64_t spmv(void) {
    enum { ROWS = 60000, EACH = 12 };
    uint32_t *column = take(ROWS * EACH * 4);
    double *value = take(ROWS * EACH * 8), *x = take(ROWS * 8), *y = take(ROWS * 8);
    for (int i = 0; i < ROWS * EACH; i++)
        column[i] = (uint32_t)below(ROWS), value[i] = 0.1;
    for (int i = 0; i < ROWS; i++)
        x[i] = 1;
    for (int round = 0; round < 5; round++) {
        for (int row = 0; row < ROWS; row++) {
            double sum = 0;
            for (int i = row * EACH; i < (row + 1) * EACH; i++)
                sum += value[i] * x[column[i]];
            y[row] = sum;
        }
        double *other = x;
        x = y, y = other;
    }
    return (uint64_t)(x[7] * 1000);
}

/* 4 million bytes pairwise into 65,536 counters, most of them near each other. */
static uint64_t histogram(void) {
    enum { N = 4000000 };
    uint8_t *text = take(N);
    uint64_t *count = take(65536 * 8), sum = 0;
    memset(count, 0, 65536 * 8);
    for (int i = 0; i < N; i++) {
        uint64_t r = draw();
        text[i] = (uint8_t)((r & 15) + (r >> 8 & 15) + (r >> 16 & 63));
    }
    for (int i = 1; i < N; i++)
        count[text[i - 1] << 8 | text[i]]++;
    for (int i = 0; i < 65536; i++)
        sum ^= count[i] * (uint64_t)i;
    return sum;
}

/* Random updates of a table of 32 MiB. */
static uint64_t walk(void) {
    enum { N = 4 << 20 };
    uint64_t *table = take(N * 8), sum = 0;
    for (int i = 0; i < N; i++)
        table[i] = (uint64_t)i;
    for (int i = 0; i < 5000000; i++)
        sum ^= table[below(N)] += sum;
    return sum;
}

/* Horspool's search for eight patterns of 4 bytes in 2 million of four letters. */
static uint64_t search(void) {
    enum { N = 2000000, LENGTH = 4 };
    uint8_t *text = take(N), pattern[LENGTH], shift[256];
    for (int i = 0; i < N; i++)
        text[i] = (uint8_t)('a' + below(4));
    uint64_t found = 0;
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < LENGTH; i++)
            pattern[i] = (uint8_t)('a' + below(4));
        memset(shift, LENGTH, sizeof shift);
        for (int i = 0; i < LENGTH - 1; i++)
            shift[pattern[i]] = (uint8_t)(LENGTH - 1 - i);
        for (int at = 0; at <= N - LENGTH; at += shift[text[at + LENGTH - 1]]) {
            int i = LENGTH - 1;
            while (i >= 0 && text[at + i] == pattern[i])
                i--;
            found += i < 0;
        }
    }
    return found;
}

/* Breadth-first from 4 vertices of a random graph: 150,000 vertices with 6 edges each. */
static uint64_t bfs(void) {
    enum { N = 150000, EACH = 6 };
    uint32_t *edge = take(N * EACH * 4), *depth = take(N * 4), *queue = take(N * 4);
    for (int i = 0; i < N * EACH; i++)
        edge[i] = (uint32_t)below(N);
    uint64_t sum = 0;
    for (uint32_t start = 0; start < 4; start++) {
        memset(depth, 0xff, N * 4);
        uint32_t head = 0, tail = 0;
        queue[tail++] = start, depth[start] = 0;
        while (head < tail) {
            uint32_t at = queue[head++];
            for (int i = 0; i < EACH; i++) {
                uint32_t next = edge[at * EACH + i];
                if (depth[next] == UINT32_MAX)
                    depth[next] = depth[at] + 1, queue[tail++] = next;
            }
        }
        sum += depth[queue[tail - 1]];
    }
    return sum;
}

KERNELS({"list", list}, {"hash", hash}, {"tree", tree}, {"quicksort", quicksort}, {"spmv", spmv}, {"histogram", histogram},
        {"walk", walk}, {"search", search}, {"bfs", bfs})
