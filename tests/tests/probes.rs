//! Probes of allocations (`--heap=probes`) in programs that they could harm: survival, and the
//! messages otherwise.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use locality_tests::live::alone;
use locality_tests::{Tracer, requires};
use serde_json::Value;

/// Compiles a program and runs it with probes; its exit code as a shell shows it, and the report.
fn probed(text: &str, word: &str) -> (Option<i32>, Value) {
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("program.c"), directory.path().join("program"));
    std::fs::write(&source, text).unwrap();
    let compiled = std::process::Command::new("gcc")
        .args(["-O1", "-g", "-w", "-pthread", "-o"])
        .args([&program, &source])
        .status()
        .unwrap();
    assert!(compiled.success());
    let report = directory.path().join("r.json");
    let traced = Tracer::new()
        .args(["-q", "--heap=probes", "--format", "json1", "--report"])
        .args([report.as_os_str(), "-o".as_ref(), directory.path().join("t.locality").as_os_str()])
        .args(["--".as_ref(), program.as_os_str(), word.as_ref()])
        .run();
    eprintln!("{}", traced.stderr);
    let report = std::fs::read(report).ok().and_then(|text| serde_json::from_slice(&text).ok());
    (traced.status.code(), report.unwrap_or_default())
}

/// Probes need Linux 6.6, and are refused on some later kernels.
fn are_refused(status: Option<i32>, report: &Value) -> bool {
    let refused = report.is_null() && status.is_some_and(|status| status != 0);
    if refused {
        eprintln!("SKIPPED: this kernel has no probes");
    }
    refused
}

/// A handler on a stack above the thread's maps memory while the thread is in the middle of an allocation.
const ABOVE: &str = r#"
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static volatile int hits, over;
static void on_timer(int s) { hits++; void *p = mmap(0, 65536, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); munmap(p, 65536); }
static void *allocate(void *above) {
    stack_t stack = { .ss_sp = above, .ss_size = 1 << 17 };
    if ((char *)above < (char *)&stack || sigaltstack(&stack, 0)) exit(9);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &set, 0);
    for (time_t end = time(0) + 4; time(0) < end;) { void *p = calloc(1, 1 << 19); ((volatile char *)p)[5] = 1; free(p); }
    return 0;
}
int main(void) {
    char above[1 << 17];
    mallopt(M_MMAP_THRESHOLD, 1 << 25);
    mallopt(M_TRIM_THRESHOLD, 1 << 29);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &set, 0);
    struct sigaction action = { .sa_handler = on_timer, .sa_flags = SA_ONSTACK | SA_RESTART };
    sigaction(SIGALRM, &action, 0);
    pthread_t thread;
    pthread_create(&thread, 0, allocate, above);
    struct itimerval often = { { 0, 700 }, { 0, 700 } };
    setitimer(ITIMER_REAL, &often, 0);
    pthread_join(thread, 0);
    return hits > 100 ? 0 : 8;
}
"#;

#[test]
fn a_handler_on_a_stack_above_may_allocate_inside_of_an_allocation() {
    requires!(root, btf);
    let _alone = alone();
    let (status, report) = probed(ABOVE, "");
    if !are_refused(status, &report) {
        assert_eq!(status, Some(0), "{}", report["notices"]);
        let heap = report["run"]["sources"]["heap"].as_str().unwrap_or_default();
        assert!(heap.contains("--heap=probes"), "{}", report["run"]["sources"]);
    }
}

/// Copies the page of `malloc` while a probe stands there (probes come and go with the budget), and perhaps
/// runs the copy. Exit code 9: no probe within 20 seconds.
const COPIES: &str = r#"
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
static void work(double seconds) {
    struct timespec now, began;
    clock_gettime(CLOCK_MONOTONIC, &began);
    do {
        void *p = malloc(5000);
        ((volatile char *)p)[9] = 1;
        free(p);
        usleep(1000);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - began.tv_sec + (now.tv_nsec - began.tv_nsec) / 1e9 < seconds);
}
int main(int argc, char **argv) {
    volatile unsigned char *entry = (void *)(uintptr_t)malloc;
    for (int tries = 0; tries < 200 && *entry != 0xcc; tries++) work(0.1);
    uintptr_t from = (uintptr_t)malloc & ~4095ul;
    char *copy = mmap(0, 8192, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(copy, (void *)from, 8192);
    mprotect(copy, 8192, PROT_READ | PROT_EXEC);
    if (((unsigned char *)copy)[(uintptr_t)malloc - from] != 0xcc) return 9;
    if (!strcmp(argv[1], "run")) ((void *(*)(size_t))(copy + ((uintptr_t)malloc - from)))(5000);
    work(4);
    return 0;
}
"#;

#[test]
fn probes_go_where_code_was_copied_with_them() {
    requires!(root, btf);
    let _alone = alone();
    let (status, report) = probed(COPIES, "stay");
    if !are_refused(status, &report) {
        let notices = report["notices"].to_string();
        assert_eq!(status, Some(0), "{notices}");
        assert!(notices.contains("a copy of code with probes in it"), "{notices}");
    }
}

#[test]
fn a_probed_program_that_ends_by_a_trap_is_told_of_the_probes() {
    requires!(root, btf);
    let _alone = alone();
    let (status, report) = probed(COPIES, "run");
    if !are_refused(status, &report) {
        let first = report["notices"][0].as_str().unwrap_or_default();
        assert_eq!(status, Some(128 + libc::SIGTRAP), "{first}");
        assert!(first.contains("SIGTRAP") && first.contains("--heap=preload"), "{}", report["notices"]);
    }
}
