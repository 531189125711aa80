//! The window process: started by the tracer from its own program, confined, then one answer to
//! each question.
//!
//! The process has one thread. An error inside ends it; the tracer starts another one.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::clock_pages::ClockPages;
use super::confine::{self, Refused};
use super::layout::{Answer, Ask, MOST_EXTENDED, Request, Room, flat, unflat};
use super::ranges::Lookup;
use super::remote::ProcessMemory;
use super::shared::Shared;
use super::{death, sys};
use crate::state::ThreadState;
use crate::window::{Counts, Limits, Log};
use crate::{Executor, TableCounts, Tables};

/// The argument that asks a program to become the window process.
pub(super) const ARGUMENT: &str = "--locality-window";
/// Where the tracer put its end of the socket, and the shared memory.
const SOCKET: RawFd = 0;
const MEMORY: RawFd = 1;

/// What the tracer says first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) room: Room,
    pub(super) tracer: u32,
    /// Real-time priority, 0 for none.
    pub(super) real_time: u32,
    /// Longest time without sleep at that priority, in microseconds.
    pub(super) real_time_us: u32,
    /// Instructions of an ordinary window, for which memory is made ready.
    pub(super) usual: u32,
}

impl Start {
    /// Length in bytes.
    const BYTES: usize = 36;

    /// As a message.
    pub(super) fn message(&self) -> [u8; Start::BYTES] {
        let Room { events, values, registers, instructions, blocks } = self.room;
        let words = [
            events,
            values,
            registers,
            instructions,
            blocks,
            self.tracer,
            self.real_time,
            self.real_time_us,
            self.usual,
        ];
        let mut message = [0; Start::BYTES];
        for (to, word) in message.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        message
    }

    fn read(message: &[u8]) -> Option<Start> {
        let message: &[u8; Start::BYTES] = message.try_into().ok()?;
        let mut words = message
            .chunks_exact(4)
            .map(|word| word.iter().rev().fold(0_u32, |value, byte| value << 8 | u32::from(*byte)));
        let mut next = || words.next();
        Some(Start {
            room: Room {
                events: next()?,
                values: next()?,
                registers: next()?,
                instructions: next()?,
                blocks: next()?,
            },
            tracer: next()?,
            real_time: next()?,
            real_time_us: next()?,
            usual: next()?,
        })
    }
}

/// To be called first in `main` of each program that starts a [`super::Helper`]: where the program
/// was started to be the window process, it becomes that and does not return.
pub fn become_helper_if_asked() {
    let mut arguments = std::env::args_os();
    if arguments.nth(1).is_some_and(|argument| argument == ARGUMENT) && arguments.next().is_none() {
        exit(serve());
    }
}

fn serve() -> i32 {
    // SAFETY: the tracer put them there; otherwise their first use fails.
    let (socket, memory) = unsafe { (OwnedFd::from_raw_fd(SOCKET), OwnedFd::from_raw_fd(MEMORY)) };
    let mut message = [0; 64];
    let start = match sys::receive(socket.as_fd(), &mut message, true) {
        Ok((length, _)) => message.get(..length).and_then(Start::read),
        Err(_) => None,
    };
    let Some(start) = start else { return 2 };
    let Refused(what, error) = match Server::new(&start, memory) {
        Ok(server) => server.answer_for_ever(socket.as_fd()),
        Err(refused) => refused,
    };
    let _ = sys::send(socket.as_fd(), format!("cannot {what}: {error}").as_bytes(), None);
    1
}

/// The code tables in shared memory; how far they are filled stands in each answer.
fn tables(shared: &'static Shared, counts: &'static TableCounts) -> Tables {
    let layout = &shared.layout;
    // SAFETY: called once, without other references to these sections.
    unsafe {
        let (instructions, blocks) = (shared.slice(&layout.instructions), shared.slice(&layout.blocks));
        Tables { instructions, blocks, counts }
    }
}

struct Server {
    shared: &'static Shared,
    executor: Executor,
    code: &'static TableCounts,
    targets: HashMap<u64, ProcessMemory>,
    clocks: Arc<ClockPages>,
    state: ThreadState,
}

impl Server {
    /// Takes its resources while permitted, then gives up every right, the system calls last.
    fn new(start: &Start, memory: OwnedFd) -> Result<Server, Refused> {
        let shared = Shared::map(memory.as_fd(), &start.room).map_err(|e| Refused("map its memory", e))?;
        // It is needed until the process ends.
        let shared: &'static Shared = Box::leak(Box::new(shared));
        std::panic::set_hook(Box::new(|panic| {
            shared.leave_note(&panic.to_string());
            // The standard library's way out would make system calls that are not on the list.
            // SAFETY: ends the process.
            unsafe { libc::_exit(101) }
        }));
        shared.make_ready(start.usual as usize, true);
        let code: &'static TableCounts = Box::leak(Box::default());
        let executor =
            Executor::new(tables(shared, code)).map_err(|e| Refused("make ready to execute", e))?;
        let clocks = Arc::new(ClockPages::find());
        confine::settle(i32::try_from(start.real_time).ok().filter(|priority| *priority > 0));
        confine::drop_rights(start.tracer)?;
        death::tell(shared.answered(), shared.alive()).map_err(|e| Refused("announce its death", e))?;
        shared.alive().store(std::process::id(), Ordering::SeqCst);
        confine::set_limits(start.real_time_us.into())?;
        drop(memory);
        confine::close_above(SOCKET)?;
        let (targets, state) = (HashMap::new(), ThreadState::default());
        Ok(Server { shared, executor, code, targets, clocks, state })
    }

    /// One answer to each question; the end of the process is the end of it.
    fn answer_for_ever(mut self, socket: BorrowedFd<'_>) -> Refused {
        if let Err(refused) = confine::allow_only_what_windows_need(SOCKET) {
            return refused;
        }
        let mut last = 0;
        // The first question is number 1: whether we are ready.
        loop {
            let asked = self.shared.asked().load(Ordering::Acquire);
            if asked == last {
                sys::futex_wait(self.shared.asked(), last, None);
                continue;
            }
            last = asked;
            let answer = self.answer(socket);
            self.shared.store(&self.shared.layout.answer, 0, &[answer]);
            self.shared.answered().store(asked, Ordering::Release);
            sys::futex_wake(self.shared.answered());
        }
    }

    fn answer(&mut self, socket: BorrowedFd<'_>) -> Answer {
        let mut answer = Answer::default();
        let Some(request) = self.shared.load(&self.shared.layout.request, 0) else { return answer };
        answer.error = match request.ask {
            ask if ask == Ask::Run as u32 => self.run(&request, &mut answer),
            ask if ask == Ask::Take as u32 => self.take(&request, socket),
            ask if ask == Ask::Ranges as u32 => self.change(&request),
            ask if ask == Ask::Drop as u32 => {
                self.targets.remove(&request.key);
                self.executor.forget(request.key);
                0
            }
            _ => 0,
        } as u32;
        answer
    }

    fn ranges(&self, request: &Request) -> Lookup {
        let mut packed = Vec::new();
        self.shared.copy(&self.shared.layout.ranges, 0, request.ranges as usize, &mut packed);
        Lookup::new(packed)
    }

    fn take(&mut self, request: &Request, socket: BorrowedFd<'_>) -> i32 {
        self.executor.forget(request.key);
        self.targets.remove(&request.key);
        let mut key = [0; 8];
        match sys::receive(socket, &mut key, false) {
            Ok((8, Some(file))) if u64::from_le_bytes(key) == request.key => {
                let memory = ProcessMemory::with(file, self.ranges(request), self.clocks.clone());
                self.targets.insert(request.key, memory);
                0
            }
            // The kernel cuts a descriptor off when no more may be open.
            Ok((8, None)) => libc::EMFILE,
            Ok(_) => libc::EBADMSG,
            Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }

    fn change(&mut self, request: &Request) -> i32 {
        let ranges = self.ranges(request);
        let Some(target) = self.targets.get_mut(&request.key) else { return libc::ESRCH };
        target.ranges = ranges;
        if request.forget == 1 {
            self.executor.forget(request.key);
        }
        0
    }

    fn run(&mut self, request: &Request, answer: &mut Answer) -> i32 {
        let Some(target) = self.targets.get_mut(&request.key) else { return libc::ESRCH };
        let (shared, layout) = (self.shared, &self.shared.layout);
        self.state.registers = unflat(&request.registers);
        shared.load_bytes(&layout.request_extended, request.extended as usize, &mut self.state.extended);
        let limits =
            Limits { instructions: request.instructions, pages: request.pages, time_ns: request.time_ns };
        // SAFETY: the tracer reads these sections only after the answer, and they are sliced here only.
        let mut log = unsafe {
            Log {
                events: shared.slice(&layout.events),
                values: shared.slice(&layout.values),
                registers: shared.slice(&layout.registers),
                counts: Counts::default(),
            }
        };
        target.asked = 0;
        let state = self.executor.run(request.key, &self.state, target, &limits, &mut log);
        answer.counts = log.counts;
        if target.asked == 0 {
            // Only remembered data: of this program, or of the one before?
            target.probe(self.state.registers.rip);
        }
        answer.gone = u32::from(target.gone);
        answer.registers = flat(&state.registers);
        answer.extended = state.extended.len().min(MOST_EXTENDED) as u32;
        shared.store_bytes(&layout.answer_extended, &state.extended);
        answer.epoch = self.code.epoch.load(Ordering::Relaxed);
        answer.instructions = self.code.instructions.load(Ordering::Relaxed);
        answer.blocks = self.code.blocks.load(Ordering::Relaxed);
        0
    }
}
