/* Programs with nothing to mend. The first two look bad, but gain nothing: `mended` shows it. */
// build: gcc -O2 -g -fopenmp-simd -pthread -o $BIN $SRC
#include "advice.h"

/* Three arrays of 96 MiB in huge pages, each touched once, vectorised: as fast as the memory is. */
enum { STREAM = 12 << 20 };

static double *stream_a, *stream_b, *stream_c;

static void take_stream(void) {
    size_t bytes = STREAM * sizeof(double);
    stream_a = filled_aligned(bytes, MADV_HUGEPAGE);
    stream_b = filled_aligned(bytes, MADV_HUGEPAGE);
    stream_c = filled_aligned(bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < STREAM; i++)
        stream_b[i] = (double)(i % 7), stream_c[i] = (double)(i % 9);
}

static uint64_t triad(void) {
    double *a = stream_a;
    const double *b = stream_b, *c = stream_c;
#pragma omp simd
    for (size_t i = 0; i < STREAM; i++)
        a[i] = b[i] + 3.0 * c[i];
    return (uint64_t)(a[5] + a[STREAM - 1]);
}

static uint64_t triad_with_prefetch(void) {
    double *a = stream_a;
    const double *b = stream_b, *c = stream_c;
    for (size_t block = 0; block < STREAM; block += 8) {
        __builtin_prefetch(b + block + 256);
        __builtin_prefetch(c + block + 256);
#pragma omp simd
        for (size_t i = block; i < block + 8; i++)
            a[i] = b[i] + 3.0 * c[i];
    }
    return (uint64_t)(a[5] + a[STREAM - 1]);
}

/* A chain of multiplications over a text in the first level; seldom, a matrix is walked down its columns. */
enum { SIDE = 300, TEXT = 1 << 13, TEXTS = 3000 };

static double (*table)[SIDE];
static uint8_t *message;

static void take_text(void) {
    message = filled(TEXT);
    for (int i = 0; i < TEXT; i++)
        message[i] = (uint8_t)(i * 31 >> 2);
}

static void take_table(void) {
    take_text();
    table = filled(sizeof(double[SIDE][SIDE]));
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            table[y][x] = (y + x) % 5;
}

/* Every step of the digest (FNV-1a) needs the one before. */
static uint64_t digest(int texts) {
    uint64_t state = 0xcbf29ce484222325u;
    for (int count = 0; count < texts; count++)
        for (int i = 0; i < TEXT; i++)
            state = (state ^ message[i]) * 0x100000001b3u;
    return state;
}

static double sum_of_columns(void) {
    double sum = 0;
    for (int x = 0; x < SIDE; x++)
        for (int y = 0; y < SIDE; y++)
            sum += table[y][x];
    return sum;
}

static double sum_of_rows(void) {
    double sum = 0;
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            sum += table[y][x];
    return sum;
}

static uint64_t digest_and_columns(void) { return digest(TEXTS) + (uint64_t)sum_of_columns(); }

static uint64_t digest_and_rows(void) { return digest(TEXTS) + (uint64_t)sum_of_rows(); }

static uint64_t digest_alone(void) { return digest(100); }

/* A matrix product in tiles that fit into the first level, vectorised. */
enum { ORDER = 384, TILE = 48 };

static float (*left)[ORDER], (*right)[ORDER], (*product)[ORDER];

static void take_matrices(void) {
    left = filled_aligned(2 << 20, 0);
    right = filled_aligned(2 << 20, 0);
    product = filled_aligned(2 << 20, 0);
    for (int i = 0; i < ORDER; i++)
        for (int j = 0; j < ORDER; j++)
            left[i][j] = (float)((i + j) % 3), right[i][j] = (float)((i * 5 + j) % 7);
}

/* Four rows at a time, so that each element of `right` is used four times once it is in a register. */
static void add_tile(int is, int ks, int js) {
    for (int i = is; i < is + TILE; i += 4)
        for (int k = ks; k < ks + TILE; k++) {
            float f0 = left[i][k], f1 = left[i + 1][k], f2 = left[i + 2][k], f3 = left[i + 3][k];
#pragma omp simd
            for (int j = js; j < js + TILE; j++) {
                float of_right = right[k][j];
                product[i][j] += f0 * of_right;
                product[i + 1][j] += f1 * of_right;
                product[i + 2][j] += f2 * of_right;
                product[i + 3][j] += f3 * of_right;
            }
        }
}

static uint64_t product_in_tiles(void) {
    memset(product, 0, sizeof(float[ORDER][ORDER]));
    for (int is = 0; is < ORDER; is += TILE)
        for (int ks = 0; ks < ORDER; ks += TILE)
            for (int js = 0; js < ORDER; js += TILE)
                add_tile(is, ks, js);
    return (uint64_t)(product[1][2] + product[ORDER - 1][ORDER - 1]);
}

/* Radix sort of numbers that fit into the second level. */
enum { NUMBERS = 40000 };

static uint32_t *unsorted, *sorted, *scratch;

static void take_numbers(void) {
    unsorted = filled(NUMBERS * sizeof *unsorted);
    sorted = filled(NUMBERS * sizeof *sorted);
    scratch = filled(NUMBERS * sizeof *scratch);
    for (int i = 0; i < NUMBERS; i++)
        unsorted[i] = (uint32_t)draw();
}

static void sort_by_digit(uint32_t *to, const uint32_t *from, int shift) {
    uint32_t start[256] = {0};
    for (int i = 0; i < NUMBERS; i++)
        start[from[i] >> shift & 255]++;
    for (uint32_t digit = 0, sum = 0; digit < 256; digit++) {
        uint32_t here = start[digit];
        start[digit] = sum;
        sum += here;
    }
    for (int i = 0; i < NUMBERS; i++)
        to[start[from[i] >> shift & 255]++] = from[i];
}

static uint64_t sort_numbers(void) {
    sort_by_digit(scratch, unsorted, 0);
    sort_by_digit(sorted, scratch, 8);
    sort_by_digit(scratch, sorted, 16);
    sort_by_digit(sorted, scratch, 24);
    return sorted[0] ^ sorted[NUMBERS / 2] ^ sorted[NUMBERS - 1];
}

/* Primes by segments of 16 KiB: strides of all lengths, but within the first level. */
enum { SEGMENT = 16384, SEGMENTS = 40, SMALL = 810 };

static uint64_t count_primes(void) {
    static uint8_t composite[SEGMENT];
    static uint32_t primes[SMALL], next[SMALL];
    uint64_t found = 0;
    int known = 0;
    for (uint32_t n = 3; n < SMALL; n += 2) {
        int prime = 1;
        for (int i = 0; i < known && primes[i] * primes[i] <= n; i++)
            prime &= n % primes[i] != 0;
        if (prime) {
            primes[known] = n;
            next[known++] = n * n / 2;
        }
    }
    for (uint32_t segment = 0; segment < SEGMENTS; segment++) {
        memset(composite, 0, SEGMENT);
        for (int i = 0; i < known; i++) {
            uint32_t at = next[i];
            for (; at < SEGMENT; at += primes[i])
                composite[at] = 1;
            next[i] = at - SEGMENT;
        }
        for (int i = 0; i < SEGMENT; i += 8) {
            uint64_t eight;
            memcpy(&eight, composite + i, 8);
            found += 8 - (eight * 0x0101010101010101u >> 56);
        }
    }
    return found;
}

/* Five points on a grid in the first level, vectorised. */
enum { GRID = 40, SWEEPS = 400 };

static void relax(float to[GRID][GRID], float from[GRID][GRID]) {
    for (int y = 1; y < GRID - 1; y++) {
#pragma omp simd
        for (int x = 1; x < GRID - 1; x++)
            to[y][x] = from[y - 1][x] + from[y + 1][x] + from[y][x - 1] + from[y][x + 1] - 3 * from[y][x];
    }
}

static uint64_t relax_grid(void) {
    static float one[GRID][GRID], other[GRID][GRID];
    for (int y = 0; y < GRID; y++)
        for (int x = 0; x < GRID; x++)
            one[y][x] = other[y][x] = 5;
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        relax(other, one);
        relax(one, other);
    }
    return (uint64_t)one[GRID / 2][GRID / 2];
}

/* A table that looks random, but lies in the first level. */
static uint64_t substitute(void) {
    static uint8_t box[256], text[1 << 14];
    for (int i = 0; i < 256; i++)
        box[i] = (uint8_t)(i * 167 + 13);
    for (int i = 0; i < 1 << 14; i++)
        text[i] = (uint8_t)(i * i);
    for (int round = 0; round < 64; round++)
        for (int i = 0; i < 1 << 14; i++)
            text[i] = box[text[i]];
    return text[77] + 256u * text[9999];
}

/* A finite automaton: the next state needs the state before. */
static uint64_t count_words(void) {
    static uint8_t next[4][256], text[1 << 15];
    for (int c = 0; c < 256; c++) {
        next[0][c] = c % 8 ? 1 : 0;
        next[1][c] = c % 8 ? 1 : 2;
        next[2][c] = c % 8 ? 3 : 2;
        next[3][c] = c % 16 ? 3 : 0;
    }
    for (int i = 0; i < 1 << 15; i++)
        text[i] = (uint8_t)(i * 2654435761u >> 11);
    uint64_t counted = 0;
    for (int round = 0; round < 32; round++) {
        unsigned state = 0;
        for (int i = 0; i < 1 << 15; i++) {
            state = next[state][text[i]];
            counted += state == 2;
        }
    }
    return counted;
}

/* Two threads whose counters have lines of their own. */
static volatile struct { int64_t hits; char padding[120]; } counters[2] __attribute__((aligned(128)));

static uint64_t count_apart(void) {
    volatile int64_t *mine = &counters[thread_number].hits;
    uint64_t state = 99;
    *mine = 0;
    for (int i = 0; i < 1 << 18; i++) {
        state = (state ^ state >> 31) * 0x94d049bb133111ebu;
        *mine += (int64_t)(state & 1);
    }
    return (uint64_t)*mine;
}

/* An array of structures of which every field is used, in order. */
struct vertex {
    float x, y, z, w, u, v, s, t;
};

enum { VERTICES = 3000 };

static struct vertex *vertices;

static void take_vertices(void) {
    vertices = filled(VERTICES * sizeof *vertices);
    for (int i = 0; i < VERTICES; i++)
        vertices[i] = (struct vertex){(float)(i % 3), 1, 2, 3, 4, 5, 6, 7};
}

static uint64_t mirror_vertices(void) {
    for (int repeat = 0; repeat < 100; repeat++)
        for (int i = 0; i < VERTICES; i++) {
            struct vertex *v = &vertices[i];
            v->x = 9 - v->x;
            v->y = 9 - v->y;
            v->z = 9 - v->z;
            v->w = 9 - v->w;
            v->u = 7 - v->u;
            v->v = 7 - v->v;
            v->s = 7 - v->s;
            v->t = 7 - v->t;
        }
    return (uint64_t)(vertices[1].x + 10 * vertices[VERTICES - 1].t);
}

KERNELS({"triad", {{"flawed", take_stream, triad}, {"mended", take_stream, triad_with_prefetch}}, 1},
        {"rare_columns", {{"flawed", take_table, digest_and_columns}, {"mended", take_table, digest_and_rows}}, 1},
        {"digest", {{"flawed", take_text, digest_alone}}, 1},
        {"tiled_product", {{"flawed", take_matrices, product_in_tiles}}, 1},
        {"radix_sort", {{"flawed", take_numbers, sort_numbers}}, 1},
        {"sieve", {{"flawed", NULL, count_primes}}, 1},
        {"relaxation", {{"flawed", NULL, relax_grid}}, 1},
        {"substitution", {{"flawed", NULL, substitute}}, 1},
        {"automaton", {{"flawed", NULL, count_words}}, 1},
        {"own_lines", {{"flawed", NULL, count_apart}}, 2},
        {"vertices", {{"flawed", take_vertices, mirror_vertices}}, 1})
