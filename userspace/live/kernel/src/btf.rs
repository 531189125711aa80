//! Byte offsets of kernel structure fields, from the running kernel's own type information (BTF).
//!
//! Rust eBPF objects carry no CO-RE relocations, so the few fields that the programs read are
//! resolved here and handed over as settings. Not here: relocating programs (aya does what there is
//! to do).

use anyhow::{Context, Result, bail};
use btf_rs::{Backend, Btf, Type};
use locality_common::config::KernelOffsets;

/// Place of the kernel's published types.
pub const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// The offsets for this kernel.
pub fn kernel_offsets() -> Result<KernelOffsets> {
    // Kernels from 6.16 on let the file be mapped, and then only what is asked for is looked at.
    let btf = Btf::from_file_with_backend(KERNEL_BTF, Backend::Mmap)
        .or_else(|_| Btf::from_bytes(&std::fs::read(KERNEL_BTF)?))
        .map_err(|error| anyhow::anyhow!("{error}"))
        .with_context(|| format!("cannot read the kernel's types from {KERNEL_BTF}; a kernel built with CONFIG_DEBUG_INFO_BTF=y has them"))?;
    let find = |path: &str| offset(&btf, path).with_context(|| format!("the kernel's BTF lacks {path}"));
    Ok(KernelOffsets {
        task_pid: find("task_struct.pid")?,
        task_tgid: find("task_struct.tgid")?,
        task_start_boottime: find("task_struct.start_boottime")?,
        task_voluntary_switches: find("task_struct.nvcsw")?,
        task_involuntary_switches: find("task_struct.nivcsw")?,
        task_ptrace: find("task_struct.ptrace")?,
        task_sighand: find("task_struct.sighand")?,
        task_signal: find("task_struct.signal")?,
        task_blocked: find("task_struct.blocked")?,
        task_pending: find("task_struct.pending.signal")?,
        task_cpu_ns: find("task_struct.se.sum_exec_runtime")?,
        signal_cpu_ns: find("signal_struct.sum_sched_runtime")?,
        signal_shared_pending: find("signal_struct.shared_pending.signal")?,
        sighand_action: find("sighand_struct.action")?,
        k_sigaction_bytes: structure(&btf, "k_sigaction")?.size() as u32,
        task_thread_pid: find("task_struct.thread_pid")?,
        signal_pids: find("signal_struct.pids")?,
        pid_level: find("pid.level")?,
        pid_numbers: find("pid.numbers")?,
        upid_bytes: structure(&btf, "upid")?.size() as u32,
        upid_nr: find("upid.nr")?,
        upid_ns: find("upid.ns")?,
        pid_namespace_inum: find("pid_namespace.ns.inum")?,
    })
}

fn structure(btf: &Btf, name: &str) -> Result<btf_rs::Struct> {
    for found in btf.resolve_types_by_name(name).map_err(|error| anyhow::anyhow!("{error}"))? {
        if let Type::Struct(found) = found {
            return Ok(found);
        }
    }
    bail!("no structure {name}")
}

/// Offset in bytes of `structure.field[.field…]`; anonymous members are looked through.
fn offset(btf: &Btf, path: &str) -> Result<u32> {
    let mut parts = path.split('.');
    let mut within = structure(btf, parts.next().unwrap_or_default())?;
    let mut bits = 0;
    for part in parts {
        let (found_at, of_type) = member(btf, &within, part)?.with_context(|| format!("no field {part}"))?;
        bits += found_at;
        if let Some(Type::Struct(inner)) = of_type {
            within = inner;
        }
    }
    Ok(bits / 8)
}

/// Offset in bits and type of a named member.
fn member(btf: &Btf, of: &btf_rs::Struct, name: &str) -> Result<Option<(u32, Option<Type>)>> {
    for candidate in &of.members {
        let inner = btf.resolve_chained_type(candidate).ok();
        match btf.resolve_name(candidate).unwrap_or_default().as_str() {
            found if found == name => return Ok(Some((candidate.bit_offset(), inner))),
            "" => {
                if let Some(Type::Struct(inner) | Type::Union(inner)) = inner
                    && let Some((at, of_type)) = member(btf, &inner, name)?
                {
                    return Ok(Some((candidate.bit_offset() + at, of_type)));
                }
            }
            _ => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_the_running_kernel_are_plausible() {
        if !std::path::Path::new(KERNEL_BTF).exists() {
            eprintln!("skipped: this kernel has no BTF");
            return;
        }
        let offsets = kernel_offsets().unwrap();
        assert_eq!(offsets.task_tgid, offsets.task_pid + 4);
        assert!(offsets.task_cpu_ns > 0 && offsets.signal_cpu_ns > 0);
        assert!(offsets.k_sigaction_bytes == 32 && offsets.sighand_action > 0);
        // A number, and the namespace that it is counted in.
        assert_eq!((offsets.upid_nr, offsets.upid_ns, offsets.upid_bytes), (0, 8, 16));
        assert!(offsets.pid_level < offsets.pid_numbers && offsets.pid_namespace_inum > 0);
        // `struct sigpending` is a list head and then the set.
        assert!(offsets.task_pending >= 16 && offsets.signal_shared_pending >= 16);
    }
}
