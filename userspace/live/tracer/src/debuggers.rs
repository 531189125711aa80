//! Debuggers that start while an agent traces: which programs they are, and whom they may want.
//!
//! The kernel allows one tracer a process, so an agent has to release a program before its debugger calls
//! `ptrace`. The kernel side reports the exec of a debugger by the name of its program. What the debugger
//! wants is read from its arguments: numbers of traced processes or threads, or of nobody yet. Only
//! processes that the debugger's user may trace are released: nobody blinds an agent for others by the name
//! of a program. Sources of error: a debugger of another name is not noticed, and one of another pid
//! namespace may mean other processes by its numbers.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use locality_capture::aside::{Aside, Whose};
use locality_kernel::proc;

/// Time for which nobody that a debugger's user may trace is seized, if the arguments name no process.
pub const WAIT: Duration = Duration::from_secs(30);

/// Names of programs that may ask for a process later.
const INTERACTIVE: [&str; 7] = ["gdb", "gdb-multiarch", "gdbserver", "lldb", "lldb-server", "dlv", "rr"];
/// Names of programs whose arguments say all.
const OTHERS: [&str; 6] = ["strace", "ltrace", "gcore", "criu", "py-spy", "eu-stack"];
/// Programs of a version: `lldb-14`.
const VERSIONED: [&str; 2] = ["lldb", "lldb-server"];
const VERSIONS: std::ops::RangeInclusive<u32> = 11..=30;

/// Names of the programs that the kernel side reports.
pub fn names() -> Vec<String> {
    let versioned =
        VERSIONED.iter().flat_map(|name| VERSIONS.map(move |version| format!("{name}-{version}")));
    INTERACTIVE.iter().chain(&OTHERS).map(|name| (*name).to_owned()).chain(versioned).collect()
}

/// Whom a debugger that just started may want, of the traced processes; `None`: nobody.
pub fn wanted(debugger: u32, traced: &HashSet<u32>) -> Option<Aside> {
    let status = proc::status(debugger).ok()?;
    let user = std::fs::metadata(format!("/proc/{debugger}")).map_or(status.uid, |folder| folder.uid());
    let whose = if user == 0 { Whose::Anybody } else { Whose::User(user) };
    let line = std::fs::read(format!("/proc/{debugger}/cmdline")).ok()?;
    let named = numbers(&line).into_iter().filter_map(|number| Some(proc::status(number).ok()?.tgid));
    let mut pids: HashSet<u32> = named.filter(|pid| traced.contains(pid) && whose.may_trace(*pid)).collect();
    let is_interactive = INTERACTIVE.contains(&status.name.as_str())
        || VERSIONED.iter().any(|name| status.name.starts_with(&format!("{name}-")));
    let is_of_another_namespace = namespace(debugger) != namespace(std::process::id());
    let unknown = (is_interactive && pids.is_empty()) || is_of_another_namespace;
    if pids.is_empty() && !unknown {
        return None;
    }
    // A debugger that is traced itself would get the signals of stops beside those of its program.
    pids.insert(debugger);
    Some(Aside { pids, whose: unknown.then_some(whose) })
}

fn namespace(pid: u32) -> Option<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// The numbers in arguments: `-p 12`, `-p12`, `--pid=12`, `prog 12`, `12,13`.
fn numbers(line: &[u8]) -> Vec<u32> {
    let words = line.split(|byte| *byte == 0).skip(1).filter_map(|word| std::str::from_utf8(word).ok());
    let parts = words.flat_map(|word| {
        let value = word.split_once('=').map_or(word, |(_, value)| value);
        value.strip_prefix("-p").unwrap_or(value).split(',')
    });
    parts.filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_arguments_are_found_in_every_form() {
        for (line, expected) in [
            ("gdb\0-p\x0012\0", vec![12]),
            ("gdb\0-p12\0", vec![12]),
            ("gdb\0--pid=12\0", vec![12]),
            ("gdb\0./prog\x0012\0", vec![12]),
            ("strace\0-f\0-p\x0012,13\0", vec![12, 13]),
            ("12\0./prog\0--x\0", vec![]),
        ] {
            assert_eq!(numbers(line.as_bytes()), expected, "{line:?}");
        }
    }

    #[test]
    fn names_fit_the_kernels_names() {
        assert!(names().iter().all(|name| name.len() <= 15), "{:?}", names());
        assert!(names().contains(&"lldb-server-19".to_owned()));
    }

    #[test]
    fn a_debugger_gets_what_its_user_may_trace() {
        // A process whose arguments name this one, under a debugger's name.
        let own = std::process::id();
        let started = |name: &str, arguments: &[String]| {
            let mut command = std::process::Command::new("sh");
            let script = format!("printf {name} > /proc/$$/comm; echo; read line");
            command.args(["-c", &script, "sh"]).args(arguments);
            command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
            let mut child = command.spawn().unwrap();
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
            child
        };
        let traced = HashSet::from([own]);
        let of = |name: &str, arguments: &[String]| {
            let mut child = started(name, arguments);
            let found = wanted(child.id(), &traced);
            let pid = child.id();
            child.kill().unwrap();
            child.wait().unwrap();
            (found, pid)
        };
        let (found, pid) = of("gdb", &["-p".to_owned(), own.to_string()]);
        let found = found.unwrap();
        assert_eq!((found.pids, found.whose), (HashSet::from([own, pid]), None));
        let (found, _) = of("gdb", &[]);
        assert!(found.unwrap().whose.is_some_and(|whose| whose.may_trace(own)));
        assert!(of("strace", &["ls".to_owned()]).0.is_none());
        assert!(!Whose::User(0xffff_fff0).may_trace(own));
    }
}
