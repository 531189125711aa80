//! Bad targets by their status, and live ones.

use super::*;
use std::process::{Child, Command, Stdio};

fn judged(status: Status) -> Check {
    process_check(7, Ok(status)).0
}

fn user_process() -> Status {
    Status { name: "x".into(), state: 'S', tgid: 7, ..Status::default() }
}

#[test]
fn what_cannot_be_traced_is_named() {
    for (status, words) in [
        (Status { tgid: 5, ..user_process() }, "7 is a thread of process 5"),
        (Status { state: 'Z', ..user_process() }, "zombie"),
        (Status { kernel_thread: true, ..user_process() }, "thread of the kernel"),
    ] {
        let check = judged(status);
        assert_eq!(check.state, State::Missing);
        assert!(check.found.contains(words), "{check:?}");
    }
    let (check, status) = process_check(7, Err(io::Error::from_raw_os_error(libc::ENOENT)));
    assert!(check.found.contains("no process 7") && status.is_none());
}

#[test]
fn refused_access_names_its_cause() {
    let refused = || Err(io::Error::from_raw_os_error(libc::EACCES));
    assert_eq!(judge_access(Ok(()), true, 0, 1000, true).state, State::Ok);
    assert!(judge_access(refused(), false, 1000, 0, true).found.contains("user 0's"));
    assert!(judge_access(refused(), false, 1000, 1000, false).found.contains("not dumpable"));
    assert!(judge_access(refused(), false, 1000, 1000, true).found.contains("security module"));
    assert_eq!(judge_access(refused(), false, 0, 0, true).mend, None);
    assert!(may_attach(std::process::id()) && !may_attach(u32::MAX >> 1));
    // A container's root without the right to pass over the owners of files.
    let owned = judge_access(refused(), true, 0, 1000, true);
    assert!(owned.state == State::Degraded && owned.found.contains("user 1000's"), "{owned:?}");
    assert_eq!(
        judge_access(Err(io::Error::from_raw_os_error(libc::EIO)), false, 0, 0, true).state,
        State::Unknown
    );
}

#[test]
fn signals_are_chosen_per_thread() {
    let set = |signals: &[i32]| signals.iter().map(|signal| rules::signal_bit(*signal as u32)).sum();
    let thread = |caught: &[i32], blocked: &[i32]| Status {
        caught: set(caught),
        blocked: set(blocked),
        ..user_process()
    };
    assert_eq!(free_signal(&thread(&[], &[])), Some(libc::SIGURG as u32));
    assert_eq!(free_signal(&thread(&[libc::SIGURG], &[])), Some(libc::SIGWINCH as u32));
    assert_eq!(free_signal(&thread(&[libc::SIGURG], &[libc::SIGWINCH])), Some(libc::SIGCHLD as u32));
    let all = [libc::SIGURG, libc::SIGWINCH, libc::SIGCHLD];
    assert_eq!(free_signal(&thread(&all[..1], &all[1..])), None);
    let check = signal_check(&BTreeMap::from([(1, thread(&[], &[])), (2, thread(&[], &[]))]));
    assert_eq!((check.state, check.found.as_str()), (State::Ok, "SIGURG in every thread"));
    let check = signal_check(&BTreeMap::from([(1, thread(&[], &[])), (2, thread(&all, &[]))]));
    assert_eq!(
        (check.state, check.found.as_str()),
        (State::Degraded, "SIGURG in 1 thread, none in 1 thread")
    );
    assert_eq!(signal_check(&BTreeMap::new()).state, State::Unknown);
}

#[test]
fn the_fewest_free_registers_decide() {
    let gone = || Err(io::Error::from_raw_os_error(libc::ESRCH));
    assert_eq!(judge_registers(vec![Ok(4), Ok(4)]).state, State::Ok);
    assert_eq!(judge_registers(vec![Ok(4), gone(), Ok(3)]).state, State::Degraded);
    assert_eq!(judge_registers(vec![Ok(4), Ok(0)]).state, State::Missing);
    assert_eq!(judge_registers(vec![gone()]).state, State::Unknown);
    assert_eq!(judge_registers(vec![Err(io::Error::from_raw_os_error(libc::EACCES))]).state, State::Missing);
}

#[test]
fn many_threads_and_a_debugger_are_said() {
    assert_eq!(threads_check(17).state, State::Ok);
    assert_eq!(threads_check(18).state, State::Degraded);
    let check = tracer_check(Some((42, "gdb x".into())));
    assert!(check.found.contains("process 42: gdb x") && check.state == State::Degraded);
}

/// A process that is ended and waited for.
struct Running(Child);

impl Running {
    fn start(program: &str, arguments: &[&str]) -> Option<Self> {
        let child = Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        match child {
            Ok(child) => Some(Self(child)),
            Err(error) => {
                locality_kernel::testing::skip(&format!("needs {program}: {error}"));
                None
            }
        }
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn wait_until(&self, is_so: impl Fn(&Status) -> bool) {
        for _ in 0..500 {
            if proc::status(self.pid()).is_ok_and(|status| is_so(&status)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("process {} never came to that", self.pid());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn check<'t>(target: &'t Target, id: &str) -> &'t Check {
    target.checks.iter().find(|check| check.id == id).unwrap_or_else(|| panic!("no {id} in {target:?}"))
}

#[test]
fn a_live_process_is_examined_and_runs_on() {
    if !locality_kernel::sys::is_root() {
        locality_kernel::testing::skip("needs root");
        return;
    }
    let Some(sleeper) = Running::start("sleep", &["60"]) else { return };
    sleeper.wait_until(|status| status.name == "sleep" && status.state == 'S');
    let target = examine(sleeper.pid());
    assert_eq!(target.command, "sleep 60");
    for id in ["process", "access", "threads", "tracer", "stop_signal", "target_registers", "leak_sanitizer"]
    {
        assert_eq!(check(&target, id).state, State::Ok, "{id}");
    }
    assert!(check(&target, "debug_info").found.starts_with("sleep ("));
    assert!(check(&target, "debug_info_libraries").found.contains("libc"));
    let after = proc::status(sleeper.pid()).unwrap();
    assert_eq!((after.state, after.tracer), ('S', 0));
}

#[test]
fn a_debugged_process_is_recognised() {
    if !locality_kernel::sys::is_root() {
        locality_kernel::testing::skip("needs root");
        return;
    }
    let Some(sleeper) = Running::start("sleep", &["60"]) else { return };
    // ptrace belongs to a thread: this one.
    locality_kernel::ptrace::seize(sleeper.pid()).unwrap();
    let target = examine(sleeper.pid());
    let tracer = check(&target, "tracer");
    assert_eq!(tracer.state, State::Degraded);
    assert!(tracer.found.contains("traced by process"), "{tracer:?}");
}

#[test]
fn taken_registers_are_missed() {
    let Some(sleeper) = Running::start("sleep", &["60"]) else { return };
    let mut taken = Vec::new();
    for _ in 0..DEBUG_REGISTERS {
        match locality_kernel::perf::Event::watchpoint(sleeper.pid(), 0x1000, 8, None) {
            Ok(event) => taken.push(event),
            Err(error) => {
                locality_kernel::testing::skip(&format!("needs {DEBUG_REGISTERS} debug registers: {error}"));
                return;
            }
        }
    }
    assert_eq!(check(&examine(sleeper.pid()), "target_registers").state, State::Missing);
    taken.pop();
    assert_eq!(check(&examine(sleeper.pid()), "target_registers").state, State::Degraded);
}

#[test]
fn a_zombie_and_a_kernel_thread_are_recognised() {
    let Some(ended) = Running::start("true", &[]) else { return };
    ended.wait_until(|status| status.state == 'Z');
    let target = examine(ended.pid());
    assert!(target.checks.len() == 1 && target.checks[0].found.contains("zombie"), "{target:?}");
    match proc::status(2) {
        Ok(status) if status.kernel_thread => {
            assert!(examine(2).checks[0].found.contains("thread of the kernel"));
        }
        _ => locality_kernel::testing::skip("process 2 is no kernel thread here"),
    }
}

#[test]
fn a_process_that_runs_leak_sanitizer_is_recognised() {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("a.c"), dir.path().join("a"));
    fs::write(&source, "#include <unistd.h>\nint main(void) { return sleep(60); }").unwrap();
    let built =
        Command::new("gcc").args(["-g", "-fsanitize=address"]).arg(&source).arg("-o").arg(&program).status();
    if !built.is_ok_and(|status| status.success()) {
        locality_kernel::testing::skip("needs gcc with the address sanitizer");
        return;
    }
    let Some(sanitized) = Running::start(program.to_str().unwrap(), &[]) else { return };
    sanitized.wait_until(|status| status.name == "a" && status.state == 'S');
    let target = examine(sanitized.pid());
    let found = check(&target, "leak_sanitizer");
    assert_eq!(found.state, State::Degraded, "{target:?}");
    assert!(found.mend.as_ref().unwrap().contains("--no-stop"));
    assert_eq!(check(&target, "debug_info").state, State::Ok);
}
