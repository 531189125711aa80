/* Loops whose iterations depend on an argument in known ways: a square, a triangle, a fixed count, a sum
 * behind a pointer. */
// build: gcc -O2 -fno-inline -g -o $BIN $SRC
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct table {
    long rows;
    double *values;
};

static void stencil(long n, const double *from, double *to) {
    for (long i = 1; i < n - 1; i++)
        for (long j = 1; j < n - 1; j++)
            to[i * n + j] = 0.25 * (from[i * n + j - 1] + from[i * n + j + 1] + from[(i - 1) * n + j] + from[(i + 1) * n + j]);
}

static double triangle(long n, const double *values) {
    double sum = 0;
    for (long i = 0; i < n; i++)
        for (long j = 0; j < i; j++)
            sum += values[i * n + j] * values[j * n + i];
    return sum;
}

static double rows_of(const struct table *table) {
    double sum = 0;
    for (long row = 0; row < table->rows; row++)
        sum = sum * 0.5 + table->values[row];
    return sum;
}

static long fixed(const long *next) {
    long at = 0;
    for (int i = 0; i < 30000; i++)
        at = next[at];
    return at;
}

/* n, then seconds to run */
int main(int argc, char **argv) {
    long n = argc > 1 ? atol(argv[1]) : 300;
    long seconds = argc > 2 ? atol(argv[2]) : 1;
    double *a = calloc(n * n, sizeof *a), *b = calloc(n * n, sizeof *b), sum = 0;
    long *next = malloc(65536 * sizeof *next), at = 0;
    for (long i = 0; i < 65536; i++)
        next[i] = (i * 1103515245 + 12345) & 65535;
    struct table table = {n * n, a};
    for (time_t end = time(NULL) + seconds; time(NULL) < end;) {
        stencil(n, a, b);
        stencil(n, b, a);
        sum += triangle(n, a);
        sum += rows_of(&table);
        at += fixed(next);
    }
    printf("%g %ld\n", sum, at);
    return 0;
}
