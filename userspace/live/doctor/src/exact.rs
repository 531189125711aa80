//! Whether `locality-bpf exact` can run here: runs a program under QEMU with the plugin.

use super::Check;
use locality_runner::find;

pub(super) fn check() -> Check {
    let check = |found: String| Check::ok("exact", "exact runs", found);
    match find::tried() {
        Ok(qemu) => check(format!("QEMU {} with plugins ({})", qemu.version, qemu.file.display())),
        Err(why) => {
            let check = check(format!("{why:#}"))
                .degraded("`locality-bpf exact` cannot run; live traces do not need it");
            // With an emulator, the sentence names what failed: memory, a folder, QEMU itself.
            if find::qemu().is_ok() { check } else { check.mend("cargo xtask qemu") }
        }
    }
}
