// Kinds of data objects of C++. Lines as in kinds.c.
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#define TELL(kind, address, name, field, type) \
    std::printf("%s %p %s|%s|%s\n", kind, (void *)(address), name, field, type)

namespace space {
struct Base { virtual ~Base() {} long base_value = 1; };
struct Other { int other_value = 2; };
struct Derived : Base, Other {
    static int count;
    double own = 3;
};
int Derived::count = 4;
int free_standing = 5;
namespace { int hidden_here = 6; }
int *tell_hidden() { return &hidden_here; }
struct Particle { float x, y, z; int id; };
struct Noisy { ~Noisy() { std::puts("gone"); } int loud = 1, quiet = 2; };
template <class T> struct Holder { T first; T second; };
}

space::Derived derived;
std::vector<space::Particle> particles(300);
std::unique_ptr<space::Particle[]> owned(new space::Particle[10]);
space::Holder<long> holder;
std::unique_ptr<space::Noisy[]> noisy(new space::Noisy[20]);
std::map<int, long> index_by_number;
inline int shared_inline = 7;
thread_local long of_thread = 8;

static int &counted() {
    static int calls = 0;
    return ++calls, calls;
}

__attribute__((noinline)) static void wait_here() {
    std::printf("ready\n");
    std::fflush(stdout);
    for (;;) pause();
}

struct Worker {
    int before = 1;
    std::vector<double> samples = std::vector<double>(64);
    __attribute__((noinline)) void work() {
        auto inside = [&](int given) {
            long captured = given;
            TELL("stack", &captured, "captured", "", "long int");
            TELL("stack", &before, "worker", ".before", "Worker");
            TELL("heap", &samples[5], "worker.samples", "[]", "double");
            wait_here();
        };
        inside(9);
    }
};

int main() {
    TELL("static", &derived.own, "derived", ".own", "Derived");
    TELL("static", &derived.base_value, "derived", ".base_value", "Derived");
    TELL("static", &derived.other_value, "derived", ".other_value", "Derived");
    TELL("static", &space::Derived::count, "space::Derived::count", "", "int");
    TELL("static", &space::free_standing, "space::free_standing", "", "int");
    TELL("static", space::tell_hidden(), "space::(anonymous namespace)::hidden_here", "", "int");
    TELL("static", &holder.second, "holder", ".second", "Holder<long int>");
    TELL("static", &shared_inline, "shared_inline", "", "int");
    TELL("static", &counted(), "calls", "", "int");
    TELL("thread-local", &of_thread, "of_thread", "", "long int");
    TELL("heap", &particles[123].z, "particles", "[].z", "Particle");
    TELL("heap", &owned[3].id, "owned", "[].id", "Particle");
    TELL("heap", &noisy[11].quiet, "noisy", "[].quiet", "Noisy");
    for (int i = 0; i < 20; i++) index_by_number[i] = i;
    TELL("heap", &index_by_number[13], "index_by_number", "-", "-");
    Worker worker;
    worker.work();
}
