/* Loops over arrays, with distances that follow from the loop bounds. These are no powers of two where the algorithm does not
 * ask for one (fft): distances would lie on the edges of log2 bins, where being off by one looks like being off by half. */
// build: gcc -O2 -g -o $BIN $SRC -lm
#include "corpus.h"
#include <math.h>

/* Three arrays of 7 MiB, four passes. */
static uint64_t stream(void) {
    enum { N = 920000 };
    double *a = take(N * 8), *b = take(N * 8), *c = take(N * 8);
    for (size_t i = 0; i < N; i++)
        a[i] = 0, b[i] = (double)i, c[i] = 0.5;
    for (int pass = 0; pass < 4; pass++)
        for (size_t i = 0; i < N; i++)
            a[i] = b[i] + 3.0 * c[i] + a[i];
    return (uint64_t)a[N / 2];
}

enum { M = 240 };

static double *matrix(int seed) {
    double *m = take(M * M * 8);
    for (int i = 0; i < M * M; i++)
        m[i] = (double)(i * seed % 17);
    return m;
}

static uint64_t matmul(void) {
    double *a = matrix(5), *b = matrix(7), *c = take(M * M * 8);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < M; j++) {
            double sum = 0;
            for (int k = 0; k < M; k++)
                sum += a[i * M + k] * b[k * M + j];
            c[i * M + j] = sum;
        }
    return (uint64_t)c[M + 1];
}

/* Tiles of 24 by 24 doubles: three of them are 13.5 KiB. */
static uint64_t blocked(void) {
    enum { B = 24 };
    double *a = matrix(5), *b = matrix(7), *c = matrix(0);
    for (int ii = 0; ii < M; ii += B)
        for (int kk = 0; kk < M; kk += B)
            for (int jj = 0; jj < M; jj += B)
                for (int i = ii; i < ii + B; i++)
                    for (int k = kk; k < kk + B; k++) {
                        double factor = a[i * M + k];
                        for (int j = jj; j < jj + B; j++)
                            c[i * M + j] += factor * b[k * M + j];
                    }
    return (uint64_t)c[M + 1];
}

/* Five points, two grids of 1.9 MiB, ten sweeps. */
static uint64_t stencil2d(void) {
    enum { N = 500 };
    double *from = take(N * N * 8), *to = take(N * N * 8);
    for (int i = 0; i < N * N; i++)
        from[i] = to[i] = (double)(i % 13);
    for (int sweep = 0; sweep < 10; sweep++) {
        for (int y = 1; y < N - 1; y++)
            for (int x = 1; x < N - 1; x++) {
                const double *p = from + y * N + x;
                to[y * N + x] = 0.2 * (p[0] + p[-1] + p[1] + p[-N] + p[N]);
            }
        double *other = from;
        from = to, to = other;
    }
    return (uint64_t)from[N + 1];
}

/* Seven points, two grids of 6.75 MiB, four sweeps. */
static uint64_t stencil3d(void) {
    enum { N = 96, P = N * N };
    double *from = take(N * P * 8), *to = take(N * P * 8);
    for (int i = 0; i < N * P; i++)
        from[i] = to[i] = (double)(i % 13);
    for (int sweep = 0; sweep < 4; sweep++) {
        for (int z = 1; z < N - 1; z++)
            for (int y = 1; y < N - 1; y++)
                for (int x = 1; x < N - 1; x++) {
                    const double *p = from + z * P + y * N + x;
                    to[z * P + y * N + x] = 0.125 * (p[-1] + p[1] + p[-N] + p[N] + p[-P] + p[P]) + 0.25 * p[0];
                }
        double *other = from;
        from = to, to = other;
    }
    return (uint64_t)from[P + N + 1];
}

/* Right-looking, without pivots. */
static uint64_t lu(void) {
    double *a = matrix(7);
    for (int i = 0; i < M; i++)
        a[i * M + i] += 2000;
    for (int k = 0; k < M; k++)
        for (int i = k + 1; i < M; i++) {
            double factor = a[i * M + k] /= a[k * M + k];
            for (int j = k + 1; j < M; j++)
                a[i * M + j] -= factor * a[k * M + j];
        }
    return (uint64_t)a[M * M - 1];
}

/* Radix 2, in place, 2^17 complex numbers with a table of roots: 3 MiB. */
static uint64_t fft(void) {
    enum { BITS = 17, N = 1 << BITS };
    double(*x)[2] = take(N * 16), (*root)[2] = take(N / 2 * 16);
    for (int i = 0; i < N; i++)
        x[i][0] = (double)(i % 31), x[i][1] = 0;
    for (int i = 0; i < N / 2; i++)
        root[i][0] = cos(2 * 3.14159265358979 * i / N), root[i][1] = -sin(2 * 3.14159265358979 * i / N);
    for (uint32_t i = 0, j = 0; i < N; i++) {
        if (i < j)
            for (int part = 0; part < 2; part++) {
                double other = x[i][part];
                x[i][part] = x[j][part], x[j][part] = other;
            }
        uint32_t bit = N >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j |= bit;
    }
    for (int half = 1; half < N; half *= 2)
        for (int start = 0; start < N; start += 2 * half)
            for (int k = 0; k < half; k++) {
                const double *w = root[k * (N / 2 / half)];
                double *a = x[start + k], *b = x[start + k + half];
                double re = b[0] * w[0] - b[1] * w[1], im = b[0] * w[1] + b[1] * w[0];
                b[0] = a[0] - re, b[1] = a[1] - im;
                a[0] += re, a[1] += im;
            }
    return (uint64_t)x[1][0];
}

/* One side in rows, the other in columns, 2 times 7.6 MiB. */
static uint64_t transpose(void) {
    enum { N = 1000 };
    double *a = take(N * N * 8), *b = take(N * N * 8);
    for (int i = 0; i < N * N; i++)
        a[i] = (double)i;
    for (int pass = 0; pass < 3; pass++)
        for (int y = 0; y < N; y++)
            for (int x = 0; x < N; x++)
                b[x * N + y] = a[y * N + x] + pass;
    return (uint64_t)b[N + 1];
}

/* All pairs of 1,500 bodies, two steps. */
static uint64_t nbody(void) {
    enum { N = 1500 };
    struct body {
        double x, y, z, mass, vx, vy, vz, unused;
    } *body = take(N * sizeof *body);
    for (int i = 0; i < N; i++)
        body[i] = (struct body){(double)below(1000), (double)below(1000), (double)below(1000), 1, 0, 0, 0, 0};
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < N; i++) {
            double fx = 0, fy = 0, fz = 0;
            for (int j = 0; j < N; j++) {
                double dx = body[j].x - body[i].x, dy = body[j].y - body[i].y, dz = body[j].z - body[i].z;
                double square = dx * dx + dy * dy + dz * dz + 0.01, force = body[j].mass / (square * sqrt(square));
                fx += dx * force, fy += dy * force, fz += dz * force;
            }
            body[i].vx += fx, body[i].vy += fy, body[i].vz += fz;
        }
        for (int i = 0; i < N; i++)
            body[i].x += body[i].vx, body[i].y += body[i].vy, body[i].z += body[i].vz;
    }
    return (uint64_t)(body[0].x * 1000);
}

/* Longest common subsequence of two strings of 2,000, two rows kept. */
static uint64_t lcs(void) {
    enum { N = 2000 };
    char *a = take(N), *b = take(N);
    int *rows = take(2 * (N + 1) * sizeof *rows);
    for (int i = 0; i < N; i++)
        a[i] = (char)below(4), b[i] = (char)below(4);
    memset(rows, 0, 2 * (N + 1) * sizeof *rows);
    for (int i = 1; i <= N; i++) {
        int *row = rows + (i & 1) * (N + 1), *above = rows + (~i & 1) * (N + 1);
        for (int j = 1; j <= N; j++)
            if (a[i - 1] == b[j - 1])
                row[j] = above[j - 1] + 1;
            else
                row[j] = above[j] > row[j - 1] ? above[j] : row[j - 1];
    }
    return (uint64_t)rows[N];
}

KERNELS({"stream", stream}, {"matmul", matmul}, {"blocked", blocked}, {"stencil2d", stencil2d}, {"stencil3d", stencil3d},
        {"lu", lu}, {"fft", fft}, {"transpose", transpose}, {"nbody", nbody}, {"lcs", lcs})
