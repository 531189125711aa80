/* Loops that come back to data after a cache has lost it; a swap of two loops does not help. */
// build: gcc -O2 -g -pthread -o $BIN $SRC
#include "advice.h"

enum { EDGE = 5000 };

static double *source, *turned;

static void take_image(void) {
    source = filled((size_t)EDGE * EDGE * sizeof(double));
    turned = filled((size_t)EDGE * EDGE * sizeof(double));
    for (size_t i = 0; i < (size_t)EDGE * EDGE; i++)
        source[i] = (double)(i % 1001);
}

static uint64_t transpose_plainly(void) {
    /* flaw: transpose */
    for (size_t y = 0; y < EDGE; y++)
        for (size_t x = 0; x < EDGE; x++)
            turned[x * EDGE + y] = source[y * EDGE + x];
    return (uint64_t)(turned[EDGE + 5] + 7 * turned[EDGE * 9 + 1]);
}

static uint64_t transpose_in_tiles(void) {
    enum { TILE = 40 };
    for (size_t ys = 0; ys < EDGE; ys += TILE)
        for (size_t xs = 0; xs < EDGE; xs += TILE)
            for (size_t y = ys; y < ys + TILE; y++)
                for (size_t x = xs; x < xs + TILE; x++)
                    turned[x * EDGE + y] = source[y * EDGE + x];
    return (uint64_t)(turned[EDGE + 5] + 7 * turned[EDGE * 9 + 1]);
}

/* One cache line; a query looks at a few of its words. */
struct city {
    int32_t x, y, height, people, founded, state, schools, roads;
    int64_t taxes[4];
};

struct query {
    int32_t from_x, to_x;
    int64_t found;
};

enum { CITIES = 1500000, QUERIES = 16 };

static int city_count, query_count;
static struct city *cities;
static struct query queries[QUERIES];

static void take_cities(void) {
    city_count = CITIES;
    query_count = QUERIES;
    cities = filled_aligned((size_t)CITIES / 32768 * (2 << 20) + (2 << 20), 0);
    for (int i = 0; i < CITIES; i++) {
        cities[i].x = (int32_t)below(10000);
        cities[i].people = (int32_t)below(100);
    }
    for (int i = 0; i < QUERIES; i++) {
        queries[i].from_x = i * 500;
        queries[i].to_x = i * 500 + 1500;
    }
}

static uint64_t checksum_of_queries(void) {
    uint64_t sum = 0;
    for (int i = 0; i < QUERIES; i++) {
        sum = sum * 31 + (uint64_t)queries[i].found;
        queries[i].found = 0;
    }
    return sum;
}

/* The people between two borders, for each query in turn: the cities come from memory each time. */
static uint64_t answer_one_by_one(void) {
    /* flaw: range_queries */
    for (int q = 0; q < query_count; q++) {
        int64_t found = 0;
        for (int i = 0; i < city_count; i++) {
            int inside = (cities[i].x >= queries[q].from_x) & (cities[i].x < queries[q].to_x);
            found += cities[i].people & -inside;
        }
        queries[q].found = found;
    }
    return checksum_of_queries();
}

static uint64_t answer_in_blocks(void) {
    enum { BLOCK = 300 };
    for (int block = 0; block < city_count; block += BLOCK)
        for (int q = 0; q < query_count; q++) {
            int64_t found = 0;
            for (int i = block; i < block + BLOCK; i++) {
                int inside = (cities[i].x >= queries[q].from_x) & (cities[i].x < queries[q].to_x);
                found += cities[i].people & -inside;
            }
            queries[q].found += found;
        }
    return checksum_of_queries();
}

/* The two fields in arrays of their own. */
static int32_t *city_x, *city_people;

static void take_fields(void) {
    take_cities();
    city_x = filled(CITIES * sizeof *city_x);
    city_people = filled(CITIES * sizeof *city_people);
    for (int i = 0; i < CITIES; i++)
        city_x[i] = cities[i].x, city_people[i] = cities[i].people;
    free(cities);
}

static uint64_t answer_from_fields(void) {
    for (int q = 0; q < query_count; q++) {
        int64_t found = 0;
        for (int i = 0; i < city_count; i++) {
            int inside = (city_x[i] >= queries[q].from_x) & (city_x[i] < queries[q].to_x);
            found += city_people[i] & -inside;
        }
        queries[q].found = found;
    }
    return checksum_of_queries();
}

/* The textbook's matrix product, some rows of it a round. */
enum { ORDER = 1100, ROWS = 11 };

static double (*left)[ORDER], (*right)[ORDER], (*out)[ORDER];

static void take_matrices(void) {
    left = filled(sizeof(double[ORDER][ORDER]));
    right = filled(sizeof(double[ORDER][ORDER]));
    out = filled(sizeof(double[ORDER][ORDER]));
    for (int i = 0; i < ORDER; i++)
        for (int j = 0; j < ORDER; j++)
            left[i][j] = (i * 7 + j) % 13, right[i][j] = (i + j * 5) % 11;
}

static uint64_t product_of_rows(void) {
    /* flaw: matrix_product */
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < ORDER; j++) {
            double sum = 0;
            for (int k = 0; k < ORDER; k++)
                sum += left[i][k] * right[k][j];
            out[i][j] = sum;
        }
    return (uint64_t)(out[1][2] + 3 * out[ROWS - 1][ORDER - 1]);
}

static uint64_t product_in_tiles(void) {
    enum { TILE = 220 };
    memset(out, 0, sizeof(double[ROWS][ORDER]));
    for (int ks = 0; ks < ORDER; ks += TILE)
        for (int js = 0; js < ORDER; js += TILE)
            for (int i = 0; i < ROWS; i++)
                for (int k = ks; k < ks + TILE; k++)
                    for (int j = js; j < js + TILE; j++)
                        out[i][j] += left[i][k] * right[k][j];
    return (uint64_t)(out[1][2] + 3 * out[ROWS - 1][ORDER - 1]);
}

static uint64_t product_interchanged(void) {
    memset(out, 0, sizeof(double[ROWS][ORDER]));
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < ORDER; k++)
            for (int j = 0; j < ORDER; j++)
                out[i][j] += left[i][k] * right[k][j];
    return (uint64_t)(out[1][2] + 3 * out[ROWS - 1][ORDER - 1]);
}

KERNELS({"transpose", {{"flawed", take_image, transpose_plainly}, {"mended", take_image, transpose_in_tiles}}, 1},
        {"range_queries",
         {{"flawed", take_cities, answer_one_by_one},
          {"mended", take_cities, answer_in_blocks},
          {"split", take_fields, answer_from_fields}},
         1},
        {"matrix_product",
         {{"flawed", take_matrices, product_of_rows},
          {"mended", take_matrices, product_in_tiles},
          {"interchanged", take_matrices, product_interchanged}},
         1})
