// Calls the Fortran subroutine with blocks that no variable names.
#include <stdlib.h>

extern void entry_point_(int *n, double *pool, double *more);

__attribute__((noinline)) static double *made(int n) { return calloc(n, sizeof(double)); }

int main(void) {
    static int n = 400;
    entry_point_(&n, made(n * n), made(2 * n * n));
    return 0;
}
