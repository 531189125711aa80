//! Allocations of launched programs, recorded by the preloaded library: records and names, no
//! effect on the program, and programs that are left alone.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;

use locality_tests::live::alone;
use locality_tests::{Tracer, requires};
use serde_json::Value;

struct Launched {
    report: Value,
    stdout: String,
    status: Option<i32>,
    /// Recorded allocations.
    seen: u64,
}

impl Launched {
    /// Launches a command with the default way to follow allocations.
    fn new(command: &[&str]) -> Self {
        Self::with(command, &[])
    }

    fn with(command: &[&str], environment: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let report = directory.path().join("r.json");
        let file = directory.path().join("t.locality");
        // The program's output, apart from the tracer's words.
        let said = directory.path().join("said");
        let mut words =
            vec!["sh", "-c", "out=$1; shift; exec \"$@\" >\"$out\" 2>&1", "sh", said.to_str().unwrap()];
        words.extend(command);
        let mut all = vec!["env".to_owned()];
        all.extend(environment.iter().map(|(name, value)| format!("{name}={value}")));
        all.extend(words.into_iter().map(str::to_owned));
        let traced = Tracer::new()
            .args(["-q", "--format", "json1", "--report"])
            .args([report.as_os_str(), "-o".as_ref(), file.as_os_str()])
            .args(["--"])
            .args(&all)
            .run();
        let report = std::fs::read(report).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let seen =
            locality_profile::read(&file).ok().and_then(|profile| Some(profile.heap?.seen)).unwrap_or(0);
        let stdout = std::fs::read_to_string(said).unwrap_or_default();
        Self { report: report.unwrap_or_default(), stdout, status: traced.status.code(), seen }
    }

    fn notices(&self) -> String {
        self.report["notices"].to_string()
    }
}

/// Compiles a program of one source file.
fn compile(directory: &Path, name: &str, text: &str, options: &[&str]) -> String {
    let source = directory.join(format!("{name}.c"));
    std::fs::write(&source, text).unwrap();
    let program = directory.join(name);
    let compiled = std::process::Command::new("gcc")
        .args(["-O1", "-g", "-fno-builtin", "-o"])
        .args([program.as_os_str(), source.as_os_str()])
        .args(options)
        .status()
        .unwrap();
    assert!(compiled.success());
    program.to_str().unwrap().to_owned()
}

/// Allocates for two seconds: 1,000 blocks of 2 KiB and more, and prints the environment.
const BUSY: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
extern char **environ;
static char *kept[1000];
__attribute__((noinline)) char *make(int n) { return malloc(n); }
int main(int argc, char **argv) {
    for (char **e = environ; *e; e++) if (strstr(*e, "LOCALITY_HEAP") || strstr(*e, "PRELOAD")) puts(*e);
    long sum = 0;
    for (int i = 0; i < 1000; i++) { kept[i] = make(2048 + i); memset(kept[i], i, 2048); }
    time_t end = time(0) + 3;
    while (time(0) < end) for (int i = 0; i < 1000; i++) for (int k = 0; k < 2048; k++) sum += kept[i][k];
    printf("done %d\n", sum == 42);
    return 3;
}
"#;

#[test]
fn a_program_is_recorded_and_sees_nothing_of_it() {
    requires!(root, btf);
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "busy", BUSY, &[]);
    let launched = Launched::new(&[&program]);
    assert_eq!((launched.status, launched.stdout.as_str()), (Some(3), "done 0\n"), "{}", launched.notices());
    assert!(launched.seen >= 1000, "{}", launched.seen);
    assert!(launched.notices().contains("loaded first"), "{}", launched.notices());
    let objects = launched.report["objects"].as_array().unwrap();
    let made = objects.iter().find(|row| row["site"]["place"]["function"] == "make");
    assert!(made.is_some_and(|row| row["inferred"] == false), "{objects:#?}");
}

#[test]
fn a_preloaded_library_of_the_users_stays_and_is_all_that_is_seen() {
    requires!(root, btf, library("libjemalloc.so.2", "libjemalloc2"));
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "busy", BUSY, &[]);
    let launched = Launched::with(&[&program], &[("LD_PRELOAD", "libjemalloc.so.2")]);
    assert_eq!(launched.stdout, "LD_PRELOAD=libjemalloc.so.2\ndone 0\n", "{}", launched.notices());
    assert!(launched.notices().contains("libjemalloc.so.2"), "{}", launched.notices());
}

#[test]
fn the_recorder_is_named_first_and_children_without_it_are_counted() {
    requires!(root, btf);
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "busy", BUSY, &[]);
    // The shell of `system`, and the shell's children.
    let text = "#include <stdlib.h>\nint main(int argc, char **argv) { return system(argv[1]); }";
    let by_system = compile(directory.path(), "by_system", text, &[]);
    let launched = Launched::new(&[&by_system, &format!("{program}; :")]);
    let sources = &launched.report["run"]["sources"];
    assert!(sources["heap"].as_str().unwrap_or_default().contains("LD_PRELOAD"), "{sources}");
    assert!(launched.notices().contains("Allocations of 2 programs"), "{}", launched.notices());
    let all = Launched::new(&["sh", "-c", "\"$0\"; :", &program]);
    assert!(!all.notices().contains("were not recorded"), "{}", all.notices());
}

#[test]
fn static_programs_and_own_allocators_are_left_alone_and_told() {
    requires!(root, btf);
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let run = |program: &str| {
        let report = directory.path().join("r.json");
        let traced = Tracer::new()
            .args(["-q", "--format", "json1", "--report"])
            .args([report.as_os_str(), "-o".as_ref(), directory.path().join("t.locality").as_os_str()])
            .args(["--", program])
            .run();
        assert_eq!(traced.status.code(), Some(3), "{}", traced.stderr);
        let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
        report["notices"].to_string()
    };
    let notices = run(&compile(directory.path(), "still", BUSY, &["-static"]));
    assert!(notices.contains("statically linked"), "{notices}");
    let own = BUSY.replace(
        "int main",
        "static char pool[1 << 24]; static size_t used;\n\
         void *malloc(size_t n) { used += (n + 15) & ~15ul; return pool + used - ((n + 15) & ~15ul); }\n\
         void free(void *p) {}\n\
         void *calloc(size_t a, size_t b) { return malloc(a * b); }\n\
         void *realloc(void *p, size_t n) { void *q = malloc(n); if (p) memmove(q, p, n); return q; }\n\
         int main",
    );
    let notices = run(&compile(directory.path(), "own", &own, &[]));
    assert!(notices.contains("allocator of its own"), "{notices}");
}

/// Allocates where a thread has little order: in handlers on alternate stacks, on stacks of the
/// program, in ending threads, after a fork, in a child of `vfork`, in destructors and at exit.
const HARD: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
static void touch(size_t n) { char *p = malloc(n); p[n - 1] = 1; p = realloc(p, 2 * n); p[n] = 2; free(p); }
static void on_timer(int s) { void *p = mmap(0, 65536, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); munmap(p, 65536); }
static ucontext_t back, fiber;
/* A stack whose neighbours on both sides cannot be read. */
static void *island(size_t n) {
    char *p = mmap(0, n + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(p + 4096, n, 3);
    return p + 4096;
}
static void on_fiber(void) { for (int i = 0; i < 2000; i++) { touch(3000); touch(200000); } }
static pthread_key_t key;
static void last(void *p) { touch(5000); }
static void at_end(void) { touch(6000); }
static void *thread(void *p) { pthread_setspecific(key, p); touch(4000); return p; }
int main(void) {
    atexit(at_end);
    pthread_key_create(&key, last);
    stack_t alternate = {.ss_sp = island(65536), .ss_size = 65536};
    sigaltstack(&alternate, 0);
    struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    struct itimerval every = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &every, 0);
    getcontext(&fiber);
    fiber.uc_stack.ss_sp = island(65536);
    fiber.uc_stack.ss_size = 65536;
    fiber.uc_link = &back;
    makecontext(&fiber, on_fiber, 0);
    swapcontext(&back, &fiber);
    for (int i = 0; i < 2000; i++) {
        pthread_t t;
        if (pthread_create(&t, 0, thread, &t)) return 1;
        pthread_join(t, 0);
    }
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (!child) { touch(7000); _exit(0); }
        int status;
        while (waitpid(child, &status, 0) < 0) {}
        if (status) return 2;
        child = vfork();
        if (!child) { touch(8000); _exit(0); }
        while (waitpid(child, &status, 0) < 0) {}
        if (status) return 3;
    }
    puts("well");
    return 0;
}
"#;

#[test]
fn hard_places_to_allocate_in_are_survived() {
    requires!(root, btf);
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "hard", HARD, &["-pthread"]);
    let launched = Launched::new(&[&program]);
    assert_eq!((launched.status, launched.stdout.as_str()), (Some(0), "well\n"), "{}", launched.notices());
    assert!(launched.seen > 5000, "{}: {}", launched.seen, launched.notices());
}

/// Gives up the time and all system calls but four, and goes on to allocate.
const STRICT: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
long out(const char *text) { return write(1, text, strlen(text)); }
int main(void) {
    void *room = malloc(60000);
    free(room);
    if (prctl(22, 1, 0, 0, 0)) return 1;
    for (int i = 0; i < 1000; i++) { char *p = malloc(2000 + i); p[5] = 1; free(p); }
    out("well\n");
    __asm__ volatile("syscall" ::"a"(60), "D"(0));
    return 2;
}
"#;

#[test]
fn a_process_under_strict_seccomp_lives_on() {
    requires!(root, btf);
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "strict", STRICT, &[]);
    let launched = Launched::new(&[&program]);
    assert_eq!(launched.stdout, "well\n", "{:?} {}", launched.status, launched.notices());
    assert!(launched.notices().contains("gave up reading the time"), "{}", launched.notices());
}
