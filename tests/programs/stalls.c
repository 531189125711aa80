/* C: loops in which one array misses and another one, accessed by the next instruction, does not.
 *
 * First argument: column (a matrix walked by columns, times a vector) or gather (a table read at
 * random places); second: seconds. In both, nearly all CPU time waits for the first array.
 */
// build: gcc -O2 -g -fno-tree-vectorize -o $BIN $SRC
#include "target.h"
#include <string.h>

#define N 3000
#define M (1 << 22)

double matrix[N][N], vector[N], sums[N];
unsigned places[M];
double table[M], running[4096];

static APART void column(void) {
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            sums[i] += matrix[j][i] * vector[j];
}

static APART void gather(void) {
    double sum = 0;
    for (int i = 0; i < M; i++) {
        sum += table[places[i]];
        running[i & 4095] = sum;
    }
}

int main(int argc, char **argv) {
    int is_column = argc > 1 && strcmp(argv[1], "column") == 0;
    start(argc - 1, argv + 1);
    unsigned long state = 1;
    for (int i = 0; i < N; i++) {
        vector[i] = i;
        for (int j = 0; j < N; j++)
            matrix[i][j] = i + j;
    }
    for (int i = 0; i < M; i++) {
        state = state * 6364136223846793005ul + 1442695040888963407ul;
        places[i] = (unsigned)(state >> 33) % M;
        table[i] = i;
    }
    ready();
    while (more()) {
        if (is_column)
            column();
        else
            gather();
        __asm__ volatile("" ::: "memory");
    }
    return 0;
}
