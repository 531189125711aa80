/* Loops that do not wait for memory: chains of additions, one element at a time, branches that nobody can
 * foresee. */
// build: gcc -O2 -g -fopenmp-simd -pthread -o $BIN $SRC
#include "advice.h"

enum { SHORT = 2000, REPEATS = 200 };

static size_t count;
static double *numbers;
static float *xs, *ys, *zs;

static void take_numbers(void) {
    count = SHORT;
    numbers = filled(SHORT * sizeof *numbers);
    for (int i = 0; i < SHORT; i++)
        numbers[i] = i % 23;
}

static double sum_in_one_chain(const double *from) {
    double sum = 0;
    /* flaw: chained_sum */
    for (size_t i = 0; i < count; i++)
        sum += from[i];
    return sum;
}

static double sum_in_four_chains(const double *from) {
    double sum[4] = {0};
    for (size_t i = 0; i < count; i += 4) {
        sum[0] += from[i];
        sum[1] += from[i + 1];
        sum[2] += from[i + 2];
        sum[3] += from[i + 3];
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static uint64_t sums_in_one_chain(void) {
    double all = 0;
    for (int repeat = 0; repeat < REPEATS; repeat++)
        all += sum_in_one_chain(numbers);
    return (uint64_t)all;
}

static uint64_t sums_in_four_chains(void) {
    double all = 0;
    for (int repeat = 0; repeat < REPEATS; repeat++)
        all += sum_in_four_chains(numbers);
    return (uint64_t)all;
}

static void take_floats(void) {
    count = SHORT;
    xs = filled(SHORT * sizeof *xs);
    ys = filled(SHORT * sizeof *ys);
    zs = filled(SHORT * sizeof *zs);
    for (int i = 0; i < SHORT; i++)
        xs[i] = (float)(i % 3), ys[i] = (float)(i % 7);
}

static float dot_in_one_chain(const float *a, const float *b) {
    float sum = 0;
    /* flaw: dot_product */
    for (size_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

static float dot_in_four_chains(const float *a, const float *b) {
    float sum[4] = {0};
    for (size_t i = 0; i < count; i += 4) {
        sum[0] += a[i] * b[i];
        sum[1] += a[i + 1] * b[i + 1];
        sum[2] += a[i + 2] * b[i + 2];
        sum[3] += a[i + 3] * b[i + 3];
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static uint64_t dots_in_one_chain(void) {
    double all = 0;
    for (int repeat = 0; repeat < REPEATS; repeat++)
        all += dot_in_one_chain(xs, ys);
    return (uint64_t)all;
}

static uint64_t dots_in_four_chains(void) {
    double all = 0;
    for (int repeat = 0; repeat < REPEATS; repeat++)
        all += dot_in_four_chains(xs, ys);
    return (uint64_t)all;
}

/* At -O2 gcc does not vectorise a loop whose number of rounds it does not know. */
static void mix_one_by_one(float *to, const float *a, const float *b) {
    /* flaw: mix */
    for (size_t i = 0; i < count; i++)
        to[i] = a[i] * 3.0f + b[i] * 2.0f + 1.0f;
}

static void mix_vectorised(float *to, const float *a, const float *b) {
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        to[i] = a[i] * 3.0f + b[i] * 2.0f + 1.0f;
}

static uint64_t mixes_one_by_one(void) {
    for (int repeat = 0; repeat < REPEATS; repeat++)
        mix_one_by_one(zs, xs, ys);
    return (uint64_t)(zs[5] + zs[SHORT - 1]);
}

static uint64_t mixes_vectorised(void) {
    for (int repeat = 0; repeat < REPEATS; repeat++)
        mix_vectorised(zs, xs, ys);
    return (uint64_t)(zs[5] + zs[SHORT - 1]);
}

/* Levels of sound with both channels side by side: a stride of two. */
static int16_t *stereo, *left, *right, *level;

static void take_stereo(void) {
    count = SHORT;
    stereo = filled(2 * SHORT * sizeof *stereo);
    left = filled(SHORT * sizeof *left);
    right = filled(SHORT * sizeof *right);
    level = filled(SHORT * sizeof *level);
    for (int i = 0; i < SHORT; i++) {
        left[i] = stereo[2 * i] = (int16_t)(i % 1000);
        right[i] = stereo[2 * i + 1] = (int16_t)(i % 700);
    }
}

static void level_of_stereo(int16_t *to, const int16_t *from) {
    /* flaw: stereo */
    for (size_t i = 0; i < count; i++)
        to[i] = (int16_t)((from[2 * i] >> 1) + (from[2 * i + 1] >> 1));
}

static void level_of_channels(int16_t *to, const int16_t *from_left, const int16_t *from_right) {
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        to[i] = (int16_t)((from_left[i] >> 1) + (from_right[i] >> 1));
}

static uint64_t levels_of_stereo(void) {
    for (int repeat = 0; repeat < REPEATS; repeat++)
        level_of_stereo(level, stereo);
    return (uint64_t)level[7] + (uint64_t)level[SHORT - 1];
}

static uint64_t levels_of_channels(void) {
    for (int repeat = 0; repeat < REPEATS; repeat++)
        level_of_channels(level, left, right);
    return (uint64_t)level[7] + (uint64_t)level[SHORT - 1];
}

/* Those of some values that exceed a limit, in a list. */
enum { DRAWN = 100000 };

static uint32_t *drawn, *chosen;

static void take_drawn(void) {
    count = DRAWN;
    drawn = filled(DRAWN * sizeof *drawn);
    chosen = filled((DRAWN + 1) * sizeof *chosen);
    for (int i = 0; i < DRAWN; i++)
        drawn[i] = (uint32_t)below(1000);
}

static uint64_t choose_by_branch(void) {
    size_t chosen_count = 0;
    /* flaw: filter */
    for (size_t i = 0; i < count; i++)
        if (drawn[i] >= 500)
            chosen[chosen_count++] = drawn[i];
    return chosen_count + chosen[0] + chosen[chosen_count - 1];
}

static uint64_t choose_without_branch(void) {
    size_t chosen_count = 0;
    for (size_t i = 0; i < count; i++) {
        chosen[chosen_count] = drawn[i];
        chosen_count += drawn[i] >= 500;
    }
    return chosen_count + chosen[0] + chosen[chosen_count - 1];
}

/* A step of quicksort, on a copy: what is below the pivot goes to the front. */
static uint32_t *parted;

static void take_parted(void) {
    take_drawn();
    parted = filled(DRAWN * sizeof *parted);
}

static size_t part_by_branch(uint32_t *array, uint32_t pivot) {
    size_t low = 0;
    /* flaw: partition */
    for (size_t i = 0; i < count; i++)
        if (array[i] < pivot) {
            uint32_t other = array[low];
            array[low++] = array[i];
            array[i] = other;
        }
    return low;
}

static size_t part_without_branch(uint32_t *array, uint32_t pivot) {
    size_t low = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t this_one = array[i];
        array[i] = array[low];
        array[low] = this_one;
        low += this_one < pivot;
    }
    return low;
}

static uint64_t partition_by_branch(void) {
    memcpy(parted, drawn, DRAWN * sizeof *parted);
    size_t low = part_by_branch(parted, 470);
    return low + parted[0] + 1000ul * (parted[low] >= 470);
}

static uint64_t partition_without_branch(void) {
    memcpy(parted, drawn, DRAWN * sizeof *parted);
    size_t low = part_without_branch(parted, 470);
    return low + parted[0] + 1000ul * (parted[low] >= 470);
}

KERNELS({"chained_sum", {{"flawed", take_numbers, sums_in_one_chain}, {"mended", take_numbers, sums_in_four_chains}}, 1},
        {"dot_product", {{"flawed", take_floats, dots_in_one_chain}, {"mended", take_floats, dots_in_four_chains}}, 1},
        {"mix", {{"flawed", take_floats, mixes_one_by_one}, {"mended", take_floats, mixes_vectorised}}, 1},
        {"stereo", {{"flawed", take_stereo, levels_of_stereo}, {"mended", take_stereo, levels_of_channels}}, 1},
        {"filter", {{"flawed", take_drawn, choose_by_branch}, {"mended", take_drawn, choose_without_branch}}, 1},
        {"partition", {{"flawed", take_parted, partition_by_branch}, {"mended", take_parted, partition_without_branch}}, 1})
