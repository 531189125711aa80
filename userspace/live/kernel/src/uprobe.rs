//! Many probes of a file's instructions in one link (`BPF_TRACE_UPROBE_MULTI`, Linux 6.6; sessions,
//! Linux 6.13).
//!
//! aya loads uprobe programs only for single probes. Each probe takes a perf event and, for
//! removal, a separate grace period (80 ms here, in sequence, while the remaining probes still
//! trap). The programs are therefore relocated by `aya-obj` against the maps made by aya, and
//! loaded here, and linked by the probe process ([`become_probe_process_if_asked`]). A link writes
//! breakpoints into the text of one process only. Closing the link's descriptor removes all breakpoints at
//! once.

mod process;

use std::{
    collections::HashMap,
    ffi::{CStr, CString},
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, Result, anyhow};
use aya_obj::generated::{
    BPF_F_UPROBE_MULTI_RETURN, bpf_attach_type::BPF_TRACE_UPROBE_MULTI, bpf_cmd, bpf_insn,
    bpf_prog_type::BPF_PROG_TYPE_KPROBE,
};

use super::verifier;
use process::ProbeProcess;

pub use process::{become_probe_process_if_asked, start_probe_process_from};

/// Entry and return in one program (`BPF_TRACE_UPROBE_SESSION` of include/uapi/linux/bpf.h; aya's
/// bindings are older).
const BPF_TRACE_UPROBE_SESSION: u32 = 57;

/// The object's programs for probes.
#[cfg(test)]
pub(super) const NAMES: [&str; 3] = [SESSION, ENTRY, RETURN];
const SESSION: &str = "heap_session";
const ENTRY: &str = "heap_entry";
const RETURN: &str = "heap_return";

/// The `bpf_attr` of `BPF_PROG_LOAD` up to the last used field (include/uapi/linux/bpf.h).
#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// The `bpf_attr` of `BPF_LINK_CREATE` for `uprobe_multi`.
#[repr(C)]
#[derive(Default)]
struct LinkAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    ref_ctr_offsets: u64,
    cookies: u64,
    cnt: u32,
    multi_flags: u32,
    pid: u32,
    reserved: u32,
}

const _: () = {
    assert!(size_of::<LoadAttr>() == 72);
    assert!(size_of::<LinkAttr>() == 64);
};

pub(super) fn bpf<T>(command: bpf_cmd, attr: &mut T) -> io::Result<OwnedFd> {
    let fd = call(command, attr)?;
    // SAFETY: the call returned a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The system call. Memory of the attribute's pointers must outlive the call.
pub(super) fn call<T>(command: bpf_cmd, attr: &mut T) -> io::Result<RawFd> {
    // SAFETY: the attribute is live and of the size
    // given; the attribute's pointers outlive the call.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_long, &raw mut *attr, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}

/// The loaded programs, and the process that makes links of them.
#[derive(Debug)]
pub struct Programs {
    form: Form,
    /// Started by the first link, and by the next link after its death.
    process: Mutex<Option<Arc<ProbeProcess>>>,
}

/// The programs in the form offered by the kernel.
#[derive(Debug)]
enum Form {
    /// One program for entry and return; Linux 6.13.
    Session(OwnedFd),
    /// Separate programs for entry and return; Linux 6.6.
    Pair {
        /// At the entry.
        entry: OwnedFd,
        /// At the return.
        back: OwnedFd,
    },
}

impl Programs {
    /// Loads the programs from an object with existing maps, by name.
    pub fn load(object: &[u8], maps: &HashMap<String, RawFd>) -> Result<Self> {
        let mut object = aya_obj::Object::parse(object).context("the eBPF object is damaged")?;
        let named = object.maps.clone();
        let text = object.functions.keys().map(|(section, _)| *section).collect();
        let known = named.iter().filter_map(|(name, map)| Some((name.as_str(), *maps.get(name)?, map)));
        object.relocate_maps(known, &text).context("cannot relocate the eBPF object")?;
        object.relocate_calls(&text).context("cannot relocate the eBPF object")?;
        let load = |name: &str, attach_type: u32| -> Result<OwnedFd> {
            let program = object.programs.get(name).context("program missing")?;
            let function = object.functions.get(&program.function_key()).context("program missing")?;
            load(name, &function.instructions, &program.license, attach_type)
        };
        let session = load(SESSION, BPF_TRACE_UPROBE_SESSION).and_then(|session| {
            try_link(&session, BPF_TRACE_UPROBE_SESSION, 0)?;
            Ok(Form::Session(session))
        });
        let refused = match session {
            Ok(form) => return Ok(form.into()),
            Err(refused) => refused,
        };
        tracing::debug!("no probes in sessions: {refused:#}");
        let multi = BPF_TRACE_UPROBE_MULTI as u32;
        let pair = (|| {
            let (entry, back) = (load(ENTRY, multi)?, load(RETURN, multi)?);
            try_link(&entry, multi, 0)?;
            try_link(&back, multi, BPF_F_UPROBE_MULTI_RETURN)?;
            Ok(Form::Pair { entry, back })
        })();
        pair.map(Form::into)
            .map_err(|error: anyhow::Error| error.context("allocation probes need Linux 6.6 or later"))
    }

    /// The kind of probes on the running kernel, in a few words.
    pub fn shape(&self) -> &'static str {
        match self.form {
            Form::Session(_) => "one for entry and return",
            Form::Pair { .. } => "one for the entry, one for the return",
        }
    }

    /// Puts probes into the text of one process, in each mapping
    /// of the file, now or later.
    ///
    /// # Errors
    /// `ESRCH` after the process' end, the kernel's other errors, and a failed start of the probe process.
    pub fn attach(&self, pid: u32, file: &Path, probes: &[Probe]) -> io::Result<Link> {
        self.put(pid, file, probes).map_err(|error| match error.kind() {
            // The file's name goes through the process, and vanishes at the process' end.
            io::ErrorKind::NotFound if !Path::new(&format!("/proc/{pid}/maps")).exists() => {
                io::Error::from_raw_os_error(libc::ESRCH)
            }
            _ => error,
        })
    }

    fn put(&self, pid: u32, file: &Path, probes: &[Probe]) -> io::Result<Link> {
        let path = CString::new(file.as_os_str().as_bytes())?;
        let mut made = Link { process: self.process()?, links: Vec::new() };
        let mut add = |program: usize, attach_type: u32, multi_flags: u32, probes: &[Probe]| {
            let request = LinkRequest { program, attach_type, multi_flags, pid, path: &path, probes };
            made.links.push(made.process.create(&request)?);
            Ok::<_, io::Error>(())
        };
        match &self.form {
            // A session's entry probe decides whether to probe the return;
            // functions never probed at the return share one link.
            Form::Session(_) => add(0, BPF_TRACE_UPROBE_SESSION, 0, probes)?,
            Form::Pair { .. } => {
                let (both, entry): (Vec<Probe>, Vec<Probe>) = probes.iter().partition(|probe| probe.followed);
                let multi = BPF_TRACE_UPROBE_MULTI as u32;
                if !both.is_empty() {
                    add(1, multi, BPF_F_UPROBE_MULTI_RETURN, &both)?;
                }
                add(0, multi, 0, &[both, entry].concat())?;
            }
        }
        Ok(made)
    }

    fn process(&self) -> io::Result<Arc<ProbeProcess>> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = process.as_ref().filter(|process| process.is_alive()) {
            return Ok(Arc::clone(process));
        }
        let programs = match &self.form {
            Form::Session(program) => vec![program.as_fd()],
            Form::Pair { entry, back } => vec![entry.as_fd(), back.as_fd()],
        };
        Ok(Arc::clone(process.insert(Arc::new(ProbeProcess::start(&programs)?))))
    }
}

impl From<Form> for Programs {
    fn from(form: Form) -> Self {
        Self { form, process: Mutex::new(None) }
    }
}

/// An instruction to probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Offset in the file.
    pub offset: u64,
    /// Meaning for the program (`locality_common::heap::function`).
    pub cookie: u64,
    /// Whether the function's return is of interest; the return
    /// address then lies on top of the stack at the entry.
    pub followed: bool,
    /// The instruction's first byte, which the kernel replaces.
    pub byte: u8,
}

/// Probes in a process; a drop removes the probes, but
/// returns only after a grace period (about 0.1 s).
#[derive(Debug)]
pub struct Link {
    process: Arc<ProbeProcess>,
    links: Vec<u64>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.links.iter().for_each(|link| self.process.close(*link));
    }
}

/// A link of probes.
#[derive(Debug)]
struct LinkRequest<'a> {
    /// Index of the program: 0 at the entry or for both, 1 at the return.
    program: usize,
    attach_type: u32,
    multi_flags: u32,
    /// 0 for all processes.
    pid: u32,
    path: &'a CStr,
    probes: &'a [Probe],
}

fn load(name: &str, instructions: &[bpf_insn], license: &CString, attach_type: u32) -> Result<OwnedFd> {
    let mut attr = LoadAttr {
        prog_type: BPF_PROG_TYPE_KPROBE as u32,
        insn_cnt: instructions.len() as u32,
        insns: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        expected_attach_type: attach_type,
        ..LoadAttr::default()
    };
    for (to, from) in attr.prog_name.iter_mut().zip(name.bytes().take(15)) {
        *to = from;
    }
    let error = match bpf(bpf_cmd::BPF_PROG_LOAD, &mut attr) {
        Ok(program) => return Ok(program),
        Err(error) => error,
    };
    // Once more, for the verifier's log.
    let mut log = vec![0u8; 1 << 20];
    (attr.log_level, attr.log_size, attr.log_buf) = (1, log.len() as u32, log.as_mut_ptr() as u64);
    if let Ok(program) = bpf(bpf_cmd::BPF_PROG_LOAD, &mut attr) {
        return Ok(program);
    }
    let said = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
    Err(verifier::refusal_by_log(name, &said, error))
}

/// Whether the kernel can make links of a kind. A loaded program is no proof, because older kernels
/// load a program for every kind of link. A link to a folder in place of a file fails with `EBADF`
/// only if the remaining arguments are accepted (`bpf_uprobe_multi_link_attach` in
/// kernel/trace/bpf_trace.c), so the trial probes no code.
fn try_link(program: &OwnedFd, attach_type: u32, multi_flags: u32) -> Result<()> {
    let nowhere = [Probe { offset: 0, cookie: 0, followed: false, byte: 0 }];
    let request = LinkRequest { program: 0, attach_type, multi_flags, pid: 0, path: c"/", probes: &nowhere };
    match create_link(program.as_raw_fd(), &request) {
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(()),
        Err(error) => Err(anyhow!("the kernel has no such links: {error}")),
        Ok(_) => Err(anyhow!("the kernel probed a folder")),
    }
}

fn create_link(program: RawFd, request: &LinkRequest<'_>) -> io::Result<OwnedFd> {
    let offsets: Vec<u64> = request.probes.iter().map(|probe| probe.offset).collect();
    let cookies: Vec<u64> = request.probes.iter().map(|probe| probe.cookie).collect();
    let mut attr = LinkAttr {
        prog_fd: program as u32,
        attach_type: request.attach_type,
        path: request.path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        cookies: cookies.as_ptr() as u64,
        cnt: request.probes.len() as u32,
        multi_flags: request.multi_flags,
        pid: request.pid,
        ..LinkAttr::default()
    };
    bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr)
}
