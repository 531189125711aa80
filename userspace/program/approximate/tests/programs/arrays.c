// Loops over static and heap arrays, gathers, nested loops, a matrix of rows, thread-local data.
#include "known.h"

static double a[N], b[N];
int order[N];
double *global_heap;
static double square[N / 4][N / 4];
static __thread int counters[N];
double sink;

static APART double sums(const double *unused) {
    double s = 0;
    (void)unused;
    for (int i = 0; i < N; i++) {
        s += a[i];
        s += b[i] * 2;
        s += global_heap[order[i]];
    }
    return s;
}

static APART double backwards(void) {
    double s = 0;
    for (int i = N - 1; i >= 0; i--)
        s = s * 0.5 + b[i] - a[N - 1 - i];
    return s;
}

static APART double nested(void) {
    double s = 0;
    for (int i = 0; i < N / 4; i++)
        for (int j = 0; j < N / 4; j++)
            s += square[i][j] * a[j];
    return s;
}

static APART int locals(int n) {
    int seen[N], total = 0;
    for (int i = 0; i < N; i++)
        seen[i] = i * n;
    for (int i = 0; i < N; i++)
        counters[i] += seen[(i * 7) % N];
    for (int i = 0; i < N; i++)
        total += counters[i];
    return total;
}

int main(void) {
    double *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    double **rows = malloc(8 * sizeof *rows);
    double *row0 = 0;
    global_heap = malloc(N * sizeof *global_heap);
    for (int i = 0; i < 8; i++)
        rows[i] = calloc(8, sizeof **rows);
    for (int i = 0; i < N; i++) {
        x[i] = y[i] = global_heap[i] = i;
        order[i] = (i * 13) % N;
        a[i] = b[i] = i;
    }
    row0 = rows[0];
    KNOWN("static", "a", a, sizeof a);
    KNOWN("static", "b", b, sizeof b);
    KNOWN("static", "order", order, sizeof order);
    KNOWN("static", "square", square, sizeof square);
    KNOWN("static", "global_heap", &global_heap, sizeof global_heap);
    KNOWN("static", "sink", &sink, sizeof sink);
    KNOWN("thread-local", "counters", counters, sizeof counters);
    KNOWN("pointee", "global_heap", global_heap, N * sizeof *global_heap);
    KNOWN("pointee", "x", x, N * sizeof *x);
    KNOWN("pointee", "y", y, N * sizeof *y);
    KNOWN("pointee", "rows", rows, 8 * sizeof *rows);
    for (int i = 1; i < 8; i++)
        KNOWN("pointee", "rows[]", rows[i], 8 * sizeof **rows);
    (void)row0;
    fflush(stdout);
    BEGIN;
    double s = 0;
    for (int i = 0; i < N; i++)
        s += x[i] * y[N - 1 - i];
    for (int i = 1; i < 8; i++)
        for (int j = 0; j < 8; j++)
            s += rows[i][j];
    s += sums(x) + backwards() + nested() + locals(3);
    sink = s;
    END;
    return 0;
}
