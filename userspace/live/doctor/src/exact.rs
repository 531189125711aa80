//! Whether `locality-bpf exact` can run here: runs a program under QEMU with the plugin.

use super::Check;
use locality_runner::find;

pub(super) fn check() -> Check {
    let check = |found: String| Check::ok("exact", "exact runs", found);
    match find::tried() {
        Ok(qemu) => check(format!("QEMU {} with plugins ({})", qemu.version, qemu.file.display())),
        Err(why) => check(format!("{why:#}"))
            .degraded("`locality-bpf exact` cannot run; live traces do not need it")
            .mend(mend(find::qemu().is_ok())),
    }
}

/// The command that repairs exact runs. If an emulator with plugins exists, the plugin is absent or
/// of another version than this program.
fn mend(has_emulator: bool) -> &'static str {
    if has_emulator { "cargo build --release --package locality-plugin" } else { "cargo xtask qemu" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_not_mended_by_an_emulator() {
        assert!(mend(true).contains("locality-plugin"));
        assert_eq!(mend(false), "cargo xtask qemu");
    }
}
