//! Small mounts for tests, undone on drop. Without the right to mount, a test prints why it skips.

use std::path::{Path, PathBuf};
use std::process::Command;

fn run(arguments: &[&std::ffi::OsStr]) -> bool {
    let output = Command::new("mount").args(arguments).output();
    match output {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            println!("SKIP: mount is not permitted: {}", String::from_utf8_lossy(&output.stderr).trim());
            false
        }
        Err(error) => {
            println!("SKIP: no mount program: {error}");
            false
        }
    }
}

/// A mount that is taken away on drop.
pub struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let status = Command::new("umount").arg("--lazy").arg(&self.0).status();
        assert!(status.is_ok_and(|status| status.success()), "{} stays mounted", self.0.display());
    }
}

/// A directory made read-only by mounting it over itself.
pub struct ReadOnly;

impl ReadOnly {
    pub fn bind(directory: &Path) -> Option<Mount> {
        let path = directory.as_os_str();
        if !run(&["--bind".as_ref(), path, path]) {
            return None;
        }
        let mount = Mount(directory.to_owned());
        run(&["-o".as_ref(), "remount,bind,ro".as_ref(), path]).then_some(mount)
    }
}

/// An empty file system of so many KiB.
pub struct Small;

impl Small {
    pub fn mount(directory: &Path, kib: u32) -> Option<Mount> {
        let options = format!("size={kib}k");
        let ok = run(&[
            "-t".as_ref(),
            "tmpfs".as_ref(),
            "-o".as_ref(),
            options.as_ref(),
            "tmpfs".as_ref(),
            directory.as_os_str(),
        ]);
        ok.then(|| Mount(directory.to_owned()))
    }
}
