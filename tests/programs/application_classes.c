/* One kernel of each class of applications in the 2012 paper, as it compiles programs: without optimisation.
 *
 * Arguments: the kernel, and its size. Each kernel is one call, so that `--inclusive` measures it alone. */
// build: gcc -O0 -g -o $BIN $SRC -lm
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4096 };

static double a[MOST], b[MOST], c[MOST];
static int order[MOST], first[MOST + 1], next[MOST], distance[MOST];
static unsigned random_state = 1;

static unsigned chance(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

/* n by n matrices. */
void dense(int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int k = 0; k < n; k++)
                sum += a[i * n + k] * b[k * n + j];
            c[i * n + j] = sum;
        }
}

/* n rows of eight columns at chance. */
void sparse(int n) {
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int k = 0; k < 8; k++)
            sum += a[i] * b[order[(i * 8 + k) % MOST] % n];
        c[i] = sum;
    }
}

/* Ten steps over n cells. */
void stencil(int n) {
    for (int step = 0; step < 10; step++) {
        for (int i = 1; i < n - 1; i++)
            b[i] = (a[i - 1] + a[i] + a[i + 1]) / 3;
        for (int i = 1; i < n - 1; i++)
            a[i] = b[i];
    }
}

/* n points, a power of two. */
void fourier(int n) {
    for (int half = 1; half < n; half *= 2)
        for (int group = 0; group < n; group += 2 * half)
            for (int k = 0; k < half; k++) {
                double turn = -3.14159265358979 * k / half, re = cos(turn), im = sin(turn);
                int low = group + k, high = low + half;
                double x = a[high] * re - b[high] * im, y = a[high] * im + b[high] * re;
                a[high] = a[low] - x, b[high] = b[low] - y;
                a[low] += x, b[low] += y;
            }
}

/* n numbers, by insertion. */
void sort(int n) {
    for (int i = 1; i < n; i++) {
        int value = order[i], at = i;
        while (at > 0 && order[at - 1] > value) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = value;
    }
}

/* Breadth first over n nodes with four edges each. */
void graph(int n) {
    int head = 0, tail = 1;
    memset(distance, 0xff, sizeof distance);
    distance[0] = 0, next[0] = 0;
    while (head < tail) {
        int node = next[head++];
        for (int edge = 0; edge < 4; edge++) {
            int to = (node * 4 + edge * 7 + 1) % n;
            if (distance[to] < 0) {
                distance[to] = distance[node] + 1;
                next[tail++] = to;
            }
        }
    }
}

/* Forces between n bodies. */
void bodies(int n) {
    for (int i = 0; i < n; i++) {
        double force = 0;
        for (int j = 0; j < n; j++) {
            double far = a[i] - a[j], near = far * far + 0.01;
            force += b[j] * far / (near * sqrt(near));
        }
        c[i] = force;
    }
}

static int best;

static void choose(int at, int n, int weight, int gained) {
    if (gained > best)
        best = gained;
    if (at == n || gained + (n - at) * 16 <= best)
        return;
    if (weight + first[at] <= n * 6)
        choose(at + 1, n, weight + first[at], gained + next[at]);
    choose(at + 1, n, weight, gained);
}

/* A knapsack of n things, by branch and bound. */
void bound(int n) {
    best = 0;
    choose(0, n, 0, 0);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(int);
    } kernels[] = {{"dense", dense}, {"sparse", sparse}, {"stencil", stencil}, {"fourier", fourier},
                   {"sort", sort},   {"graph", graph},   {"bodies", bodies},   {"bound", bound}};
    int n = argc > 2 ? atoi(argv[2]) : 16;
    for (int i = 0; i < MOST; i++) {
        a[i] = chance() % 1000, b[i] = chance() % 1000;
        order[i] = (int)chance(), first[i] = 1 + (int)(chance() % 12), next[i] = 1 + (int)(chance() % 16);
    }
    for (unsigned i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (argc > 1 && !strcmp(argv[1], kernels[i].name) && n > 0 && n <= (i ? MOST : 64)) {
            kernels[i].run(n);
            return 0;
        }
    fprintf(stderr, "a kernel and its size: dense, sparse, stencil, fourier, sort, graph, bodies, bound\n");
    return 2;
}
