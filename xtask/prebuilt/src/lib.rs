//! The compiled eBPF object: whether the checked-in
//! object is current, and how to build a new object.
//!
//! Shared by `cargo xtask ebpf` and the build script of `locality-bpf`; hence no
//! dependency but `sha2`, and errors that are sentences. Not here: installation
//! of missing tools (`xtask`). Limits: the manifest covers our own sources and
//! `ebpf/Cargo.lock`, not the compiler, which is recorded, not enforced.
//!
//! Use in a build script:
//! ```text
//! let embedded = locality_prebuilt::embed_object(root, &out_dir)?; // the object is now out_dir/locality.bpf.o
//! for line in embedded.cargo_lines() { println!("{line}"); }
//! ```

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// The checked-in object, relative to the repository.
pub const OBJECT: &str = "ebpf/prebuilt/locality.bpf.o";
/// Hashes of the object's sources, in the format of `sha256sum --check`.
pub const MANIFEST: &str = "ebpf/prebuilt/locality.bpf.o.sources";
/// Names an object to embed regardless of the manifest; CI embeds a newly built object.
pub const OVERRIDE: &str = "LOCALITY_EBPF_OBJECT";
/// The sentence that every missing piece of the eBPF toolchain ends with.
pub const MEND: &str = "`cargo xtask ebpf --install` installs it";

/// Begins the manifest's line on the compiler, which is for the record and not compared.
pub const TOOLCHAIN_NOTE: &str = "# built by ";

/// The binary target of the eBPF crate.
const BINARY: &str = "locality";
const TARGET: &str = "bpfel-unknown-none";
/// `v3` is the oldest instruction set with 32-bit jumps, which keep the verifier's
/// state small (kernel 5.1). bpf-linker makes BTF from debug information.
const FLAGS: [&str; 4] =
    ["-Ctarget-cpu=v3", "-Cdebuginfo=2", "-Clink-arg=--btf", "--cfg=bpf_target_arch=\"x86_64\""];
const SOURCES: [&str; 5] =
    ["ebpf/Cargo.toml", "ebpf/Cargo.lock", "ebpf/src", "common/Cargo.toml", "common/src"];

/// The object that a build script embeds.
#[derive(Debug)]
pub struct Embedded {
    /// True when the checked-in object was stale and a new one was compiled.
    pub rebuilt: bool,
    /// Paths to watch: a change makes the answer out of date.
    pub depends_on: Vec<PathBuf>,
    /// SHA-256 of the object, hexadecimal.
    pub sha256: String,
}

impl Embedded {
    /// The lines that tell cargo when to ask again.
    pub fn cargo_lines(&self) -> Vec<String> {
        let mut lines = vec![format!("cargo::rerun-if-env-changed={OVERRIDE}")];
        lines
            .extend(self.depends_on.iter().map(|path| format!("cargo::rerun-if-changed={}", path.display())));
        if self.rebuilt {
            lines.push(format!(
                "cargo::warning={OBJECT} is stale, compiled a new one; `cargo xtask ebpf` checks one in"
            ));
        }
        lines.push(format!("cargo::rustc-env=LOCALITY_OBJECT_SHA256={}", self.sha256));
        lines
    }
}

/// Puts `locality.bpf.o` into `out_dir`: the checked-in object if current, otherwise a new object.
pub fn embed_object(root: &Path, out_dir: &Path) -> Result<Embedded, String> {
    let given = std::env::var_os(OVERRIDE).filter(|object| !object.is_empty()).map(PathBuf::from);
    embed(root, out_dir, given, Toolchain::find)
}

/// Puts a logging object into `out_dir`, always newly built.
pub fn embed_logging_object(root: &Path, out_dir: &Path) -> Result<Embedded, String> {
    let object = Toolchain::find()?.build_with(root, &out_dir.join("ebpf"), &["ebpf-log"])?;
    embed(root, out_dir, Some(object), Toolchain::find)
}

fn embed(
    root: &Path,
    out_dir: &Path,
    given: Option<PathBuf>,
    find_toolchain: impl FnOnce() -> Result<Toolchain, String>,
) -> Result<Embedded, String> {
    let to = out_dir.join("locality.bpf.o");
    let mut depends_on: Vec<PathBuf> = SOURCES.iter().map(|source| root.join(source)).collect();
    depends_on.extend([root.join(OBJECT), root.join(MANIFEST)]);
    let (from, rebuilt) = if let Some(given) = given {
        depends_on.push(given.clone());
        (given, false)
    } else if let Some(why) = stale(root)? {
        let toolchain = find_toolchain()
            .map_err(|missing| format!("the checked-in eBPF object is stale ({why}), and {missing}"))?;
        (toolchain.build(root, &out_dir.join("ebpf"))?, true)
    } else {
        (root.join(OBJECT), false)
    };
    let object = read(&from)?;
    check_object(&object).map_err(|e| format!("{}: {e}", from.display()))?;
    fs::write(&to, &object).map_err(|e| format!("cannot write {}: {e}", to.display()))?;
    Ok(Embedded { rebuilt, depends_on, sha256: hex(&object) })
}

/// Why the checked-in object does not fit the sources, or `None` for a current object.
pub fn stale(root: &Path) -> Result<Option<String>, String> {
    let (Ok(object), Ok(recorded)) = (fs::read(root.join(OBJECT)), fs::read_to_string(root.join(MANIFEST)))
    else {
        return Ok(Some("there is none".to_owned()));
    };
    let recorded: Vec<&str> = recorded.lines().filter(|line| !line.starts_with(TOOLCHAIN_NOTE)).collect();
    let now = manifest(root, &object)?;
    let now: Vec<&str> = now.lines().collect();
    let differing =
        now.iter().find(|line| !recorded.contains(line)).or(recorded.iter().find(|line| !now.contains(line)));
    Ok(differing.map(|line| format!("`{}` differs", line.split("  ").last().unwrap_or(line))))
}

/// Inputs of the object: flags, then the hash of each source, and the hash of the object.
pub fn manifest(root: &Path, object: &[u8]) -> Result<String, String> {
    let mut files = Vec::new();
    for source in SOURCES {
        collect(root, Path::new(source), &mut files)?;
    }
    files.sort();
    let mut text = format!("# rustc flags {}\n", FLAGS.join(" "));
    for file in files {
        text += &format!("{}  {}\n", hex(&read(&root.join(&file))?), file.display());
    }
    Ok(text + &format!("{}  {OBJECT}\n", hex(object)))
}

/// Whether `bytes` is an eBPF object that the kernel and aya could take: an empty or foreign file
/// never is embedded.
pub fn check_object(bytes: &[u8]) -> Result<(), String> {
    const EM_BPF: [u8; 2] = 247u16.to_le_bytes();
    let holds = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    if !bytes.starts_with(b"\x7fELF") || bytes.get(18..20) != Some(&EM_BPF) {
        return Err("not an eBPF object file".to_owned());
    }
    if !holds(b".BTF") {
        return Err("the object has no BTF; was it linked without `--btf`?".to_owned());
    }
    if !holds(b"Dual MIT/GPL\0") {
        return Err("the object lacks its licence string `Dual MIT/GPL`".to_owned());
    }
    Ok(())
}

/// A compiler with the sources of `core`, the compiler's cargo, and the linker.
#[derive(Debug)]
pub struct Toolchain {
    rustc: PathBuf,
    cargo: PathBuf,
    sysroot: PathBuf,
    strip: PathBuf,
    /// Versions of compiler and linker, for the record.
    pub versions: String,
}

impl Toolchain {
    /// The first compiler that carries the sources of `core`:
    /// rustup's nightly, the default, the distribution's.
    pub fn find() -> Result<Self, String> {
        let linker = output(Command::new("bpf-linker").arg("--version"))
            .ok_or_else(|| format!("the linker for eBPF programs, bpf-linker, is missing: {MEND}"))?;
        // Debian puts LLVM's tools beside LLVM's libraries;
        // the linker needs a library of these versions.
        let strip = ["".to_owned()]
            .into_iter()
            .chain([23, 22, 21].map(|version| format!("/usr/lib/llvm-{version}/bin/")))
            .map(|dir| dir + "llvm-strip")
            .find(|strip| output(Command::new(strip).arg("--version")).is_some())
            .ok_or_else(|| format!("llvm-strip is missing: {MEND}"))?;
        let nightly = output(Command::new("rustup").args(["which", "--toolchain", "nightly", "rustc"]));
        let candidates = nightly.into_iter().chain(["rustc".to_owned(), "/usr/bin/rustc".to_owned()]);
        for rustc in candidates {
            let Some(sysroot) = output(Command::new(&rustc).args(["--print", "sysroot"])) else { continue };
            let sysroot = PathBuf::from(sysroot);
            if !sysroot.join("lib/rustlib/src/rust/library/core/src/lib.rs").exists() {
                continue;
            }
            let version = output(Command::new(&rustc).arg("--version")).unwrap_or_default();
            let own_cargo = sysroot.join("bin/cargo");
            return Ok(Self {
                // Not the proxy of rustup: inside a build script the
                // proxy would follow the environment of the outer cargo.
                rustc: sysroot.join("bin/rustc"),
                cargo: if own_cargo.exists() { own_cargo } else { PathBuf::from("cargo") },
                sysroot,
                strip: strip.into(),
                versions: format!("{version}, {linker}"),
            });
        }
        Err(format!("no Rust compiler with the sources of `core` (rust-src) was found: {MEND}"))
    }

    /// Compiles the eBPF crate of `root` below `target_dir` and returns the object.
    pub fn build(&self, root: &Path, target_dir: &Path) -> Result<PathBuf, String> {
        self.build_with(root, target_dir, &[])
    }

    /// Builds the object with features of the crate.
    pub fn build_with(&self, root: &Path, target_dir: &Path, features: &[&str]) -> Result<PathBuf, String> {
        let mut command = Command::new(&self.cargo);
        command.args([
            "build",
            "--release",
            "--target",
            TARGET,
            "-Zbuild-std=core",
            "--bin",
            BINARY,
            "--manifest-path",
        ]);
        command.arg(root.join("ebpf/Cargo.toml")).arg("--target-dir").arg(target_dir);
        if !features.is_empty() {
            command.arg("--features").arg(features.join(","));
        }
        // Variables by which an outer cargo or clippy controls its children, irrelevant for this
        // build.
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            if [
                "CARGO_BUILD",
                "CARGO_ENCODED",
                // Incremental compilation makes another object.
                "CARGO_INCREMENTAL",
                "CARGO_PROFILE",
                "CARGO_TARGET",
                "RUSTC",
                "RUSTFLAGS",
                "RUSTUP_TOOLCHAIN",
            ]
            .iter()
            .any(|prefix| name_text.starts_with(prefix))
            {
                command.env_remove(&name);
            }
        }
        // RUSTC_BOOTSTRAP lets a stable compiler take -Zbuild-std; there is no precompiled `core`
        // for this target.
        command.env("RUSTC", &self.rustc).env("RUSTC_BOOTSTRAP", "1");
        command.env("CARGO_ENCODED_RUSTFLAGS", self.flags(root).join("\x1f".as_ref()));
        let run = command.output().map_err(|e| format!("cannot run {}: {e}", self.cargo.display()))?;
        if !run.status.success() {
            let stderr = String::from_utf8_lossy(&run.stderr);
            return Err(format!("the eBPF programs do not compile ({}):\n{stderr}", self.versions));
        }
        let object = target_dir.join("locality.bpf.o");
        // Only BTF is used at run time. DWARF is four fifths of the object and differs from
        // directory to directory.
        let mut strip = Command::new(&self.strip);
        strip
            .arg("--strip-debug")
            .arg(target_dir.join(TARGET).join("release").join(BINARY))
            .arg("-o")
            .arg(&object);
        if !strip.status().is_ok_and(|status| status.success()) {
            return Err(format!("{} cannot strip the eBPF object", self.strip.display()));
        }
        check_object(&read(&object)?).map_err(|e| format!("{}: {e}", object.display()))?;
        Ok(object)
    }

    /// The flags, with this machine's paths removed from the object for reproducible builds.
    fn flags(&self, root: &Path) -> Vec<OsString> {
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
        // A root like "package/../.." differs from the text seen by the compiler.
        let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        let mut flags: Vec<OsString> = FLAGS.iter().map(OsString::from).collect();
        let places = [(Some(root.as_path()), "."), (home.as_deref(), "cargo"), (Some(&self.sysroot), "rust")];
        for (place, name) in places {
            if let Some(place) = place {
                let mut flag = OsString::from("--remap-path-prefix=");
                flag.push(place);
                flag.push(format!("={name}"));
                flags.push(flag);
            }
        }
        flags
    }
}

/// First line of a command's output, `None` when the command cannot run or fails.
fn output(command: &mut Command) -> Option<String> {
    let run = command.output().ok().filter(|run| run.status.success())?;
    String::from_utf8(run.stdout).ok()?.lines().next().map(str::to_owned)
}

/// Adds `path` or, for a directory, the files below.
fn collect(root: &Path, path: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let full = root.join(path);
    if !full.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(&full).map_err(|e| format!("cannot read {}: {e}", full.display()))? {
        let entry = entry.map_err(|e| format!("cannot read {}: {e}", full.display()))?;
        collect(root, &path.join(entry.file_name()), files)?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The least that passes for an eBPF object.
    fn object() -> Vec<u8> {
        let mut bytes = b"\x7fELF".to_vec();
        bytes.resize(18, 0);
        bytes.extend(247u16.to_le_bytes());
        bytes.extend(b".BTF Dual MIT/GPL\0");
        bytes
    }

    /// A repository with sources and an object that fits them.
    fn repository() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, bytes: &[u8]| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        };
        for path in [
            "ebpf/Cargo.toml",
            "ebpf/Cargo.lock",
            "ebpf/src/a/b.rs",
            "common/Cargo.toml",
            "common/src/lib.rs",
        ] {
            write(path, path.as_bytes());
        }
        write(OBJECT, &object());
        let text = manifest(root.path(), &object()).unwrap();
        write(MANIFEST, format!("{TOOLCHAIN_NOTE}rustc 1\n{text}").as_bytes());
        root
    }

    fn no_toolchain() -> Result<Toolchain, String> {
        Err(format!("the linker is missing: {MEND}"))
    }

    #[test]
    fn a_fitting_object_is_embedded_without_a_toolchain() {
        let root = repository();
        let out = tempfile::tempdir().unwrap();
        let embedded = embed(root.path(), out.path(), None, no_toolchain).unwrap();
        assert_eq!(fs::read(out.path().join("locality.bpf.o")).unwrap(), object());
        assert!(!embedded.rebuilt);
        let source = format!("cargo::rerun-if-changed={}", root.path().join("ebpf/src").display());
        assert!(embedded.cargo_lines().contains(&source), "{:?}", embedded.cargo_lines());
    }

    #[test]
    fn every_change_of_the_sources_is_noticed_and_named() {
        for path in ["ebpf/Cargo.lock", "ebpf/src/a/b.rs", "common/src/lib.rs", "ebpf/src/new.rs", OBJECT] {
            let root = repository();
            fs::write(root.path().join(path), b"changed").unwrap();
            let why = stale(root.path()).unwrap().unwrap_or_default();
            assert!(why.contains(path), "{path}: {why:?}");
        }
        let root = repository();
        fs::remove_file(root.path().join("ebpf/src/a/b.rs")).unwrap();
        assert!(stale(root.path()).unwrap().unwrap().contains("ebpf/src/a/b.rs"));
        fs::remove_file(root.path().join(OBJECT)).unwrap();
        assert_eq!(stale(root.path()).unwrap().as_deref(), Some("there is none"));
    }

    #[test]
    fn a_stale_object_without_a_toolchain_names_the_command() {
        let root = repository();
        fs::write(root.path().join("common/src/lib.rs"), b"changed").unwrap();
        let out = tempfile::tempdir().unwrap();
        let error = embed(root.path(), out.path(), None, no_toolchain).unwrap_err();
        assert!(
            error.contains("common/src/lib.rs") && error.contains("cargo xtask ebpf --install"),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1);
        assert!(!out.path().join("locality.bpf.o").exists());
    }

    #[test]
    fn a_given_object_is_taken_unless_it_is_none() {
        let root = repository();
        let given = root.path().join("given.o");
        let out = tempfile::tempdir().unwrap();
        for bad in [b"".to_vec(), b"#!/bin/sh\n".to_vec(), object()[..20].to_vec(), object()[..30].to_vec()] {
            fs::write(&given, &bad).unwrap();
            let error = embed(root.path(), out.path(), Some(given.clone()), no_toolchain).unwrap_err();
            assert!(error.contains("given.o"), "{error}");
        }
        fs::write(&given, object()).unwrap();
        embed(root.path(), out.path(), Some(given), no_toolchain).unwrap();
        assert!(out.path().join("locality.bpf.o").exists());
    }

    /// `sha256sum --check` must read the manifest, so that a stranger can verify it without us.
    #[test]
    fn the_manifest_is_in_the_format_of_sha256sum() {
        let root = repository();
        let check = |root: &Path| {
            let run =
                Command::new("sha256sum").args(["--check", "--strict", MANIFEST]).current_dir(root).output();
            run.unwrap().status.success()
        };
        assert!(check(root.path()));
        fs::write(root.path().join("ebpf/Cargo.lock"), b"changed").unwrap();
        assert!(!check(root.path()));
    }
}
