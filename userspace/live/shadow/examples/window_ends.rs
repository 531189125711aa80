//! Why windows of a running process end: `window_ends PID SECONDS [INSTRUCTIONS]` stops its running
//! threads again and again and prints a table, most frequent reason first.
//!
//! For development: many more windows than a trace takes, and what each of them ended at. Needs root.
//! A thread that runs is stopped in each turn, so threads count by their time, the kernel's included.

use std::collections::BTreeMap;
use std::error::Error;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use iced_x86::{Decoder, DecoderOptions};
use locality_isa::registers_of;
use locality_shadow::helper::{Helper, Settings, ranges};
use locality_shadow::{End, Limits, ThreadState};

const NT_X86_XSTATE: usize = 0x202;

fn request(request: libc::c_uint, tid: i32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: callers pass pointers to live values of the request's type.
    let result = unsafe { libc::ptrace(request, tid, address, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Stops a seized thread: its state, or `None` for an ended thread.
fn stop(tid: i32) -> io::Result<Option<ThreadState>> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0)?;
    loop {
        let mut status = 0;
        // SAFETY: the destination is live.
        let waited = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) };
        if waited != tid || !libc::WIFSTOPPED(status) {
            return Ok(None);
        }
        if status >> 16 == libc::PTRACE_EVENT_STOP {
            break;
        }
        // A signal came first; the stop that was asked for follows.
        request(libc::PTRACE_CONT, tid, 0, libc::WSTOPSIG(status) as usize)?;
    }
    // SAFETY: all-zero bytes are a valid value to overwrite.
    let mut regs = unsafe { std::mem::zeroed::<libc::user_regs_struct>() };
    request(libc::PTRACE_GETREGS, tid, 0, &raw mut regs as usize)?;
    let mut extended = vec![0_u8; 16 << 10];
    let mut part = libc::iovec { iov_base: extended.as_mut_ptr().cast(), iov_len: extended.len() };
    request(libc::PTRACE_GETREGSET, tid, NT_X86_XSTATE, &raw mut part as usize)?;
    extended.truncate(part.iov_len);
    Ok(Some(ThreadState { registers: registers_of!(regs), extended }))
}

/// Has seized threads go on that stopped for a signal.
fn pass_signals_on() {
    let mut status = 0;
    loop {
        // SAFETY: the destination is live.
        let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::WNOHANG) };
        if tid <= 0 {
            return;
        }
        let signal = if status >> 16 == 0 { libc::WSTOPSIG(status) } else { 0 };
        let _ = request(libc::PTRACE_CONT, tid, 0, signal as usize);
    }
}

/// What lies at an address.
fn place(maps: &str, address: u64) -> &str {
    let within = |line: &&str| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let ends = range.map(|(a, b)| [a, b].map(|end| u64::from_str_radix(end, 16).unwrap_or(0)));
        ends.is_some_and(|[start, end]| (start..end).contains(&address))
    };
    let Some(line) = maps.lines().find(within) else { return "unmapped" };
    line.get(73..).map_or_else(|| line.get(26..30).unwrap_or("?"), str::trim)
}

/// The instruction there, in words.
fn instruction(memory: &fs::File, address: u64) -> String {
    let mut bytes = [0; 15];
    let read = memory.read_at(&mut bytes, address).unwrap_or(0);
    let decoded =
        Decoder::with_ip(64, bytes.get(..read).unwrap_or_default(), address, DecoderOptions::NONE).decode();
    format!("{:?}", decoded.code())
}

fn main() -> Result<(), Box<dyn Error>> {
    locality_shadow::helper::become_helper_if_asked();
    let arguments: Vec<u64> = std::env::args().skip(1).map_while(|argument| argument.parse().ok()).collect();
    let [pid, seconds, rest @ ..] = arguments.as_slice() else {
        return Err("PID SECONDS [INSTRUCTIONS]".into());
    };
    let pid = u32::try_from(*pid)?;
    let limits = Limits { instructions: *rest.first().unwrap_or(&3000), pages: 300, time_ns: 5_000_000 };
    let read_maps = || fs::read_to_string(format!("/proc/{pid}/maps"));
    let memory = fs::File::open(format!("/proc/{pid}/mem"))?;
    let mut helper = Helper::start(Settings { margin: Duration::from_millis(20), ..Settings::default() })?;
    helper.add_process(1, pid, &ranges(&read_maps()?))?;
    let mut seized = Vec::new();
    // Of each reason: how often, and instructions.
    let mut ends: BTreeMap<(&str, String), (u64, u64)> = BTreeMap::new();
    let end = Instant::now() + Duration::from_secs(*seconds);
    while Instant::now() < end {
        thread::sleep(Duration::from_millis(3));
        pass_signals_on();
        for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
            let tid: i32 = task.file_name().to_string_lossy().parse()?;
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            if !stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" R")) {
                continue;
            }
            if !seized.contains(&tid) {
                if request(libc::PTRACE_SEIZE, tid, 0, 0).is_err() {
                    continue;
                }
                seized.push(tid);
            }
            let Ok(Some(state)) = stop(tid) else { continue };
            let window = helper.run(1, &state, &limits);
            let (end, counts) = (window.end, window.counts);
            let detail = match end {
                End::SystemCall => format!("number {}", counts.detail),
                End::Unreadable | End::UnreadableCode | End::CodeWritten | End::OtherTime => {
                    place(&read_maps()?, counts.detail).to_owned()
                }
                End::Unsupported | End::Unrepeatable | End::Fault | End::Invalid => {
                    instruction(&memory, counts.detail)
                }
                _ => String::new(),
            };
            request(libc::PTRACE_CONT, tid, 0, 0)?;
            let entry = ends.entry((end.name(), detail)).or_default();
            (entry.0, entry.1) = (entry.0 + 1, entry.1 + counts.instructions);
            if end == End::UnreadableCode {
                helper.update_maps(1, &ranges(&read_maps()?))?;
            }
        }
        helper.revive()?;
    }
    let all: u64 = ends.values().map(|(count, _)| count).sum();
    let mut rows: Vec<_> = ends.into_iter().collect();
    rows.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
    let mut table = format!("{all} windows, {} deaths {}\n", helper.deaths(), helper.last_words());
    for ((end, detail), (count, instructions)) in rows.into_iter().take(25) {
        let share = 100.0 * count as f64 / all as f64;
        let mean = instructions / count;
        table += &format!("{share:5.1} % {count:6}  {mean:6} instructions  {end}: {detail}\n");
    }
    use io::Write as _;
    io::stdout().write_all(table.as_bytes())?;
    Ok(())
}
