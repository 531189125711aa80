// Namespaces, static members, members through this, references, a vector.
#include "known.h"
#include <vector>

namespace sim {
int table[N];
struct Grid {
    static int shared[N];
    double *cells;
    long n;
    APART double sum() const {
        double s = 0;
        for (long i = 0; i < n; i++)
            s += cells[i] + shared[i] + table[i];
        return s;
    }
};
int Grid::shared[N];
}

APART static double all(const std::vector<double> &values) {
    double s = 0;
    for (double value : values)
        s += value;
    return s;
}

double sink;

int main() {
    sim::Grid grid = {new double[N](), N};
    std::vector<double> numbers(N, 1.0);
    KNOWN("static", "sim::table", sim::table, sizeof sim::table);
    KNOWN("static", "sim::Grid::shared", sim::Grid::shared, sizeof sim::Grid::shared);
    KNOWN("stack", "grid", &grid, sizeof grid);
    KNOWN("stack", "numbers", &numbers, sizeof numbers);
    KNOWN("pointee", "grid.cells", grid.cells, N * sizeof(double));
    KNOWN("pointee", "numbers._M_impl._M_start", numbers.data(), N * sizeof(double));
    fflush(stdout);
    BEGIN;
    sink = grid.sum() + all(numbers);
    END;
    return 0;
}
