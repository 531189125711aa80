// Pointers passed down: one function for many arrays, on the stack, through tail calls, recursion, out parameters, getters.
#include "known.h"

struct field { long n; double *data; };

static double fixed[N];
static struct field *shared;
double sink;

static APART double sum(const double *p, int n) {
    double s = 0;
    for (int i = 0; i < n; i++)
        s += p[i];
    return s;
}

static APART double twice(const double *q, int n) {
    double s = sum(q, n);
    return s + sum(q + 2, n - 2);
}

static APART double many(double *p1, double *p2, double *p3, double *p4, double *p5, double *p6, double *p7, double *p8) {
    double s = 0;
    for (int i = 0; i < N; i++)
        s += p1[i] + p2[i] + p3[i] + p4[i] + p5[i] + p6[i] + p7[i] + p8[i];
    return s;
}

static APART double jump(int n, const double *p) { return sum(p, n); }

static APART double halves(const double *p, int n) {
    if (n == 1)
        return p[0];
    double s = halves(p, n / 2);
    return s + halves(p + n / 2, n - n / 2) * 0.5;
}

static APART void make(struct field *out, long n) {
    out->n = n;
    out->data = calloc(n, sizeof(double));
}

static APART double *data_of(struct field *f) { return f->data; }

static APART double through(struct field *f) {
    double s = 0;
    double *d = data_of(f);
    for (long i = 0; i < f->n; i++)
        s += d[i];
    return s + sum(f->data, 8);
}

static APART double *numbers(int n) {
    double *fresh = malloc(n * sizeof *fresh);
    for (int i = 0; i < n; i++)
        fresh[i] = i;
    return fresh;
}

int main(void) {
    double *x = numbers(N), *y = numbers(N), *u = numbers(N), *v = numbers(N);
    double local[N];
    struct field own;
    make(&own, N);
    shared = malloc(sizeof *shared);
    make(shared, N);
    for (int i = 0; i < N; i++)
        local[i] = fixed[i] = i;
    KNOWN("static", "fixed", fixed, sizeof fixed);
    KNOWN("static", "shared", &shared, sizeof shared);
    KNOWN("stack", "local", local, sizeof local);
    KNOWN("stack", "own", &own, sizeof own);
    KNOWN("pointee", "x", x, N * sizeof *x);
    KNOWN("pointee", "y", y, N * sizeof *y);
    KNOWN("pointee", "u", u, N * sizeof *u);
    KNOWN("pointee", "v", v, N * sizeof *v);
    KNOWN("pointee", "own.data", own.data, N * sizeof(double));
    KNOWN("pointee", "shared", shared, sizeof *shared);
    KNOWN("pointee", "shared->data", shared->data, N * sizeof(double));
    fflush(stdout);
    BEGIN;
    double s = sum(x, N) + sum(y, N / 2) + sum(fixed, N) + sum(local, N);
    s += twice(u, N) + many(x, y, u, v, fixed, local, v, u) + jump(N, v);
    s += halves(y, 11) + through(&own) + through(shared);
    sink = s;
    END;
    return 0;
}
