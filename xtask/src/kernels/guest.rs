//! Guests: the file system in memory from which guests
//! run, and boots under QEMU's emulation of the processor.
//!
//! KVM is not used, because the machines of CI have none. Emulated processors of
//! several threads are, because one thread for every processor takes ten times as long.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use locality_shell as shell;

/// The first process of a guest.
const INIT: &str = include_str!("init.sh");

/// Target programs that the checks start.
const PROGRAMS: [&str; 4] = ["two_loops", "column_walk", "heap_storm", "thread_storm"];

/// QEMU's message (Debian 12) about executing a jump that the kernel is replacing.
const TORN_JUMP: &str = "Oops: int3";

/// What a guest is started with.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// For the table and for file names.
    pub name: &'static str,
    /// QEMU's name of the processor.
    pub cpu: &'static str,
    /// Processors.
    pub cpus: u32,
}

/// What a boot left.
pub struct Boot {
    /// A folder for each check that ended.
    pub results: PathBuf,
    /// What the kernel and the checks said.
    pub log: PathBuf,
    /// Reason of an early end, if any.
    pub failure: Option<String>,
    /// How long it took.
    pub took: Duration,
}

/// Makes the file system: the release binary and its libraries, busybox, the target programs, the
/// first process.
pub fn initramfs(folder: &Path) -> Result<PathBuf> {
    shell::need(&[
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("busybox", "busybox-static"),
        ("cpio", "cpio"),
        ("gcc", "gcc"),
        ("strip", "binutils"),
        ("gcc", "libc6-dev"),
    ])?;
    let root = folder.join("root");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    for part in ["bin", "dev", "etc", "proc", "results", "sys", "tmp"] {
        fs::create_dir_all(root.join(part))?;
    }
    fs::copy(busybox()?, root.join("bin/busybox"))?;
    let binary = tracer()?;
    let mut strip = Command::new("strip");
    shell::run_aside(strip.arg("-o").arg(root.join("bin/locality-bpf")).arg(&binary))?;
    for name in PROGRAMS {
        let source = shell::root().join(format!("tests/programs/{name}.c"));
        let mut compile = Command::new("gcc");
        compile.args(["-O1", "-g", "-pthread", "-o"]).arg(root.join("bin").join(name)).arg(source);
        shell::run_aside(&mut compile)?;
    }
    copy_libraries(&binary, &root)?;
    fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")?;
    fs::write(root.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n")?;
    fs::write(root.join("init"), INIT)?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;
    let image = folder.join("initramfs.gz");
    let mut pack = Command::new("sh");
    pack.args(["-c", r#"find . | cpio -o -H newc -R 0:0 --quiet | gzip -1 > "$1""#, "sh"]).arg(&image);
    shell::run_aside(pack.current_dir(&root))?;
    Ok(image)
}

/// The tracer named by `LOCALITY_BPF`, as in the tests on the kernel, or a tracer built now.
fn tracer() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("LOCALITY_BPF") {
        return Ok(path.into());
    }
    shell::run(shell::cargo().args(["build", "--release", "--package", "locality-bpf"]))?;
    Ok(shell::target_dir().join("release/locality-bpf"))
}

/// A busybox that needs no libraries.
fn busybox() -> Result<PathBuf> {
    let found =
        || ["/bin/busybox", "/usr/bin/busybox"].iter().map(PathBuf::from).find(|path| is_static(path));
    if found().is_none() {
        shell::install(&["busybox-static"])?;
    }
    found().context("busybox is not the static one: package busybox-static")
}

fn is_static(program: &Path) -> bool {
    let output = Command::new("ldd").arg(program).output();
    program.exists() && output.is_ok_and(|output| !String::from_utf8_lossy(&output.stdout).contains("=>"))
}

/// The libraries and the loader of a program, at the same paths.
fn copy_libraries(program: &Path, root: &Path) -> Result<()> {
    let output = Command::new("ldd").arg(program).output().context("cannot run ldd")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for word in text.split_whitespace().filter(|word| word.starts_with('/')) {
        let to = root.join(word.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap_or(root))?;
        fs::copy(word, &to).with_context(|| format!("cannot copy {word}"))?;
    }
    Ok(())
}

/// Boots a kernel, runs the checks, and unpacks the output. A boot
/// that ends by a torn jump under emulation is repeated once.
pub fn boot(
    image: &Path,
    initramfs: &Path,
    machine: Machine,
    checks: &[&str],
    limit: Duration,
    folder: &Path,
) -> Result<Boot> {
    let first = boot_once(image, initramfs, machine, checks, limit, folder)?;
    if first.failure.is_none() || !fs::read_to_string(&first.log).is_ok_and(|log| log.contains(TORN_JUMP)) {
        return Ok(first);
    }
    eprintln!("  `{TORN_JUMP}`, once more");
    boot_once(image, initramfs, machine, checks, limit, folder)
}

fn boot_once(
    image: &Path,
    initramfs: &Path,
    machine: Machine,
    checks: &[&str],
    limit: Duration,
    folder: &Path,
) -> Result<Boot> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let results = folder.join("results");
    fs::create_dir_all(&results)?;
    let (log, data) = (folder.join("log"), folder.join("data"));
    let began = Instant::now();
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-accel", "tcg,thread=multi", "-cpu", machine.cpu, "-smp", &machine.cpus.to_string()]);
    qemu.args(["-m", "1536", "-nodefaults", "-no-reboot", "-display", "none", "-nic", "none"]);
    qemu.arg("-kernel").arg(image).arg("-initrd").arg(initramfs);
    // The kernel counts timer interrupts against a loop at boot, which a busy host makes too few.
    let words = format!("console=ttyS0 panic=-1 quiet no_timer_check checks={}", checks.join(","));
    qemu.args(["-append", &words]);
    qemu.arg("-serial").arg(format!("file:{}", log.display()));
    qemu.arg("-serial").arg(format!("file:{}", data.display()));
    let mut child = qemu.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("cannot start QEMU")?;
    let ended = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if began.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    let said = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
    let failure = match ended {
        None => Some(format!("did not end within {} s", limit.as_secs())),
        Some(status) if !status.success() => bail!("QEMU failed: {status}"),
        Some(_) if !said.contains("\ndone at ") => Some(last_words(&said)),
        Some(_) => None,
    };
    // The output of a dead guest is cut short: tar reports that, and unpacks the complete part.
    let mut unpack = Command::new("tar");
    unpack.args(["-xzi", "-f"]).arg(&data).arg("-C").arg(&results).stderr(Stdio::null());
    unpack.status().context("cannot run tar")?;
    Ok(Boot { results, log, failure, took: began.elapsed() })
}

/// How a guest died.
fn last_words(log: &str) -> String {
    let telling = ["Kernel panic", "Oops", "BUG:"];
    let line = log.lines().find(|line| telling.iter().any(|word| line.contains(word)));
    let line = line.or_else(|| log.lines().rfind(|line| !line.trim().is_empty()));
    format!("the guest did not come to its end: {}", line.unwrap_or("it said nothing").trim())
}
