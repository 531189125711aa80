//! The traced process as a whole: region, QEMU's functions,
//! settings, and the only way to stop recording.
//!
//! Stopping never harms the program: callbacks go on, and fill unread buffers.

use std::{
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use crate::{
    api::{Api, Id},
    extra,
    region::{Region, state, store_text},
    settings::Settings,
    translate::Translation,
};

static CURRENT: OnceLock<Process> = OnceLock::new();

/// Data shared by callbacks.
pub struct Process {
    id: Id,
    api: Api,
    settings: Settings,
    region: Region,
    translation: Mutex<Translation>,
}

/// The process, once the plugin is installed.
pub fn current() -> Option<&'static Process> {
    CURRENT.get()
}

impl Process {
    /// Sets everything up.
    pub fn install(id: Id, api: Api, settings: Settings) -> Result<&'static Self, String> {
        let region = new_region(&settings, None).map_err(|error| why_no_file(&error))?;
        let translation = Mutex::new(Translation::new(&settings));
        let process = Self { id, api, settings, region, translation };
        process.introduce();
        Ok(CURRENT.get_or_init(|| process))
    }

    /// Writes the process's identity into the header.
    pub fn introduce(&self) {
        let header = self.region.header();
        // SAFETY: the calls have no arguments.
        let (pid, parent) = unsafe { (libc::getpid(), libc::getppid()) };
        header.pid.store(pid.cast_unsigned(), Relaxed);
        header.parent.store(parent.cast_unsigned(), Relaxed);
        store_text(&header.program, self.settings.program.as_os_str().as_bytes());
        header.restricted.store(self.settings.is_restricted().into(), Relaxed);
        header.mix_restricted.store(self.settings.restricts_mix().into(), Relaxed);
        header.sample_lines.store(self.settings.sample_lines, Relaxed);
        header.extra_granule.store(extra::granule(&self.settings.granules).into(), Relaxed);
        header.state.store(state::RUNNING, Relaxed);
    }

    /// The plugin's number.
    pub fn id(&self) -> Id {
        self.id
    }

    /// QEMU's functions.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Settings asked for by the parent.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The file.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Whether recording has ended before the program.
    pub fn has_stopped(&self) -> bool {
        let header = self.region.header();
        header.stopped.load(Relaxed) != 0 || header.stop.load(Relaxed) != 0
    }

    /// The table of translated code. Locked during translation, serialised by QEMU anyway.
    pub fn translation(&self) -> MutexGuard<'_, Translation> {
        self.translation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why the run's file cannot be made, and the command for repair.
fn why_no_file(error: &std::io::Error) -> String {
    let mend = match error.raw_os_error() {
        Some(libc::EFBIG) => "; `ulimit -f unlimited` allows a file as large as the counts need",
        Some(libc::ENOMEM) => "; `ulimit -v unlimited` allows the address space that the counts need",
        Some(libc::EMFILE) => "; `ulimit -n 64` allows the descriptors that QEMU needs",
        _ => "",
    };
    format!("cannot make the run's file: {error}{mend}")
}

/// Ends the recording of the process, and keeps the first reason.
pub fn stop(why: &str) {
    if let Some(process) = current() {
        let header = process.region.header();
        if header.stopped.swap(1, Relaxed) == 0 {
            store_text(&header.reason, why.as_bytes());
        }
    }
}

/// A new file in the run's folder, `PID.N` with the first free N.
pub fn new_region(settings: &Settings, like: Option<&Region>) -> std::io::Result<Region> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut refused = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
    for _ in 0..100_000 {
        let number = NEXT.fetch_add(1, Relaxed);
        let path: PathBuf = settings.folder.join(format!("{}.{number}", std::process::id()));
        match Region::create(&path, like) {
            Ok(region) => return Ok(region),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => refused = error,
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}
