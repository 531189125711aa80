//! Compiles the recorder of allocations, which the program embeds.
//!
//! The compiler is the one that compiles the program: cargo would not make a shared object without
//! the standard library beside a program with it.

use std::path::Path;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let out_dir = std::env::var_os("OUT_DIR").unwrap_or_default();
    match recorder(&root, Path::new(&out_dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        }
    }
}

/// Compiles the recorder without libraries: of the C library it may call only the functions that it
/// stands before.
fn recorder(root: &Path, out_dir: &Path) -> Result<(), String> {
    let sources = root.join("userspace/live/preload/src");
    println!("cargo::rerun-if-changed={}", sources.display());
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command
        .args(["--edition", "2024", "--crate-name", "locality_preload", "--crate-type", "cdylib"])
        .args([
            "--cfg",
            "feature=\"recorder\"",
            "-Copt-level=3",
            "-Cpanic=abort",
            "-Cforce-unwind-tables=yes",
        ])
        .args(["-Cstrip=debuginfo", "-Clink-arg=-nostdlib", "-Clink-arg=-nostartfiles"])
        .args(["-Clink-arg=-Wl,-z,now,-z,defs,-soname,liblocality_preload.so"])
        .args(std::env::var_os("RUSTC_LINKER").map(|linker| {
            let mut argument = std::ffi::OsString::from("-Clinker=");
            argument.push(linker);
            argument
        }))
        .arg("-o")
        .arg(out_dir.join("liblocality_preload.so"))
        .arg(sources.join("lib.rs"));
    let output = command.output().map_err(|error| format!("cannot run the Rust compiler: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "the recorder of allocations was not compiled:\n{}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}
