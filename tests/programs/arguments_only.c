/* Arrays that an allocator's wrapper makes and that only the arguments of the hot function name. */
// build: gcc -O2 -g -o $BIN $SRC
#include "target.h"

#define ROWS 400
#define COLUMNS 500

/* Every block comes from this line. */
APART static void *provide(size_t bytes) {
    void *made = malloc(bytes);
    if (made == NULL) fail("malloc");
    for (size_t i = 0; i < bytes; i++) ((char *)made)[i] = 0;
    return made;
}

APART static double filter(int rows, double (*image)[COLUMNS], const float *weights, double *sums) {
    double all = 0;
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < COLUMNS; j++) {
            image[i][j] = image[i][j] * 0.5 + weights[j];
            sums[j] += image[i][j];
        }
        all += sums[i % COLUMNS];
    }
    return all;
}

/* What it passes has no name here, and registers are used for other things behind the call. */
APART static double rounds(double (*image)[COLUMNS], float *weights, double *sums) {
    double all = 0;
    while (more()) all += filter(ROWS, image, weights, sums);
    return all;
}

int main(int argc, char **argv) {
    start(argc, argv);
    ready();
    double all = rounds(provide(ROWS * COLUMNS * sizeof(double)),
                        provide(COLUMNS * sizeof(float)),
                        provide(COLUMNS * sizeof(double)));
    return finish((uint64_t)all);
}
