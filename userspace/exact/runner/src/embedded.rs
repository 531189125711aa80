//! The plugin, embedded in this program, as a file that QEMU can load.
//!
//! The file lies in memory, sealed, and has a name below our `/proc` folder alone: the programs get
//! no descriptor. Where such a file cannot be made or not be opened by others, a private folder of
//! our effective user takes the plugin. The folder's place must be safe from other users: its owner,
//! and the owner of each folder above, is root or our user, and none of them can be written by others
//! unless sticky. Under `sudo` the caller's home is therefore no place.
//!
//! Limits: the file goes with us. A program that runs on after our end executes other programs
//! unrecorded.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use locality_kernel::memory_file;

use super::folder;

/// The plugin of this build.
static PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/liblocality_plugin.so"));
/// The plugin's file name in a folder.
const FILE: &str = "liblocality_plugin.so";
/// Mode of the private folder.
const PRIVATE: u32 = 0o700;

/// The plugin as a file, which goes with the value.
#[derive(Debug)]
pub struct Plugin(Place);

#[derive(Debug)]
enum Place {
    /// A file in memory, named by the descriptor.
    Memory(OwnedFd),
    /// A private folder.
    Folder(PathBuf),
}

impl Plugin {
    /// Makes the file.
    ///
    /// # Errors
    /// Neither memory nor a folder takes the file; one sentence with the reasons.
    pub fn create() -> Result<Self> {
        let in_memory = match Self::in_memory() {
            Ok(plugin) => return Ok(plugin),
            Err(why) => why,
        };
        tracing::debug!("the plugin cannot be a file in memory: {in_memory}");
        let temporary = std::env::temp_dir();
        let mut refused = vec![format!("memory: {in_memory}")];
        for place in [&temporary, Path::new("/var/tmp"), Path::new("/dev/shm")] {
            folder::remove_stale(place);
            let name = format!("{}{}", folder::PLUGIN_PREFIX, std::process::id());
            match Self::in_folder(&place.join(name)) {
                Ok(plugin) => return Ok(plugin),
                Err(why) => refused.push(format!("{}: {why:#}", place.display())),
            }
        }
        bail!("no place for the QEMU plugin ({}); TMPDIR can name a folder of your own", refused.join("; "))
    }

    /// The path for QEMU.
    pub fn path(&self) -> PathBuf {
        match &self.0 {
            Place::Memory(file) => format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into(),
            Place::Folder(folder) => folder.join(FILE),
        }
    }

    fn in_memory() -> io::Result<Self> {
        let file = memory_file::sealed(c"liblocality_plugin.so", PLUGIN)?;
        // SAFETY: a system call with plain arguments.
        if unsafe { libc::prctl(libc::PR_GET_DUMPABLE) } != 1 {
            // As of a program with capabilities of its file.
            return Err(io::Error::other("others may not open our files below /proc"));
        }
        let plugin = Self(Place::Memory(file));
        can_be_executed(&File::open(plugin.path())?)?;
        Ok(plugin)
    }

    /// Makes the folder and the file in the folder. What is there already is used only if it is as we
    /// would make it.
    fn in_folder(folder: &Path) -> Result<Self> {
        let place = folder.parent().unwrap_or(Path::new("/"));
        let place = place.canonicalize().with_context(|| format!("cannot find {}", place.display()))?;
        let folder = place.join(folder.file_name().unwrap_or_default());
        check_place(&place)?;
        match DirBuilder::new().mode(PRIVATE).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error)?,
            _ => {}
        }
        check_folder(&folder)?;
        let plugin = Self(Place::Folder(folder));
        let path = plugin.path();
        if !has_plugin(&path).unwrap_or(false) {
            // Of a killed run, or changed: no write goes into it.
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error)?,
                _ => {}
            }
            memory_file::without_limit(PLUGIN.len() as u64, || {
                let mut options = OpenOptions::new();
                options.write(true).create_new(true).mode(0o400).open(&path)?.write_all(PLUGIN)
            })?;
            if !has_plugin(&path)? {
                bail!("{} has not the bytes that were written", path.display());
            }
        }
        can_be_executed(&open(&path)?).context("programs cannot be run there")?;
        Ok(plugin)
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        match &self.0 {
            Place::Memory(_) => {}
            Place::Folder(folder) => {
                if let Err(error) = fs::remove_dir_all(folder) {
                    tracing::debug!("{} is not removed: {error}", folder.display());
                }
            }
        }
    }
}

fn own_user() -> u32 {
    // SAFETY: a system call without arguments.
    unsafe { libc::geteuid() }
}

/// Nobody but root and our user can rename or replace a folder in `place`.
fn check_place(place: &Path) -> Result<()> {
    for folder in place.ancestors() {
        let about = fs::symlink_metadata(folder)?;
        if ![0, own_user()].contains(&about.uid()) {
            bail!("{} belongs to another user (uid {})", folder.display(), about.uid());
        }
        if about.mode() & 0o022 != 0 && about.mode() & libc::S_ISVTX == 0 {
            bail!("others can write to {}", folder.display());
        }
    }
    Ok(())
}

/// A folder and no link, of our effective user, closed to all others.
fn check_folder(folder: &Path) -> Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(folder)
        .with_context(|| format!("{} is no folder of ours", folder.display()))?;
    let about = file.metadata()?;
    if about.uid() != own_user() || about.mode() & 0o777 != PRIVATE {
        bail!(
            "{} is not ours alone (uid {}, mode {:o})",
            folder.display(),
            about.uid(),
            about.mode() & 0o777
        );
    }
    Ok(())
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// Whether a plain file of our user has the plugin's bytes.
fn has_plugin(path: &Path) -> io::Result<bool> {
    let mut file = open(path)?;
    let about = file.metadata()?;
    if !about.is_file() || about.uid() != own_user() || about.len() != PLUGIN.len() as u64 {
        return Ok(false);
    }
    let mut bytes = Vec::with_capacity(PLUGIN.len());
    file.read_to_end(&mut bytes)?;
    Ok(bytes == PLUGIN)
}

/// Maps a page as code, which `noexec` and other rules of the machine forbid.
fn can_be_executed(file: &File) -> io::Result<()> {
    const PAGE: usize = 4096;
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: a new mapping of an open file, given back at once.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), PAGE, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::munmap(page, PAGE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn refused(folder: &Path) -> String {
        format!("{:#}", Plugin::in_folder(folder).unwrap_err())
    }

    /// A place of our own below the temporary folder.
    fn place() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn a_file_in_memory_has_the_plugin_and_no_writer() {
        let plugin = Plugin::in_memory().unwrap();
        assert!(plugin.path().starts_with("/proc"));
        assert_eq!(fs::read(plugin.path()).unwrap(), PLUGIN);
        let writer = File::options().write(true).open(plugin.path());
        assert!(writer.and_then(|mut file| file.write_all(b"x")).is_err());
    }

    #[test]
    fn a_folder_is_private_and_goes_with_the_run() {
        let place = place();
        let folder = place.path().join("run");
        let plugin = Plugin::in_folder(&folder).unwrap();
        assert_eq!(fs::read(plugin.path()).unwrap(), PLUGIN);
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o7777, 0o700);
        drop(plugin);
        assert!(!folder.exists());
    }

    #[test]
    fn changed_bytes_are_not_used() {
        let place = place();
        let folder = place.path().join("run");
        let victim = place.path().join("victim");
        fs::write(&victim, "victim").unwrap();
        let mut changed = PLUGIN.to_vec();
        *changed.last_mut().unwrap() ^= 1;
        let hostile: [&dyn Fn(&Path); 4] = [
            &|file| fs::write(file, &changed).unwrap(),
            &|file| fs::write(file, b"").unwrap(),
            &|file| symlink(&victim, file).unwrap(),
            &|file| fs::hard_link(&victim, file).unwrap(),
        ];
        for make in hostile {
            DirBuilder::new().mode(PRIVATE).create(&folder).unwrap();
            make(&folder.join(FILE));
            let plugin = Plugin::in_folder(&folder).unwrap();
            assert!(has_plugin(&plugin.path()).unwrap());
            assert_eq!(fs::read(&victim).unwrap(), b"victim");
        }
        // A folder in the file's place cannot be replaced.
        fs::create_dir_all(folder.join(FILE)).unwrap();
        mode(&folder, PRIVATE);
        Plugin::in_folder(&folder).unwrap_err();
    }

    #[test]
    fn folders_of_others_are_refused() {
        let place = place();
        let folder = place.path().join("run");
        let elsewhere = place.path().join("elsewhere");
        DirBuilder::new().mode(PRIVATE).create(&elsewhere).unwrap();
        symlink(&elsewhere, &folder).unwrap();
        assert!(refused(&folder).contains("no folder of ours"));
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
        fs::remove_file(&folder).unwrap();
        DirBuilder::new().mode(0o755).create(&folder).unwrap();
        assert!(refused(&folder).contains("not ours alone"));
        if own_user() == 0 {
            mode(&folder, PRIVATE);
            chown(&folder, Some(65_534), None).unwrap();
            assert!(refused(&folder).contains("uid 65534"));
        }
    }

    #[test]
    fn places_of_others_are_refused() {
        let place = place();
        let open = place.path().join("open");
        fs::create_dir(&open).unwrap();
        mode(&open, 0o777);
        assert!(refused(&open.join("run")).contains("others can write"));
        mode(&open, 0o1777);
        drop(Plugin::in_folder(&open.join("run")).unwrap());
        if own_user() == 0 {
            let home = place.path().join("home");
            fs::create_dir_all(home.join("tmp")).unwrap();
            chown(&home, Some(65_534), None).unwrap();
            // As under `sudo`, with the caller's home.
            assert!(refused(&home.join("tmp/run")).contains("another user"));
        }
    }
}
