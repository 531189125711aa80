//! `cargo xtask ebpf`: compiles the eBPF programs and checks in
//! the object; or checks that the present object is current.
//!
//! Not here: the meaning of "current" and how to compile
//! (`locality-prebuilt`, shared with the build script of `locality-bpf`).

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, bail};
use locality_prebuilt::{self as prebuilt, MANIFEST, OBJECT, TOOLCHAIN_NOTE, Toolchain};

use locality_shell as shell;

/// bpf-linker's release, and the LLVM releases that the linker can be built with, newest first.
const LINKER_VERSION: &str = "0.13.0";
const LINKER_LLVM: [u32; 3] = [23, 22, 21];

/// What `cargo xtask ebpf` can be asked for.
#[derive(clap::Args)]
pub struct Options {
    /// Only fail when the checked-in object does not fit its sources
    #[arg(long, conflicts_with = "verify")]
    check: bool,
    /// Compile into the target directory and compare with the checked-in object; prints the new object's path
    #[arg(long)]
    verify: bool,
    /// Install what is missing to compile eBPF programs (Debian and Ubuntu)
    #[arg(long)]
    install: bool,
}

/// Does it.
pub fn run(options: &Options) -> Result<()> {
    let root = shell::root();
    if options.check || options.verify {
        if let Some(why) = prebuilt::stale(&root).map_err(|e| anyhow!(e))? {
            bail!("{OBJECT} is stale: {why}; `cargo xtask ebpf` compiles and checks in a new one");
        }
        eprintln!("{OBJECT} fits its sources");
    }
    if options.check {
        return Ok(());
    }
    if options.install {
        install()?;
    }
    let toolchain = Toolchain::find().map_err(|e| anyhow!(e))?;
    let built = toolchain.build(&root, &shell::target_dir().join("ebpf")).map_err(|e| anyhow!(e))?;
    let object = fs::read(&built)?;
    if options.verify {
        compare(&toolchain, &object)?;
        crate::say(&built.display().to_string());
        return Ok(());
    }
    // The lock file is part of the manifest, and compiling may have changed it: hash afterwards.
    let manifest = prebuilt::manifest(&root, &object).map_err(|e| anyhow!(e))?;
    fs::create_dir_all(root.join("ebpf/prebuilt"))?;
    fs::write(root.join(OBJECT), &object).with_context(|| format!("cannot write {OBJECT}"))?;
    fs::write(root.join(MANIFEST), format!("{TOOLCHAIN_NOTE}{}\n{manifest}", toolchain.versions))?;
    crate::say(&format!("{OBJECT}: {} bytes, built by {}", object.len(), toolchain.versions));
    Ok(())
}

/// Equal compilers must give equal objects. Another compiler may differ, which is reported, and no
/// failure.
fn compare(toolchain: &Toolchain, fresh: &[u8]) -> Result<()> {
    let root = shell::root();
    let recorded = fs::read_to_string(root.join(MANIFEST))?;
    let recorded =
        recorded.lines().find_map(|line| line.strip_prefix(TOOLCHAIN_NOTE)).unwrap_or("an unknown compiler");
    if fs::read(root.join(OBJECT))? == fresh {
        eprintln!("{OBJECT} is what its sources compile to");
    } else if recorded == toolchain.versions {
        bail!(
            "{OBJECT} is not what its sources compile to with {recorded}; `cargo xtask ebpf` checks in a new one"
        );
    } else {
        eprintln!("{OBJECT} was built by {recorded}, here is {}: not compared", toolchain.versions);
    }
    Ok(())
}

/// Installs the sources of `core` and the linker, each only when it is missing.
fn install() -> Result<()> {
    if !shell::has("bpf-linker") {
        let llvm = install_llvm()?;
        let mut cargo = shell::cargo();
        cargo.env("LLVM_PREFIX", format!("/usr/lib/llvm-{llvm}")).env_remove("CARGO_TARGET_DIR");
        cargo.args([
            "install",
            "bpf-linker",
            "--locked",
            "--version",
            LINKER_VERSION,
            "--no-default-features",
        ]);
        shell::run_aside(cargo.args(["--features", &format!("llvm-{llvm}")]))?;
        if !shell::has("bpf-linker") {
            bail!(
                "bpf-linker is installed, but not on the PATH: add cargo's bin directory (~/.cargo/bin) to it"
            );
        }
    }
    if Toolchain::find().is_ok() {
        return Ok(());
    }
    // The distribution's compiler brings the sources of
    // its `core`; rustup has a component with the sources.
    let by_rustup = || {
        let mut rustup = Command::new("timeout");
        let limit = "120";
        rustup.args([limit, "rustup", "component", "add", "rust-src"]);
        shell::has("rustup") && shell::run_aside(&mut rustup).is_ok()
    };
    if !by_rustup() {
        shell::install(&["rustc-web", "rust-web-src"])
            .context("the sources of `core` are missing: `rustup component add rust-src` installs them")?;
    }
    Ok(())
}

/// The newest LLVM that the distribution offers and bpf-linker can use. It must not be older than
/// the compiler's.
fn install_llvm() -> Result<u32> {
    for version in LINKER_LLVM {
        let headers = format!("/usr/lib/llvm-{version}/include/llvm-c/Core.h");
        if std::path::Path::new(&headers).exists() {
            return Ok(version);
        }
    }
    LINKER_LLVM.into_iter().find(|version| shell::install(&[&format!("llvm-{version}-dev")]).is_ok()).with_context(|| {
        let newest = LINKER_LLVM[1];
        format!(
            "this distribution has no LLVM new enough for bpf-linker: add the LLVM project's own apt repository, \
             install llvm-{newest}-dev, then repeat"
        )
    })
}
