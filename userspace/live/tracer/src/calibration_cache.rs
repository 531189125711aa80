//! Measurements of this machine by an earlier start of the tool, for the next start.
//!
//! One file in a folder that nobody but our effective user can enter, opened step by step without
//! following a link: in `/run/locality-bpf`, which ends with the machine's run, never below `$HOME`, which
//! under `sudo` is somebody else's. Others may enter `/run/locality-bpf`, which also has the agent's
//! socket. Believed are numbers of the same processor, microcode, kernel, boot and program, of at most a
//! day, each in its range. The caller looks whether they are still true ([`super::calibrate::probe`]).
//! Everything else is a reason to measure anew, never an error.

use std::{
    ffi::CStr,
    fmt::Write as _,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsRawFd as _, FromRawFd as _},
        unix::fs::MetadataExt as _,
    },
};

use locality_rate::{Level, Machine};

use super::{
    calibrate::{GUESS, are_plausible},
    governor::UnitCosts,
};
use locality_kernel::sys;

/// Where the folder lies.
const PARENT: &CStr = c"/run";
const FOLDER: &CStr = c"locality-bpf";
const OWN_FOLDER: &CStr = c"own";
const FILE: &CStr = c"calibration";
const NEW_FILE: &CStr = c"calibration.new";

/// No file of ours is longer.
const LONGEST: u64 = 16 << 10;

/// How long numbers are believed.
const AGE_NS: u64 = 24 * 3600 * 1_000_000_000;

/// What is remembered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Remembered {
    /// What a tick, a trap and the like cost.
    pub prices: UnitCosts,
    /// What the processor can do.
    pub machine: Machine,
}

/// What the numbers of another machine, kernel or program are recognised by.
fn key() -> String {
    let read = |path: &str| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).trim().to_owned();
    let cpuinfo = read("/proc/cpuinfo");
    let of_cpu = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map_or("", |(_, value)| value.trim()).to_owned()
    };
    let cpus = fs::read("/sys/devices/system/cpu/online").unwrap_or_default();
    // A program that was built anew may measure otherwise.
    let program =
        fs::metadata("/proc/self/exe").map_or((0, 0, 0), |file| (file.ino(), file.size(), file.mtime_nsec()));
    let parts = [
        env!("CARGO_PKG_VERSION").to_owned(),
        format!("{program:?}"),
        ["vendor_id", "cpu family", "model", "stepping", "model name", "microcode"].map(of_cpu).join(" "),
        read("/proc/sys/kernel/osrelease"),
        read("/proc/sys/kernel/version"),
        read("/proc/sys/kernel/random/boot_id"),
        String::from_utf8_lossy(&cpus).trim().to_owned(),
    ];
    parts.join(" | ").replace('\n', " ")
}

impl Remembered {
    /// Hands each number with its name to `visit`, in file order, and takes the result over. False
    /// if a price is no whole number any more.
    fn visit(&mut self, mut visit: impl FnMut(&str, &mut f64)) -> bool {
        let Self { prices, machine } = self;
        let [free_ns, armed_ns] = &mut prices.copies_ns;
        let [free_stores_ns, armed_stores_ns] = &mut prices.split_stores_ns;
        let [free_switch_ns, armed_switch_ns] = &mut prices.switches_ns;
        let mut is_whole = true;
        for (name, price) in [
            ("tick_ns", &mut prices.tick_ns),
            ("trap_ns", &mut prices.trap_ns),
            ("gap_ns", &mut prices.gap_ns),
            ("disarm_ns", &mut prices.disarm_ns),
            ("meter_ns", &mut prices.meter_ns),
            ("wake_ns", &mut prices.wake_ns),
            ("copy_ns", free_ns),
            ("watched_copy_ns", armed_ns),
            ("split_stores_ns", free_stores_ns),
            ("watched_split_stores_ns", armed_stores_ns),
            ("switch_ns", free_switch_ns),
            ("watched_switch_ns", armed_switch_ns),
        ] {
            let mut number = *price as f64;
            visit(name, &mut number);
            *price = number as u64;
            is_whole &= *price as f64 == number;
        }
        for (name, number) in [
            ("clock", &mut machine.clock),
            ("width", &mut machine.width),
            ("loads", &mut machine.loads),
            ("wide_loads", &mut machine.wide_loads),
            ("stores", &mut machine.stores),
            ("close_stores", &mut machine.close_stores),
            ("integers", &mut machine.integers),
            ("floats", &mut machine.floats),
            ("load", &mut machine.load),
            ("forward", &mut machine.forward),
            ("forward_anew", &mut machine.forward_anew),
            ("add", &mut machine.add),
            ("multiply", &mut machine.multiply),
            ("pause", &mut machine.pause),
            ("timestamp", &mut machine.timestamp),
            ("parallel", &mut machine.parallel),
            ("fault_ns", &mut machine.fault_ns),
        ] {
            visit(name, number);
        }
        for (level, of) in ["second", "last", "memory"].iter().zip(&mut machine.levels) {
            let Level { from, latency, between, stored } = of;
            for (name, number) in
                [("from", from), ("latency", latency), ("between", between), ("stored", stored)]
            {
                visit(&format!("{level}_{name}"), number);
            }
        }
        is_whole
    }

    fn text(&self, key: &str, now_ns: u64) -> String {
        let mut text = format!("locality-calibration 2\nkey {key}\nmeasured_ns {now_ns}\n");
        let mut copy = *self;
        copy.visit(|name, number| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name} {number}");
        });
        text
    }

    /// From the text of a file, or why not.
    fn parse(text: &[u8], key: &str, now_ns: u64) -> Result<Self, &'static str> {
        let text = str::from_utf8(text).map_err(|_| "it is no text")?;
        let mut lines = text.lines();
        if lines.next() != Some("locality-calibration 2") {
            return Err("it is no calibration of this version");
        }
        if lines.next().and_then(|line| line.strip_prefix("key ")) != Some(key) {
            return Err("it is of another machine, kernel, boot or program");
        }
        let measured = lines.next().and_then(|line| line.strip_prefix("measured_ns ")?.parse::<u64>().ok());
        let age_ns = measured.and_then(|measured_ns| now_ns.checked_sub(measured_ns));
        if age_ns.ok_or("its time cannot be")? > AGE_NS {
            return Err("it is older than a day");
        }
        let mut read = Self { prices: GUESS, machine: Machine::default() };
        let mut is_complete = true;
        let is_whole = read.visit(|name, number| {
            let text = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
            match text.and_then(|text| text.parse().ok()) {
                Some(read) => *number = read,
                None => is_complete = false,
            }
        });
        if !is_complete {
            return Err("a number is missing");
        }
        if lines.next().is_some() {
            return Err("there is more than belongs there");
        }
        let is_possible = is_whole && are_plausible(&read.prices) && read.machine == read.machine.plausible();
        is_possible.then_some(read).ok_or("a number is out of its range")
    }
}

/// Remembered values of this machine, or the reason for their absence.
///
/// # Errors
/// A reason for our own log.
pub fn recall() -> Result<Remembered, String> {
    let folder = folder_in(PARENT).map_err(|error| format!("no folder: {error}"))?;
    recall_in(&folder, &key())
}

/// Stores the values for the next start; a failure costs that start some milliseconds.
pub fn remember(what: &Remembered) {
    let remembered = folder_in(PARENT).and_then(|folder| remember_in(&folder, what, &key()));
    tracing::debug!(?remembered, "calibration");
}

fn recall_in(folder: &File, key: &str) -> Result<Remembered, String> {
    // A pipe in its place must not have us wait.
    let file = open_in(folder, FILE, libc::O_RDONLY | libc::O_NONBLOCK).map_err(|error| error.to_string())?;
    let status = file.metadata().map_err(|error| error.to_string())?;
    if !status.is_file() || status.uid() != own_user() || status.nlink() != 1 || status.len() > LONGEST {
        return Err("it is no plain file of ours".to_owned());
    }
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text).map_err(|error| error.to_string())?;
    Remembered::parse(&text, key, sys::boottime_ns()).map_err(str::to_owned)
}

fn remember_in(folder: &File, what: &Remembered, key: &str) -> io::Result<()> {
    // Left by a start that was killed.
    // SAFETY: a system call with a live name.
    unsafe { libc::unlinkat(folder.as_raw_fd(), NEW_FILE.as_ptr(), 0) };
    let mut file = open_in(folder, NEW_FILE, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL)?;
    file.write_all(what.text(key, sys::boottime_ns()).as_bytes())?;
    let at = folder.as_raw_fd();
    // SAFETY: a system call with live names.
    match unsafe { libc::renameat(at, NEW_FILE.as_ptr(), at, FILE.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn own_user() -> u32 {
    // SAFETY: a system call without arguments.
    unsafe { libc::geteuid() }
}

/// Opens or makes the folder, if it is ours alone.
fn folder_in(parent: &CStr) -> io::Result<File> {
    // SAFETY: a system call with a live name; a new descriptor is ours.
    let parent = unsafe {
        match libc::open(
            parent.as_ptr(),
            libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC,
        ) {
            ..0 => return Err(io::Error::last_os_error()),
            fd => File::from_raw_fd(fd),
        }
    };
    let folder = made_in(&made_in(&parent, FOLDER)?, OWN_FOLDER)?;
    let status = folder.metadata()?;
    if status.uid() != own_user() || status.mode() & 0o077 != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "others may enter it"));
    }
    Ok(folder)
}

/// Opens or makes a folder in another one.
fn made_in(parent: &File, name: &CStr) -> io::Result<File> {
    // The folder exists already, or the next call gives the reason.
    // SAFETY: a system call with a live name.
    unsafe { libc::mkdirat(parent.as_raw_fd(), name.as_ptr(), 0o700) };
    open_in(parent, name, libc::O_RDONLY | libc::O_DIRECTORY)
}

/// Opens a name of a folder, but no link.
fn open_in(folder: &File, name: &CStr, flags: i32) -> io::Result<File> {
    let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: a system call with a live name; a new descriptor is ours.
    unsafe {
        match libc::openat(folder.as_raw_fd(), name.as_ptr(), flags, 0o600) {
            ..0 => Err(io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::CString, os::unix::fs::PermissionsExt as _, path::Path};

    use super::*;

    fn some() -> Remembered {
        let prices = UnitCosts {
            tick_ns: 9_000,
            trap_ns: 7_000,
            gap_ns: 5_000,
            disarm_ns: 4_000,
            meter_ns: 6_000,
            wake_ns: 12_000,
            copies_ns: [60, 2_200],
            split_stores_ns: [600, 6_200],
            switches_ns: [2_000, 3_400],
        };
        Remembered { prices, machine: Machine { clock: 2.71, ..Machine::default() } }
    }

    fn folder(path: &Path) -> io::Result<File> {
        folder_in(&CString::new(path.to_str().unwrap()).unwrap())
    }

    #[test]
    fn what_is_remembered_is_recalled_by_the_same_machine() {
        let place = tempfile::tempdir().unwrap();
        let ours = folder(place.path()).unwrap();
        assert_eq!(ours.metadata().unwrap().mode() & 0o777, 0o700);
        // As systemd makes the folder of the agent's socket.
        fs::set_permissions(place.path().join("locality-bpf"), fs::Permissions::from_mode(0o755)).unwrap();
        folder(place.path()).unwrap();
        assert!(recall_in(&ours, "a").is_err());
        remember_in(&ours, &some(), "a").unwrap();
        remember_in(&ours, &some(), "a").unwrap();
        assert_eq!(recall_in(&ours, "a"), Ok(some()));
        assert!(recall_in(&ours, "b").unwrap_err().contains("another machine"));
        assert_eq!(key(), key());
        assert!(key().len() > 60, "{}", key());
    }

    #[test]
    fn a_day_is_enough() {
        let text = some().text("a", 5);
        assert_eq!(Remembered::parse(text.as_bytes(), "a", 5 + AGE_NS), Ok(some()));
        assert_eq!(Remembered::parse(text.as_bytes(), "a", 6 + AGE_NS), Err("it is older than a day"));
        assert_eq!(Remembered::parse(text.as_bytes(), "a", 4), Err("its time cannot be"));
    }

    /// A folder that others may enter, a link in its place, a pipe, a link or a second name in the
    /// place of the file.
    #[test]
    fn what_others_may_have_put_there_is_not_believed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("locality-bpf");
        std::os::unix::fs::symlink("/tmp", &path).unwrap();
        assert!(folder(place.path()).is_err(), "a link");
        fs::remove_file(&path).unwrap();
        let ours = folder(place.path()).unwrap();
        let path = path.join("own");
        let file = path.join("calibration");
        remember_in(&ours, &some(), "a").unwrap();
        fs::hard_link(&file, place.path().join("second")).unwrap();
        assert!(recall_in(&ours, "a").is_err(), "two names");
        fs::rename(&file, place.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(place.path().join("elsewhere"), &file).unwrap();
        assert!(recall_in(&ours, "a").is_err(), "a link");
        // The link is replaced, not followed.
        remember_in(&ours, &some(), "a").unwrap();
        assert!(!fs::symlink_metadata(&file).unwrap().is_symlink());
        fs::remove_file(&file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        assert!(recall_in(&ours, "a").is_err(), "a pipe");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(folder(place.path()).is_err(), "others may enter");
    }

    #[test]
    fn damage_is_a_reason_and_never_a_number() {
        let (text, mut random) = (some().text("a", 5).into_bytes(), fastrand::Rng::with_seed(7));
        let mut refused = 0;
        for _ in 0..20_000 {
            let mut damaged = text.clone();
            for _ in 0..random.usize(1..4) {
                match random.u8(..4) {
                    0 => damaged.truncate(random.usize(..=damaged.len())),
                    1 => damaged.insert(random.usize(..=damaged.len()), random.u8(..)),
                    2 if !damaged.is_empty() => drop(damaged.remove(random.usize(..damaged.len()))),
                    _ if !damaged.is_empty() => {
                        let at = random.usize(..damaged.len());
                        damaged[at] = *random.choice(b"0123456789.-einfNaN \n\0\xff").unwrap();
                    }
                    _ => {}
                }
            }
            match Remembered::parse(&damaged, "a", 6) {
                Ok(read) => {
                    assert!(are_plausible(&read.prices) && read.machine == read.machine.plausible());
                }
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 10_000, "{refused}");
    }
}
