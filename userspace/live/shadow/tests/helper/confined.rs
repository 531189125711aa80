//! What the window process may.

use std::time::Instant;

use locality_shadow::helper::ranges;

use super::target::{registers, request, wait};
use super::*;

#[test]
fn it_has_no_rights() {
    needs_root!();
    let helper = helper();
    let status = proc_text(&helper, "status");
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_once(':').unwrap().1.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(field("Uid"), "65534 65534 65534 65534");
    assert_eq!(field("Gid"), "65534 65534 65534 65534");
    assert_eq!(field("Groups"), "");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!(
        (field("NoNewPrivs"), field("Seccomp"), field("Threads")),
        ("1".into(), "2".into(), "1".into())
    );
    assert_eq!(field("PPid"), std::process::id().to_string());
    let limits = proc_text(&helper, "limits");
    for zero in ["Max core file size", "Max file size", "Max processes", "Max locked memory"] {
        let line = limits.lines().find(|line| line.starts_with(zero)).unwrap();
        assert!(line[zero.len()..].split_whitespace().take(2).eq(["0", "0"]), "{line}");
    }
    assert_eq!(proc_text(&helper, "oom_score_adj").trim(), "1000");
    // Not of this session: no signals of the terminal.
    // SAFETY: a system call with plain arguments.
    assert_eq!(unsafe { libc::getsid(helper.pid() as i32) } as u32, helper.pid());
    // Another process of the same user may not look into it.
    let mem = std::fs::metadata(format!("/proc/{}/mem", helper.pid())).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&mem), 0);
}

#[test]
fn without_root_it_has_no_rights_either() {
    let mut helper = helper();
    let status = proc_text(&helper, "status");
    for line in
        ["CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "Seccomp:\t2"]
    {
        assert!(status.contains(line), "{line}: {status}");
    }
    helper.round_trip().unwrap();
    let maps = ranges(&std::fs::read_to_string("/proc/self/maps").unwrap());
    // Of a child of ours.
    let child = std::process::Command::new("sleep").arg("100").spawn();
    let mut child = child.unwrap();
    let added = helper.add_process(KEY, child.id(), &maps);
    child.kill().unwrap();
    child.wait().unwrap();
    added.unwrap();
}

#[test]
fn it_holds_its_socket_and_what_it_was_given() {
    needs_root!();
    // A descriptor that is not closed at exec, as one may inherit from a shell.
    let leak = std::fs::File::open("/etc/passwd").unwrap();
    // SAFETY: duplicates a live descriptor; the copy stays open for the life of the test process.
    assert!(unsafe { libc::dup(std::os::fd::AsRawFd::as_raw_fd(&leak)) } > 0);
    let mut helper = helper();
    let open = |helper: &Helper| {
        let mut names: Vec<_> = std::fs::read_dir(format!("/proc/{}/fd", helper.pid()))
            .unwrap()
            .map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap().display().to_string())
            .map(|name| name.split(':').next().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(open(&helper), ["socket"]);
    let target = Target::busy();
    add(&mut helper, &target);
    helper.add_process(2, std::process::id(), &[]).unwrap();
    let (theirs, ours) = (format!("/proc/{}/mem", target.pid), format!("/proc/{}/mem", std::process::id()));
    let mut expected = [theirs, ours.clone(), "socket".to_owned()];
    expected.sort();
    assert_eq!(open(&helper), expected);
    // Taken again, it is the same number of descriptors; dropped, one less.
    add(&mut helper, &target);
    assert_eq!(open(&helper), expected);
    helper.remove_process(KEY);
    assert_eq!(open(&helper), [ours, "socket".to_owned()]);
}

/// Has the window process make a system call while it waits for a question.
fn make_it_call(pid: u32, number: i64, arguments: [u64; 4]) {
    request(libc::PTRACE_SEIZE, pid, 0, 0);
    request(libc::PTRACE_INTERRUPT, pid, 0, 0);
    assert!(libc::WIFSTOPPED(wait(pid)));
    let waiting = registers(pid);
    let mut regs = waiting;
    // It stands behind the `syscall` instruction of its futex call, which `orig_rax` of -1 keeps
    // from being restarted.
    regs.rip -= 2;
    regs.rax = number as u64;
    regs.orig_rax = u64::MAX;
    [regs.rdi, regs.rsi, regs.rdx, regs.r10] = arguments;
    request(libc::PTRACE_SETREGS, pid, 0, &raw const regs as usize);
    request(libc::PTRACE_SINGLESTEP, pid, 0, 0);
    let status = wait(pid);
    if libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTRAP {
        // Lived. As before: the futex call is made again.
        let mut regs = waiting;
        regs.rip -= 2;
        regs.rax = libc::SYS_futex as u64;
        regs.orig_rax = u64::MAX;
        request(libc::PTRACE_SETREGS, pid, 0, &raw const regs as usize);
        request(libc::PTRACE_DETACH, pid, 0, 0);
    } else {
        assert!(libc::WIFSIGNALED(status), "{status:#x}");
        assert_eq!(libc::WTERMSIG(status), libc::SIGSYS);
    }
}

#[test]
fn a_system_call_that_is_not_on_the_list_ends_it_and_nothing_else() {
    needs_root!();
    let target = Target::busy();
    let state = target.stop();
    let (anonymous, data) = ((libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64, libc::PROT_READ as u64 | 2);
    let forbidden = [
        (libc::SYS_getpid, [0; 4]),
        (libc::SYS_openat, [libc::AT_FDCWD as u64, 0, 0, 0]),
        (libc::SYS_ptrace, [libc::PTRACE_SEIZE as u64, 1, 0, 0]),
        (libc::SYS_process_vm_readv, [target.pid.into(), 0, 0, 0]),
        (libc::SYS_pwrite64, [1, 0, 0, 0]),
        (libc::SYS_sendmsg, [0; 4]),
        (libc::SYS_write, [0; 4]),
        // Of the socket alone, and no other operation than these two.
        (libc::SYS_recvmsg, [1, 0, 0, 0]),
        (libc::SYS_futex, [0, libc::FUTEX_LOCK_PI as u64, 0, 0]),
        // No further executable memory.
        (libc::SYS_mmap, [0, 4096, data | libc::PROT_EXEC as u64, anonymous]),
        (libc::SYS_mprotect, [0, 4096, libc::PROT_EXEC as u64, 0]),
        (libc::SYS_clone, [0; 4]),
        (libc::SYS_kill, [1, 9, 0, 0]),
        // `getpid` of the x32 ABI.
        (0x4000_0000 | libc::SYS_getpid, [0; 4]),
    ];
    for (number, arguments) in forbidden {
        let mut helper = helper();
        add(&mut helper, &target);
        make_it_call(helper.pid(), number, arguments);
        let begin = Instant::now();
        let window = helper.run(KEY, &state, &limits(100));
        assert_eq!(window.end, End::Helper, "system call {number}");
        // The limit is not waited for.
        assert!(begin.elapsed() < Duration::from_secs(15));
        assert_eq!(window.events().count(), 0);
        // Once for all of them: it comes back with its targets.
        if number == libc::SYS_getpid {
            revive(&mut helper);
            assert_eq!(helper.deaths(), 1);
            assert_eq!(helper.run(KEY, &state, &limits(100)).end, End::Instructions);
        }
    }
}

#[test]
fn a_system_call_on_the_list_does_not_end_it() {
    needs_root!();
    let target = Target::busy();
    let state = target.stop();
    let mut helper = helper();
    add(&mut helper, &target);
    let (anonymous, data) = ((libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64, libc::PROT_READ as u64 | 2);
    for (number, arguments) in [
        (libc::SYS_pread64, [1, 0, 0, 0]),
        (libc::SYS_clock_gettime, [0; 4]),
        (libc::SYS_mmap, [0, 4096, data, anonymous]),
        (libc::SYS_madvise, [0; 4]),
    ] {
        make_it_call(helper.pid(), number, arguments);
        assert_eq!(helper.run(KEY, &state, &limits(100)).end, End::Instructions, "system call {number}");
    }
    assert_eq!(helper.deaths(), 0);
}
