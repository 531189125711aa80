//! A pager for long pages on a terminal: `LOCALITY_PAGER`, or `PAGER`, or `less -FRX`.
//!
//! As in `git`, a shell runs the variable's command; an empty value or
//! `cat` means no pager. Until the pager ends, only the pager receives
//! Ctrl-C. Under sudo `less` starts no shells (`LESSSECURE`).

use std::{
    ffi::OsString,
    io::Write as _,
    process::{Command, Stdio},
};

/// Default pager.
const USUAL: &str = "less -FRX";

/// Shows a page in the pager; `false` without a pager.
pub fn show(page: &str) -> bool {
    match command(|name| std::env::var_os(name)) {
        Some(pager) => through(&pager, page),
        None => false,
    }
}

/// Command for the shell; `None` for no pager.
fn command(variable: impl Fn(&str) -> Option<OsString>) -> Option<OsString> {
    let named = ["LOCALITY_PAGER", "PAGER"].iter().find_map(|name| variable(name));
    let pager = named.unwrap_or_else(|| USUAL.into());
    let word = pager.to_string_lossy();
    (!matches!(word.trim(), "" | "cat")).then_some(pager)
}

fn through(pager: &OsString, page: &str) -> bool {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(pager).stdin(Stdio::piped());
    if std::env::var_os("LESS").is_none() {
        shell.env("LESS", "FRX");
    }
    if std::env::var_os("SUDO_UID").is_some() {
        shell.env("LESSSECURE", "1");
    }
    let Ok(mut shell) = shell.spawn() else { return false };
    let before = ignore_interrupts();
    // A reader who leaves early is no error.
    let _ = shell.stdin.take().map(|mut to| to.write_all(page.as_bytes()));
    let status = shell.wait();
    restore_interrupts(before);
    // Exit status of a shell for a missing program.
    !status.is_ok_and(|status| matches!(status.code(), Some(126 | 127)))
}

/// Ignores Ctrl-C outside the pager; returns the earlier action.
fn ignore_interrupts() -> Option<libc::sigaction> {
    // SAFETY: all-zero bytes are valid actions, both are live, and no handler is installed.
    unsafe {
        let (mut ignore, mut before) = (std::mem::zeroed::<libc::sigaction>(), std::mem::zeroed());
        ignore.sa_sigaction = libc::SIG_IGN;
        (libc::sigaction(libc::SIGINT, &raw const ignore, &raw mut before) == 0).then_some(before)
    }
}

fn restore_interrupts(before: Option<libc::sigaction>) {
    if let Some(before) = before {
        // SAFETY: `before` is the action that the kernel returned.
        unsafe { libc::sigaction(libc::SIGINT, &raw const before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_variable_goes_before_that_of_all_programs() {
        let of = |set: &[(&str, &str)]| {
            command(|name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
        };
        assert_eq!(of(&[]), Some(USUAL.into()));
        assert_eq!(of(&[("PAGER", "more")]), Some("more".into()));
        assert_eq!(of(&[("PAGER", "more"), ("LOCALITY_PAGER", "most -x")]), Some("most -x".into()));
        assert_eq!(of(&[("PAGER", "more"), ("LOCALITY_PAGER", "")]), None);
        assert_eq!(of(&[("PAGER", "cat")]), None);
    }

    #[test]
    fn a_pager_gets_the_page_and_one_that_is_missing_shows_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("page");
        let pager = format!("cat > {}", file.display());
        assert!(through(&pager.into(), "one\ntwo\n"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\ntwo\n");
        assert!(through(&"true".into(), &"long\n".repeat(100_000)));
        assert!(!through(&"no-such-pager-here 2>/dev/null".into(), "page\n"));
    }
}
