// C++ blocks in functions named after what they allocate: arrays, a container, an aligned type; and an allocation that fails and
// is caught. Says at which moment which block stood, as heap_sites.c does.
// build: g++ -g -O1 -std=c++17 -o $BIN $SRC
// build: g++ -g -O1 -std=c++17 -static -o $BIN.static $SRC
#include "target.h"
#include <csignal>
#include <new>
#include <vector>

struct alignas(128) Wide {
    char bytes[128];
};

static void stands(const char *name, const void *block, size_t bytes) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    printf("at %lld %s %llu %zu\n", (long long)t.tv_sec * 1000000000 + t.tv_nsec, name, (unsigned long long)(uintptr_t)block, bytes);
}

static APART double *site_array(size_t n) { return new double[n]; }
static APART Wide *site_aligned(size_t n) { return new Wide[n]; }
static APART std::vector<long> *site_vector(size_t n) { return new std::vector<long>(n); }
static APART bool fails(size_t n) {
    try {
        char *block = new char[n];
        asm volatile("" : : "r"(block) : "memory");
        delete[] block;
        return false;
    } catch (const std::bad_alloc &) {
        return true;
    }
}

int main(int argc, char **argv) {
    sigset_t go;
    int signal;
    start(argc, argv);
    sigemptyset(&go);
    sigaddset(&go, SIGUSR1);
    sigprocmask(SIG_BLOCK, &go, nullptr);
    ready();
    sigwait(&go, &signal);
    double *array = site_array(9000);
    Wide *wide = site_aligned(40);
    std::vector<long> *list = site_vector(3000);
    stands("site_array", array, 72000);
    stands("site_aligned", wide, 40 * 128);
    stands("site_vector", list->data(), 24000);
    if (!fails((size_t)1 << 60))
        return 3;
    delete[] array;
    delete[] wide;
    delete list;
    return finish(0);
}
