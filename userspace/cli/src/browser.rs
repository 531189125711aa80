//! Opens a file in the user's browser, never as root.
//!
//! Under sudo the browser starts as the invoking user, with that user's home and session.
//! The program does not wait for the browser's end, and drops the browser's output.

use std::{
    ffi::{CStr, OsString},
    os::unix::{ffi::OsStringExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use locality_profile::Owner;

/// Longest wait for an early failure of the browser's start.
const FAILS_WITHIN: Duration = Duration::from_millis(300);

/// Opens a file; `owner` is the user who called sudo.
///
/// # Errors
/// A sentence with the reason.
pub fn open(file: &Path, owner: Option<Owner>) -> Result<(), String> {
    // SAFETY: the call has no arguments.
    let is_root = unsafe { libc::geteuid() } == 0;
    let user = match (is_root, owner) {
        (false, _) => None,
        (true, Some(owner)) if owner.uid != 0 => Some(owner),
        (true, _) => {
            return Err("a browser is not started as root, and no user is behind sudo".to_owned());
        }
    };
    let home = user.and_then(|user| home_of(user.uid));
    let runtime = user.map(|user| PathBuf::from(format!("/run/user/{}", user.uid)));
    let has_display = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| set(name).is_some())
        || runtime.as_ref().is_some_and(|folder| folder.join("wayland-0").exists());
    if set("BROWSER").is_none() && !has_display {
        return Err("there is no display to open a browser on".to_owned());
    }
    let program = set("BROWSER").unwrap_or_else(|| "xdg-open".into());
    let file =
        file.canonicalize().map_err(|error| format!("{} cannot be opened: {error}", file.display()))?;
    let mut command = Command::new(&program);
    command.arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    if let Some(Owner { uid, gid }) = user {
        // Before the change of user the library drops root's groups.
        command.uid(uid).gid(gid);
        if let Some((home, name)) = home {
            command.env("HOME", &home).env("USER", &name).env("LOGNAME", name);
        }
        if let Some(runtime) = runtime.filter(|folder| folder.is_dir()) {
            command.env("DBUS_SESSION_BUS_ADDRESS", format!("unix:path={}/bus", runtime.display()));
            if set("WAYLAND_DISPLAY").is_none() && runtime.join("wayland-0").exists() {
                command.env("WAYLAND_DISPLAY", "wayland-0");
            }
            command.env("XDG_RUNTIME_DIR", runtime);
        }
    }
    let name = program.to_string_lossy().into_owned();
    let mut child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("{name} is missing, which opens a browser (package xdg-utils)")
        }
        _ => format!("{name} cannot be started: {error}"),
    })?;
    let until = Instant::now() + FAILS_WITHIN;
    while Instant::now() < until {
        match child.try_wait() {
            Ok(Some(status)) if !status.success() => {
                return Err(format!("{name} could not open a browser ({status})"));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            _ => break,
        }
    }
    Ok(())
}

fn set(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Home and name of a user.
fn home_of(uid: u32) -> Option<(OsString, OsString)> {
    // SAFETY: no other thread asks for users; the entry is copied before any further call.
    unsafe {
        let entry = libc::getpwuid(uid);
        let of = |text: *const libc::c_char| OsString::from_vec(CStr::from_ptr(text).to_bytes().to_vec());
        (!entry.is_null()).then(|| (of((*entry).pw_dir), of((*entry).pw_name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_gets_no_browser() {
        // SAFETY: the call has no arguments.
        if unsafe { libc::geteuid() } != 0 {
            return;
        }
        for owner in [None, Some(Owner { uid: 0, gid: 0 })] {
            assert!(open(Path::new("/dev/null"), owner).unwrap_err().contains("not started as root"));
        }
    }

    #[test]
    fn users_have_a_home() {
        assert_eq!(home_of(0), Some(("/root".into(), "root".into())));
        assert_eq!(home_of(u32::MAX - 7), None);
    }
}
