// Several names for one object within a function: the paper's snippet, walking pointers, a choice, a swap.
#include "known.h"

int sink;

static APART int snippet(void) {
    int *x = malloc(N * sizeof(int));
    KNOWN("pointee", "x", x, N * sizeof *x);
    for (int i = 0; i < N; i++)
        x[i] = i;
    fflush(stdout);
    BEGIN;
    int z = x[N - 1];
    int *y = x;
    z += y[N - 2];
    for (int *p = x + 3; p < x + 20; p++)
        z += *p;
    for (int *p = y; p < y + N; p += 4)
        z -= p[1] + p[3];
    END;
    return z;
}

static APART int choice(int which) {
    int *left = malloc(N * sizeof(int)), *right = malloc(N * sizeof(int));
    KNOWN("pointee", "left", left, N * sizeof *left);
    KNOWN("pointee", "right", right, N * sizeof *right);
    for (int i = 0; i < N; i++)
        left[i] = right[i] = i;
    fflush(stdout);
    BEGIN;
    int s = 0;
    for (int round = 0; round < 6; round++) {
        int *from = (round + which) % 2 ? left : right;
        for (int i = 0; i < N; i++)
            s += from[i];
    }
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < N; i++)
            s += left[i] - 2 * right[i];
        int *t = left;
        left = right;
        right = t;
    }
    END;
    return s;
}

int main(int argc, char **argv) {
    (void)argv;
    sink = snippet() + choice(argc);
    return 0;
}
