/* C++: a class template over std::vector, its members inlined into one another. */
// build: g++ -O2 -g -fno-tree-vectorize -o $BIN $SRC
#include "target.h"
#include <numeric>
#include <vector>

template <typename T> class Series {
  public:
    explicit Series(std::size_t n) : values(n) {}

    APART void generate(T x) {
        for (T &value : values) {
            x = mix(x);
            value = x; /* USE:template_members */
        }
    }

    APART T total() const {
        return std::accumulate(values.begin(), values.end(), T{}, [](T sum, const T &value) {
            return mix(sum + value); /* REUSE:template_members */
        });
    }

    const T *data() const { return values.data(); }

  private:
    std::vector<T> values;
};

int main(int argc, char **argv) {
    start(argc, argv);
    Series<uint64_t> series(WORDS);
    uint64_t sum = 0;
    ready();
    for (uint64_t round = 0; more(); round++) {
        series.generate(round + 1);
        sum ^= series.total();
        sum ^= touch_elsewhere(series.data(), WORDS, round);
    }
    return finish(sum);
}
