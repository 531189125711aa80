// C++ names. Lines that tests look for carry "AT name".
#include <cstdio>
#include <vector>

volatile int waiting = 1;
volatile int sink;

namespace shapes {
template <typename T, int N>
struct Box {
    T value;
    __attribute__((noinline)) T wait(const std::vector<T>& more) {
        std::puts("ready");
        std::fflush(stdout);
        while (waiting) {} // AT wait
        return value + more[0] + N;
    }
};

template <typename F>
__attribute__((noinline)) int apply(F function) {
    int got = function(7); // AT apply
    return got + sink;
}
} // namespace shapes

int main() {
    std::vector<long> more(3, sink);
    shapes::Box<long, 5> box{sink};
    auto closure = [&](int n) __attribute__((noinline)) {
        int got = (int)box.wait(more) + n; // AT closure
        return got + sink;
    };
    int got = shapes::apply(closure); // AT main
    return got + sink;
}
