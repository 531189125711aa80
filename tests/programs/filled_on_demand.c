/* Memory that a thread of the program fills on demand (userfaultfd), as live migration and garbage collectors do. The program touches
 * each second page only and holds pointers to the others; it tells how many of those were asked for. Ends with 77 where the
 * kernel has no userfaultfd. */
// build: gcc -O1 -g -pthread -o $BIN $SRC
#include "target.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#define PAGES 4096ul
#define PAGE 4096ul

struct node {
    struct node *next, *rare;
    uint64_t payload[6];
};

static struct node *heap;
static int filler;
static volatile long odd;
static char page[PAGE] __attribute__((aligned(4096)));

static struct node *at(unsigned long n) { return (struct node *)((char *)heap + n % PAGES * PAGE); }

static void *fill(void *unused) {
    struct uffd_msg message;
    while (read(filler, &message, sizeof message) == sizeof message) {
        if (message.event != UFFD_EVENT_PAGEFAULT) continue;
        unsigned long address = message.arg.pagefault.address & ~(PAGE - 1);
        unsigned long n = (address - (unsigned long)heap) / PAGE;
        odd += n & 1;
        struct node *first = (struct node *)page;
        first->next = at(n + 2);
        first->rare = at(n + 1);
        struct uffdio_copy copy = {.dst = address, .src = (unsigned long)page, .len = PAGE};
        ioctl(filler, UFFDIO_COPY, &copy);
    }
    return unused;
}

int main(int argc, char **argv) {
    start(argc, argv);
    filler = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    if (filler < 0 || ioctl(filler, UFFDIO_API, &api)) return 77;
    heap = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register wanted = {.range = {(unsigned long)heap, PAGES * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(filler, UFFDIO_REGISTER, &wanted)) return 77;
    pthread_t thread;
    if (pthread_create(&thread, NULL, fill, NULL)) fail("pthread_create");
    ready();
    struct node *node = at(0);
    uint64_t sum = 0;
    while (now() < until) {
        for (int i = 0; i < 100000; i++) {
            sum = mix(sum + node->payload[0]);
            node->payload[2]++;
            /* Never taken, and what a reader of pointers would follow. */
            node = node->payload[1] == 77 ? node->rare : node->next;
        }
    }
    printf("asked for pages that were never touched: %ld\n", odd);
    finish(sum);
    return 0;
}
