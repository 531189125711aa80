/* The demo: a picture that lies row by row is brightened column by column, so each pixel brings a line of which little
 * is used before the cache loses it. `PROGRAM SECONDS rows` goes row by row; at the end it prints the rounds a second. */
// build: gcc -O2 -g -o $BIN $SRC
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* No power of two, whose columns would fall on few sets of a cache as well. */
enum { HEIGHT = 3000, WIDTH = 3100 };

static double (*picture)[WIDTH];

__attribute__((noinline)) static void brighten_by_columns(double by) {
    for (int column = 0; column < WIDTH; column++)
        for (int row = 0; row < HEIGHT; row++)
            picture[row][column] = picture[row][column] * 0.5 + by;
}

__attribute__((noinline)) static void brighten_by_rows(double by) {
    for (int row = 0; row < HEIGHT; row++)
        for (int column = 0; column < WIDTH; column++)
            picture[row][column] = picture[row][column] * 0.5 + by;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    double length = argc > 1 ? atof(argv[1]) : 10, begun;
    int by_rows = argc > 2 && strcmp(argv[2], "rows") == 0, rounds = 0;
    picture = malloc(sizeof(double[HEIGHT][WIDTH]));
    if (!picture)
        return 1;
    memset(picture, 0, sizeof(double[HEIGHT][WIDTH]));
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    for (begun = seconds(); seconds() - begun < length; rounds++)
        (by_rows ? brighten_by_rows : brighten_by_columns)(rounds % 7);
    printf("%.2f\n", rounds / (seconds() - begun));
    return picture[HEIGHT / 2][WIDTH / 2] < 0;
}
