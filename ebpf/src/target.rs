//! Who is measured: the kernel-side filter.

use aya_ebpf::helpers::generated::bpf_get_current_ancestor_cgroup_id;
use locality_common::config::{CGROUPS_MAX, mode, spared};

use crate::maps::{self, CGROUPS, SPARED, TARGETS};

/// Whether the current thread, of process `tgid`, is a target.
#[inline(always)]
pub fn is_target(tgid: u32) -> bool {
    if tgid == 0 || tgid == maps::own_tgid() {
        return false;
    }
    match maps::mode() {
        mode::PROCESSES => is_listed(tgid),
        // The list names the calibration's own child.
        mode::CGROUPS => is_listed(tgid) || (!is_spared(tgid) && in_traced_cgroup()),
        _ => !is_spared(tgid),
    }
}

#[inline(always)]
fn is_spared(tgid: u32) -> bool {
    SPARED.get_ptr(tgid).is_some()
}

/// Whether the process is ours.
#[inline(always)]
pub fn is_own(tgid: u32) -> bool {
    // SAFETY: the lookup returned a live map value.
    tgid == maps::own_tgid() || SPARED.get_ptr(tgid).is_some_and(|why| unsafe { *why } == spared::OWN)
}

/// Whether the process is in the target map.
#[inline(always)]
pub fn is_listed(tgid: u32) -> bool {
    TARGETS.get_ptr(tgid).is_some()
}

#[inline(always)]
fn in_traced_cgroup() -> bool {
    for index in 0..CGROUPS_MAX {
        let Some(cgroup) = CGROUPS.get(index) else { return false };
        if cgroup.used == 0 {
            return false;
        }
        // SAFETY: a helper call with a plain argument.
        if unsafe { bpf_get_current_ancestor_cgroup_id(cgroup.level as i32) } == cgroup.id {
            return true;
        }
    }
    false
}
