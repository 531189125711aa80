// Arrays that only arguments of the hot function name, held in registers or only known to the caller.
// Truths as in kinds.c; the places are told before the functions run.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

volatile int waiting = 1;

__attribute__((noinline)) static void *make(size_t bytes, int how) {
    void *made = NULL;
    if (how == 0) made = malloc(bytes);
    if (how == 1 && posix_memalign(&made, 4096, bytes)) abort();
    if (how == 2) made = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(made, 0, bytes);
    return made;
}

__attribute__((noinline)) void hot(int n, double (*grid)[100], const double *left, float *right, int *marks) {
    printf("%s %p grid|[][]|double [100]\n", n > 200 ? "heap" : "mapped", (void *)&grid[7][3]);
    printf("%s %p left|[]|double\n", n > 200 ? "heap" : "mapped", (void *)&left[n - 1]);
    printf("%s %p right|[]|float\n", n > 200 ? "heap" : "mapped", (void *)&right[n / 2]);
    printf("%s %p marks|[]|int\n", n > 200 ? "heap" : "mapped", (void *)&marks[1]);
    printf("ready\n");
    fflush(stdout);
    do {
        for (int i = 0; i < 100; i++)
            for (int j = 0; j < 100; j++) grid[i][j] += left[j] * right[i] + marks[j];
    } while (waiting);
}

// What it got in registers is not needed behind the call, and only the caller knows it then.
__attribute__((noinline)) static int pass(int n, int how, size_t bytes) {
    hot(n, make(100 * 100 * sizeof(double), how), make(bytes * 8, how), make(bytes * 4, how),
        make(bytes * 8, how));
    return waiting;
}

int main(int argc, char **argv) {
    int how = argc > 1 ? atoi(argv[1]) : 0;
    // Blocks in the program's break, blocks with mappings of their own, mappings.
    int n = argc > 2 ? atoi(argv[2]) : 300;
    return pass(n, how, n);
}
