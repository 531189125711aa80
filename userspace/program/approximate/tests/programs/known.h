// What the tests must know of a program: where its objects lie, and between which points to look.
#include <stdio.h>
#include <stdlib.h>

// Names an object on standard output: what the analysis should call it, where it lies.
#define KNOWN(kind, name, start, bytes) \
    printf(kind "|" name "|%lx|%lx\n", (unsigned long)(start), (unsigned long)(bytes))
// The tracer steps from BEGIN to END.
#define BEGIN __asm__ volatile("int3" ::: "memory")
#define END __asm__ volatile("int3" ::: "memory")
#define APART __attribute__((noinline, noclone))
#define N 24
