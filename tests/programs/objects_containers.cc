/* C++: containers whose accesses are known by construction: .6 particles[] (.4 x, .2 mass), .4 the map's values; all through volatile
 * references that the loops have in registers.
 */
// build: g++ -O2 -g -fno-tree-vectorize -fno-unroll-loops -o $BIN $SRC
#include "target.h"
#include <vector>

namespace sim {
struct Particle {
    double x, y, z;
    double history[4];
    double mass;
};
std::vector<Particle> particles(1 << 14);
std::vector<long> values(1 << 15);
} // namespace sim

static APART void run() {
    volatile sim::Particle *particle = sim::particles.data();
    volatile long *value = sim::values.data();
    for (size_t i = 0; i < 1 << 14; i++) {
        particle[i].x;
        value[i];
        particle[i].x = 1;
        value[i + (1 << 14)] = 2;
        particle[i].mass;
    }
}

int main(int argc, char **argv) {
    start(argc, argv);
    ready();
    while (more())
        for (int i = 0; i < 8; i++)
            run();
    return finish(0);
}
