//! Cgroups of a test's own: of the unified hierarchy, or of one controller of version 1.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::programs::build;
use crate::target::Target;

/// A cgroup below a root; dropping it kills the processes inside.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
}

impl Cgroup {
    /// A cgroup of the unified hierarchy.
    ///
    /// # Errors
    /// The hierarchy is not mounted, or takes no folder.
    pub fn unified() -> Result<Self, String> {
        Self::below(&mount("cgroup2", "")?)
    }

    /// A cgroup of the hierarchy of version 1 with a controller.
    ///
    /// # Errors
    /// No hierarchy has the controller, or folders are refused.
    pub fn old(controller: &str) -> Result<Self, String> {
        Self::below(&mount("cgroup", controller)?)
    }

    fn below(root: &Path) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = root.join(format!("locality-test-{}-{next}", std::process::id()));
        fs::create_dir(&folder).map_err(|e| format!("needs a cgroup: {}: {e}", folder.display()))?;
        Ok(Self { folder })
    }

    /// The cgroup's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a file of the cgroup; panics if the kernel refuses.
    pub fn set(&self, file: &str, value: &str) {
        let path = self.folder.join(file);
        fs::write(&path, value).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    /// Moves a process into the cgroup.
    pub fn add(&self, pid: u32) {
        self.set("cgroup.procs", &pid.to_string());
    }

    /// Freezes or thaws the cgroup.
    pub fn freeze(&self, frozen: bool) {
        match self.folder.join("freezer.state").exists() {
            true => self.set("freezer.state", if frozen { "FROZEN" } else { "THAWED" }),
            false => self.set("cgroup.freeze", if frozen { "1" } else { "0" }),
        }
    }

    /// A test program in the cgroup from its first instruction.
    pub fn target(&self, program: &str, arguments: &[&str]) -> Target {
        let mut command = Command::new(build(program));
        command.args(arguments);
        Target::start_command(self.start(&command))
    }

    /// A command in the cgroup from its first instruction.
    #[must_use]
    pub fn start(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.folder.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(key, value),
                None => inside.env_remove(key),
            };
        }
        inside
    }

    /// Processes in the cgroup.
    pub fn processes(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.folder).is_err() && Instant::now() < deadline {
            for pid in self.processes() {
                // SAFETY: a system call with plain arguments.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            for (file, thawed) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
                // At least one of the two exists.
                let file = self.folder.join(file);
                drop(file.exists().then(|| fs::write(&file, thawed)));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The folder at which a hierarchy is mounted as a whole.
fn mount(kind: &str, controller: &str) -> Result<PathBuf, String> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let found = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (at, its_kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let has = controller.is_empty() || options.split(',').any(|option| option == controller);
        (its_kind == kind && has).then(|| PathBuf::from(at))
    });
    found.ok_or_else(|| format!("needs a mounted {kind} {controller}"))
}
