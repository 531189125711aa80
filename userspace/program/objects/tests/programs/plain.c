// A small program for files that are damaged, stripped or split. Lines as in kinds.c.
#include <stdio.h>
#include <unistd.h>

struct pair { int left; long right; };
struct pair pairs[32] = {{1, 2}};
static int own_counter = 3;
int zeroed[5000];
static const char text[] = "some text in read-only memory";

int main(void) {
    struct pair on_stack = {4, 5};
    printf("static %p pairs|[].right|pair [32]\n", (void *)&pairs[3].right);
    printf("static %p own_counter||int\n", (void *)&own_counter);
    printf("static %p zeroed|[]|int [5000]\n", (void *)&zeroed[4000]);
    printf("static %p text|[]|char [30]\n", (void *)&text[5]);
    printf("stack %p on_stack|.right|pair\n", (void *)&on_stack.right);
    printf("ready\n");
    fflush(stdout);
    for (;;) pause();
}
