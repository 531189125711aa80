// Thread-local variables of the C library, whose symbols are in its dynamic table or in its debug file.
#include <errno.h>
#include <stdio.h>
#include <unistd.h>
#include <resolv.h>

static __thread long mine = 4;

int main(void) {
    printf("thread-local %p mine||-\n", (void *)&mine);
    printf("thread-local %p errno||-\n", (void *)&errno);
    printf("ready\n");
    fflush(stdout);
    for (;;) pause();
}
