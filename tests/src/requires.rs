//! Requirements of a test. If one is missing, the test prints the reason and returns; it never passes
//! silently.
//!
//! `requires!(root, btf, watchpoints(2), command("gdb"))` at the start of a test: each
//! word is a function here. A skip is a line on stderr that begins with `SKIP`, counted
//! by `cargo xtask test`. With `LOCALITY_REQUIRE=all`, as in CI, a skip is a failure.

use std::io::Write as _;
use std::path::Path;

use perf_event_open_sys as perf;

/// Returns from the test, with a counted reason, unless the machine meets every named requirement.
#[macro_export]
macro_rules! requires {
    ($($need:ident $(($($argument:expr),*))?),+ $(,)?) => {
        $(if let Err(reason) = $crate::requires::$need($($($argument),*)?) {
            $crate::requires::skip(&reason);
            return;
        })+
    };
}

/// A value that a test needs, or the test is skipped with the reason for the lack.
#[macro_export]
macro_rules! or_skip {
    ($value:expr) => {
        match $value {
            Ok(value) => value,
            Err(reason) => {
                $crate::requires::skip(&reason);
                return;
            }
        }
    };
}

/// Reports a skip, or fails if skips are not allowed.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let required = std::env::var("LOCALITY_REQUIRE").unwrap_or_default();
    let line =
        skip_line(thread.name().unwrap_or("test"), reason, &required).unwrap_or_else(|e| panic!("{e}"));
    // Past the capture of the test runner, which would hide the output of a test that returns.
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// The line about a skip, or the reason for a failure.
fn skip_line(test: &str, reason: &str, required: &str) -> Result<String, String> {
    if required == "all" {
        Err(format!("{test} cannot run here: {reason}"))
    } else {
        Ok(format!("SKIP {test}: {reason}"))
    }
}

/// Effective user root.
pub fn root() -> Result<(), String> {
    // SAFETY: geteuid takes no arguments and cannot fail.
    if unsafe { libc::geteuid() } == 0 { Ok(()) } else { Err("needs root".to_owned()) }
}

/// The kernel describes its own types, by which the eBPF programs are relocated.
pub fn btf() -> Result<(), String> {
    match Path::new("/sys/kernel/btf/vmlinux").exists() {
        true => Ok(()),
        false => Err("needs a kernel with BTF (/sys/kernel/btf/vmlinux)".to_owned()),
    }
}

/// At least `count` debug registers are free.
pub fn watchpoints(count: usize) -> Result<(), String> {
    let watched = [0u64; 8];
    let mut events = Vec::new();
    for word in watched.iter().take(count) {
        match open_watchpoint(std::ptr::from_ref(word) as u64, 8, perf::bindings::HW_BREAKPOINT_W) {
            Ok(event) => events.push(event),
            Err(e) => return Err(format!("needs {count} debug registers, {} are free: {e}", events.len())),
        }
    }
    if events.len() == count { Ok(()) } else { Err(format!("asks for {count} debug registers")) }
}

/// A runnable program, or an emulator at the path where `cargo xtask qemu` installs it for root.
pub fn command(name: &str) -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(["/usr/local/lib/locality-bpf".into()]);
    match folders.any(|dir| dir.join(name).is_file()) {
        true => Ok(()),
        false => Err(format!("needs the program {name}")),
    }
}

/// A library at the distributions' places; names the package of Debian.
pub fn library(file: &str, package: &str) -> Result<(), String> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
    match folders.iter().any(|folder| Path::new(folder).join(file).exists()) {
        true => Ok(()),
        false => Err(format!("needs {file} (Debian's package {package})")),
    }
}

/// The kernel runs 32-bit programs.
pub fn ia32() -> Result<(), String> {
    let program = crate::build("thirty_two_bit");
    match std::process::Command::new(program).arg("1").output() {
        Ok(run) if run.status.success() => Ok(()),
        Ok(run) => Err(format!("needs a kernel that runs 32-bit programs: {}", run.status)),
        Err(e) => Err(format!("needs a kernel that runs 32-bit programs: {e}")),
    }
}

/// This number of CPUs for this process.
pub fn cpus(count: usize) -> Result<(), String> {
    let have = std::thread::available_parallelism().map_or(1, usize::from);
    if have >= count { Ok(()) } else { Err(format!("needs {count} CPUs, has {have}")) }
}

/// A watchpoint of a kind (`HW_BREAKPOINT_W`, …) on `bytes`
/// bytes in the calling thread, open as long as the descriptor.
pub fn open_watchpoint(address: u64, bytes: u64, kind: u32) -> std::io::Result<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd as _;
    let mut attr = perf::bindings::perf_event_attr {
        type_: perf::bindings::PERF_TYPE_BREAKPOINT,
        size: size_of::<perf::bindings::perf_event_attr>() as u32,
        bp_type: kind,
        ..Default::default()
    };
    attr.__bindgen_anon_3.bp_addr = address;
    attr.__bindgen_anon_4.bp_len = bytes;
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    let flags = u64::from(perf::bindings::PERF_FLAG_FD_CLOEXEC);
    // SAFETY: attr is whole and outlives the call; the kernel only reads it.
    let fd = unsafe { perf::perf_event_open(&mut attr, 0, -1, -1, flags) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, without another owner.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_debug_registers_than_there_are_is_a_reason() {
        assert!(watchpoints(8).unwrap_err().contains("needs 8 debug registers"));
        assert!(watchpoints(0).is_ok());
    }

    #[test]
    fn a_program_that_is_not_there_is_a_reason() {
        assert!(command("no-such-program-here").unwrap_err().contains("no-such-program-here"));
        assert!(command("sh").is_ok());
    }

    #[test]
    fn a_skip_is_a_line_or_where_all_is_required_a_failure() {
        assert_eq!(skip_line("attach", "needs root", ""), Ok("SKIP attach: needs root".to_owned()));
        assert!(skip_line("attach", "needs root", "all").is_err());
    }

    #[test]
    fn the_macro_goes_on_where_all_needs_are_met() {
        fn body(reached: &mut bool) {
            requires!(cpus(1), command("sh"));
            *reached = true;
        }
        let mut reached = false;
        body(&mut reached);
        assert!(reached);
    }
}
