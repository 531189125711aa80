//! Builds the QEMU plugin, which the program embeds.
//!
//! Cargo makes no shared object of a library that a program depends on; hence a cargo of our own,
//! with the compiler of the whole build. The folder of its output lies in cargo's target folder and
//! is common to all profiles and to clippy, so that the plugin is compiled once. Another clone or
//! another compiler has another folder there, because cargo names the shared object without a hash.
//! What the plugin is made of comes from cargo's list of dependencies: no list here can miss a file,
//! and no stale plugin is embedded. QEMU is linked with the GNU C library, so the plugin is too,
//! whatever the target.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

const PACKAGE: &str = "locality-plugin";
/// The profile in the workspace's manifest: optimised, without debug information.
const PROFILE: &str = "plugin";
const TARGET: &str = "x86_64-unknown-linux-gnu";
const FILE: &str = "liblocality_plugin.so";
/// Beginnings of variables by which an outer cargo, clippy or a user control the outer build alone.
const OUTER: [&str; 8] = [
    "CARGO_BUILD",
    "CARGO_ENCODED",
    "CARGO_INCREMENTAL",
    "CARGO_PROFILE",
    "CARGO_TARGET",
    "CLIPPY_",
    "RUSTC_",
    "RUSTFLAGS",
];

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    match embed(&root, &out_dir) {
        Ok(sources) => {
            for source in sources {
                println!("cargo::rerun-if-changed={}", source.display());
            }
            ExitCode::SUCCESS
        }
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        }
    }
}

/// Puts the plugin into `out_dir`; returns the files that it was made from.
fn embed(root: &Path, out_dir: &Path) -> Result<Vec<PathBuf>, String> {
    let root = root.canonicalize().map_err(|error| format!("cannot find {}: {error}", root.display()))?;
    let common = common_folder(out_dir);
    let folder = common.join(of_build(&root));
    build(&root, &folder)?;
    let built = folder.join(TARGET).join(PROFILE);
    let plugin = built.join(FILE);
    fs::copy(&plugin, out_dir.join(FILE))
        .map_err(|error| format!("cannot copy {}: {error}", plugin.display()))?;
    // For benchmarks of QEMU with the plugin alone, which build this program first.
    let _ = fs::copy(&plugin, common.join(FILE));
    let list = built.join(FILE).with_extension("d");
    let text =
        fs::read_to_string(&list).map_err(|error| format!("cannot read {}: {error}", list.display()))?;
    let mut sources: Vec<PathBuf> = listed(&text).into_iter().map(|source| root.join(source)).collect();
    if sources.is_empty() {
        return Err(format!("{} names no source", list.display()));
    }
    let manifests = sources.iter().flat_map(|source| source.ancestors().skip(1));
    let mut manifests: Vec<PathBuf> = manifests
        .take_while(|folder| folder.starts_with(&root))
        .map(|folder| folder.join("Cargo.toml"))
        .filter(|manifest| manifest.is_file())
        .collect();
    sources.append(&mut manifests);
    sources.extend([root.join("Cargo.toml"), root.join("Cargo.lock")]);
    sources.sort();
    sources.dedup();
    Ok(sources)
}

/// A folder in cargo's target folder, which cargo marks with a file; else in `out_dir`.
fn common_folder(out_dir: &Path) -> PathBuf {
    let target = out_dir.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file());
    target.unwrap_or(out_dir).join("plugin")
}

/// A name for a clone with a compiler.
fn of_build(root: &Path) -> String {
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(&compiler).arg("-vV").output().map(|said| said.stdout);
    let mut hasher = DefaultHasher::new();
    (root, compiler, version.unwrap_or_default()).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn build(root: &Path, folder: &Path) -> Result<(), String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(&cargo);
    command.args(["rustc", "--package", PACKAGE, "--lib", "--crate-type", "cdylib"]);
    command.args(["--profile", PROFILE, "--target", TARGET, "--target-dir"]).arg(folder);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if OUTER.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    // A file of settings may name another folder for what is between sources and results.
    command.env("CARGO_BUILD_BUILD_DIR", folder).current_dir(root);
    let run = command.output().map_err(|error| format!("cannot run {}: {error}", cargo.display()))?;
    match run.status.success() {
        true => Ok(()),
        false => Err(format!(
            "the QEMU plugin was not compiled; it needs the target {TARGET} (`rustup target add {TARGET}`):\n{}",
            String::from_utf8_lossy(&run.stderr)
        )),
    }
}

/// The files after the colon in a list of dependencies, where a space in a name has a backslash.
fn listed(text: &str) -> Vec<String> {
    let Some((_, files)) = text.split_once(": ") else { return Vec::new() };
    let mut names = vec![String::new()];
    let mut characters = files.chars();
    while let Some(character) = characters.next() {
        match (character, names.last_mut()) {
            ('\\', Some(name)) => name.extend(characters.next()),
            (' ' | '\n', _) => names.push(String::new()),
            (_, Some(name)) => name.push(character),
            (_, None) => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}
