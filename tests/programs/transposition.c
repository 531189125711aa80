/* The kernel in which the paper on inclusive cache use finds HYDRO's loss: four matrices are read across their rows by
 * the threads of a team, so that of each line of 64 bytes that comes into the first level 8 are used before it goes. The
 * last level keeps a column's lines until its neighbours have used them too.
 *
 * Arguments: seconds to run, as target.h says; with a second one that many rounds instead. LOSS:8 marks the lines that
 * load 8 bytes of 64. */
// build: gcc -O2 -g -fno-tree-vectorize -fopenmp -o $BIN $SRC
#include "target.h"

enum { SIDE = 500, QUANTITIES = 4, SLICES = 50 };
#define AT(i, j, v) ((size_t)(i) + SIDE * ((size_t)(j) + SIDE * (size_t)(v)))

static double old[QUANTITIES * SIDE * SIDE] __attribute__((aligned(64)));
static double gathered[QUANTITIES][SLICES][SIDE] __attribute__((aligned(64)));

static APART void gather(int first) {
#pragma omp parallel for
    for (int s = 0; s < SLICES; s++)
        for (int j = 0; j < SIDE; j++) {
            gathered[0][s][j] = old[AT(first + s, j, 0)]; /* LOSS:8 */
            gathered[1][s][j] = old[AT(first + s, j, 2)]; /* LOSS:8 */
            gathered[2][s][j] = old[AT(first + s, j, 1)]; /* LOSS:8 */
            gathered[3][s][j] = old[AT(first + s, j, 3)]; /* LOSS:8 */
        }
}

static APART void sweep(void) {
    for (int first = 0; first < SIDE; first += SLICES)
        gather(first);
}

int main(int argc, char **argv) {
    start(argc, argv);
    for (size_t i = 0; i < sizeof old / sizeof *old; i++)
        old[i] = (double)i;
    long left = argc > 2 ? atol(argv[2]) : 0;
    ready();
    while (argc > 2 ? left-- > 0 : more())
        sweep();
    printf("%g\n", gathered[3][SLICES - 1][SIDE - 1]);
    return 0;
}
