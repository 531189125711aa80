/* Matrices walked down their columns. */
// build: gcc -O2 -g -pthread -o $BIN $SRC
#include "advice.h"

/* The matrices' sizes are no powers of two, whose columns would fall on few sets of a cache as well. */
enum { ROWS = 3000, COLUMNS = 3100 };

static double (*matrix)[COLUMNS], (*addend)[COLUMNS], (*target)[COLUMNS], (*across)[ROWS];
static double *vector, *product;

static void fill(double *values, size_t count) {
    for (size_t i = 0; i < count; i++)
        values[i] = (double)(i % 17);
}

static void take_matrix(void) {
    matrix = filled(sizeof(double[ROWS][COLUMNS]));
    fill(&matrix[0][0], (size_t)ROWS * COLUMNS);
}

/* Each element becomes its distance to ten; no sum. */
static uint64_t reflect_by_columns(void) {
    /* flaw: reflect */
    for (int column = 0; column < COLUMNS; column++)
        for (int row = 0; row < ROWS; row++)
            matrix[row][column] = 10.0 - matrix[row][column];
    return (uint64_t)(int64_t)matrix[ROWS / 2][7];
}

static uint64_t reflect_by_rows(void) {
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++)
            matrix[row][column] = 10.0 - matrix[row][column];
    return (uint64_t)(int64_t)matrix[ROWS / 2][7];
}

static void take_product(void) {
    take_matrix();
    vector = filled(ROWS * sizeof(double));
    product = filled(COLUMNS * sizeof(double));
    fill(vector, ROWS);
}

static uint64_t checksum_of_product(void) {
    double sum = 0;
    for (int column = 0; column < COLUMNS; column++)
        sum += product[column] * (double)(column % 7);
    return (uint64_t)sum;
}

/* The product of the transposed matrix and a vector; a sum runs down each column. */
static uint64_t multiply_by_columns(void) {
    /* flaw: transposed_product */
    for (int column = 0; column < COLUMNS; column++) {
        double sum = 0;
        for (int row = 0; row < ROWS; row++)
            sum += matrix[row][column] * vector[row];
        product[column] = sum;
    }
    return checksum_of_product();
}

static uint64_t multiply_by_rows(void) {
    for (int column = 0; column < COLUMNS; column++)
        product[column] = 0;
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++)
            product[column] += matrix[row][column] * vector[row];
    return checksum_of_product();
}

static void take_three(void) {
    take_matrix();
    addend = filled(sizeof(double[ROWS][COLUMNS]));
    target = filled(sizeof(double[ROWS][COLUMNS]));
    across = filled(sizeof(double[COLUMNS][ROWS]));
    fill(&addend[0][0], (size_t)ROWS * COLUMNS);
    fill(&across[0][0], (size_t)ROWS * COLUMNS);
}

/* Three matrices down their columns and one along its rows: after the swap, only that one is far. */
static uint64_t combine_by_columns(void) {
    /* flaw: combine */
    for (int column = 0; column < COLUMNS; column++)
        for (int row = 0; row < ROWS; row++)
            target[row][column] = matrix[row][column] + addend[row][column] + across[column][row];
    return (uint64_t)(target[5][9] + 3 * target[ROWS - 1][COLUMNS - 1]);
}

static uint64_t combine_by_rows(void) {
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++)
            target[row][column] = matrix[row][column] + addend[row][column] + across[column][row];
    return (uint64_t)(target[5][9] + 3 * target[ROWS - 1][COLUMNS - 1]);
}

static uint64_t combine_by_tiles(void) {
    enum { TILE = 32 };
    for (int rows = 0; rows < ROWS; rows += TILE)
        for (int columns = 0; columns < COLUMNS; columns += TILE)
            for (int row = rows; row < rows + TILE && row < ROWS; row++)
                for (int column = columns; column < columns + TILE && column < COLUMNS; column++)
                    target[row][column] = matrix[row][column] + addend[row][column] + across[column][row];
    return (uint64_t)(target[5][9] + 3 * target[ROWS - 1][COLUMNS - 1]);
}

KERNELS({"reflect", {{"flawed", take_matrix, reflect_by_columns}, {"mended", take_matrix, reflect_by_rows}}, 1},
        {"transposed_product", {{"flawed", take_product, multiply_by_columns}, {"mended", take_product, multiply_by_rows}}, 1},
        {"combine",
         {{"flawed", take_three, combine_by_columns},
          {"mended", take_three, combine_by_rows},
          {"tiled", take_three, combine_by_tiles}},
         1})
