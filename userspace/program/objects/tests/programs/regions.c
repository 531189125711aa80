// A frame of a region that threads run. Truths as in kinds.c.
#include <stdio.h>
#include <unistd.h>

volatile int waiting = 1;

__attribute__((noinline)) static void relax(double *values, int n) {
#pragma omp parallel for num_threads(1) // AT region
    for (int i = 0; i < n; i++) {
        double own[4] = {i, 1, 2, 3};
        char free_room[64];
        values[i] += own[i & 3];
        if (i == 5) {
            printf("stack %p own|[]|double [4]\n", (void *)&own[1]);
            sprintf(free_room, "ready\n");
            fputs(free_room, stdout);
            fflush(stdout);
            while (waiting) {}
        }
        values[i] += own[(i + 1) & 3];
    }
}

int main(void) {
    double values[64] = {0};
    relax(values, 64);
    return values[3] > 1e9;
}
