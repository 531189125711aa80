/* Types that are wider than the values that they hold. */
// build: gcc -O2 -g -pthread -o $BIN $SRC
#include "advice.h"

enum { SAMPLES = 20 << 20 };

static size_t count;
/* flaw: codes */
static int64_t *codes;
static uint8_t *short_codes;
static int64_t weight[256];

static void take_weights(void) {
    count = SAMPLES;
    for (int i = 0; i < 256; i++)
        weight[i] = i * 3 % 17;
}

static void take_codes(void) {
    take_weights();
    codes = filled(SAMPLES * sizeof *codes);
    for (size_t i = 0; i < SAMPLES; i++)
        codes[i] = (int64_t)below(200);
}

static void take_short_codes(void) {
    take_weights();
    short_codes = filled(SAMPLES * sizeof *short_codes);
    for (size_t i = 0; i < SAMPLES; i++)
        short_codes[i] = (uint8_t)below(200);
}

static uint64_t weigh_codes(void) {
    int64_t sum = 0;
    /* flaw: codes */
    for (size_t i = 0; i < count; i++)
        sum += weight[codes[i]];
    return (uint64_t)sum;
}

static uint64_t weigh_short_codes(void) {
    int64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += weight[short_codes[i]];
    return (uint64_t)sum;
}

/* A sparse matrix whose column numbers, below 60,000, are 64 bits wide. */
enum { LINES = 200000, PER_LINE = 40, WIDTH = 60000 };

static size_t lines;
/* flaw: sparse_product */
static int64_t *columns;
static uint16_t *short_columns;
static float *values, *input, *output;

static void take_vectors(void) {
    lines = LINES;
    values = filled((size_t)LINES * PER_LINE * sizeof *values);
    input = filled(WIDTH * sizeof *input);
    output = filled(LINES * sizeof *output);
    for (size_t i = 0; i < (size_t)LINES * PER_LINE; i++)
        values[i] = (float)(i % 7);
    for (size_t i = 0; i < WIDTH; i++)
        input[i] = (float)(i % 5);
}

static int64_t column_of(size_t i) { return (int64_t)((i % PER_LINE) * (WIDTH / PER_LINE) + below(WIDTH / PER_LINE)); }

static void take_columns(void) {
    take_vectors();
    columns = filled((size_t)LINES * PER_LINE * sizeof *columns);
    for (size_t i = 0; i < (size_t)LINES * PER_LINE; i++)
        columns[i] = column_of(i);
}

static void take_short_columns(void) {
    take_vectors();
    short_columns = filled((size_t)LINES * PER_LINE * sizeof *short_columns);
    for (size_t i = 0; i < (size_t)LINES * PER_LINE; i++)
        short_columns[i] = (uint16_t)column_of(i);
}

static uint64_t checksum_of_output(void) {
    return (uint64_t)(output[1] + 3 * output[LINES / 2] + 7 * output[LINES - 1]);
}

static uint64_t multiply_columns(void) {
    /* flaw: sparse_product */
    for (size_t line = 0; line < lines; line++) {
        float even = 0, odd = 0;
        for (size_t i = line * PER_LINE; i < (line + 1) * PER_LINE; i += 2) {
            even += values[i] * input[columns[i]];
            odd += values[i + 1] * input[columns[i + 1]];
        }
        output[line] = even + odd;
    }
    return checksum_of_output();
}

static uint64_t multiply_short_columns(void) {
    for (size_t line = 0; line < lines; line++) {
        float even = 0, odd = 0;
        for (size_t i = line * PER_LINE; i < (line + 1) * PER_LINE; i += 2) {
            even += values[i] * input[short_columns[i]];
            odd += values[i + 1] * input[short_columns[i + 1]];
        }
        output[line] = even + odd;
    }
    return checksum_of_output();
}

KERNELS({"codes", {{"flawed", take_codes, weigh_codes}, {"mended", take_short_codes, weigh_short_codes}}, 1},
        {"sparse_product",
         {{"flawed", take_columns, multiply_columns}, {"mended", take_short_columns, multiply_short_columns}},
         1})
