// Regions that threads run, by OpenMP. Lines that tests look for carry "AT name".
#include <cstdio>

volatile int waiting = 1;
volatile int sink;

struct Field {
    double values[64];
    __attribute__((noinline)) void relax(int rounds);
};

static int before() { return sink; }

void Field::relax(int rounds) {
    sink = before();
    double total = 0;
    for (int round = 0; round < rounds; round++) {
#pragma omp parallel for num_threads(1) reduction(+ : total) // AT region
        for (int i = 0; i < 64; i++) {
            total += values[i] += 1.0;
            if (i == 32) {
                std::puts("ready");
                std::fflush(stdout);
                while (waiting) {} // AT wait
            }
        }
    }
    sink = total > 5;
}

int main() {
    static Field field;
    field.relax(3 + sink); // AT main
    return 0;
}
