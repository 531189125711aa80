//! The invariants of a stream, as an analysis: rules that every
//! source must obey, and that QEMU or a plugin may break.
//!
//! Checked as far as the stream permits: accesses against the accesses' block only in a
//! stream with block events, instructions only if present in the code tables. A signal
//! handler, a `longjmp` or a switch of stacks may break continuity without fault of the
//! source; such findings are counted under [`Rule::BlockDoesNotFollow`] alone.

use std::collections::HashMap;

use crate::analysis::{Analysis, ArenaFull};
use crate::classify::{Flow, Instruction};
use crate::code::Code;
use crate::event::{Event, Kind, NO_INSTRUCTION};

/// What can be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// A kind that is not defined, or reserved bits in use.
    UnknownEvent,
    /// An event before the first thread event, or after the thread's end.
    NoThread,
    /// An access of no bytes, or a size on an event that is no access.
    BadSize,
    /// An instruction or a block that the code tables do not have.
    UnknownCode,
    /// An access by an instruction that is not in the block begun last.
    NotInBlock,
    /// A load by an instruction without a load, or a store by an instruction without a store.
    WrongDirection,
    /// A call or return without the mark, or the reverse.
    WrongFlow,
    /// A block begins at another place than its predecessor's target.
    BlockDoesNotFollow,
    /// A return from a stored return address leads to another place than after that call.
    ReturnElsewhere,
}

/// How often a rule was broken, and where first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub rule: Rule,
    /// Violating events.
    pub count: u64,
    /// Number of the first of them in the stream, from 0.
    pub first: u64,
}

/// State of one thread.
#[derive(Debug, Default)]
struct Thread {
    ended: bool,
    block: Option<u32>,
    /// True when the block was cut short: anything may follow.
    cut: bool,
    /// (where the return address lies, the return address), innermost last.
    calls: Vec<(u64, u64)>,
    /// Where the block begun next must begin, after a return.
    expected: Option<u64>,
}

/// The checker. Its state is on the heap: a checker is for tests and diagnosis.
#[derive(Debug, Default)]
pub struct Checker {
    events: u64,
    facts: Vec<Instruction>,
    threads: HashMap<u64, Thread>,
    thread: Option<u64>,
    findings: HashMap<Rule, Finding>,
}

impl Checker {
    /// A checker before any event.
    pub fn new() -> Checker {
        Checker::default()
    }

    /// Events seen.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// What was found, in the order of rules; empty for a sound stream.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings: Vec<Finding> = self.findings.values().copied().collect();
        findings.sort_unstable_by_key(|finding| finding.rule);
        findings
    }

    fn find(&mut self, rule: Rule) {
        let first = self.events;
        self.findings.entry(rule).or_insert(Finding { rule, count: 0, first }).count += 1;
    }

    fn check(&mut self, event: &Event, code: &Code<'_>) {
        if event.kind.0 > Kind::RETURNED.0 || event.flags != 0 {
            return self.find(Rule::UnknownEvent);
        }
        if event.kind.is_access() == (event.size == 0) {
            self.find(Rule::BadSize);
        }
        if event.kind == Kind::THREAD {
            self.thread = Some(event.value);
            self.threads.entry(event.value).or_default().ended = false;
            return;
        }
        if event.kind == Kind::THREAD_END {
            match self.threads.get_mut(&event.value) {
                Some(thread) if !thread.ended => thread.ended = true,
                _ => self.find(Rule::NoThread),
            }
            return;
        }
        let Some(mut thread) = self.thread.and_then(|id| self.threads.remove(&id)) else {
            return self.find(Rule::NoThread);
        };
        if thread.ended {
            self.find(Rule::NoThread);
        }
        match event.kind {
            Kind::BLOCK => self.block(event, code, &mut thread),
            Kind::BLOCK_CUT | Kind::SIGNAL | Kind::SIGNAL_END | Kind::LOST | Kind::SKIPPED => {
                thread.cut = true;
                thread.expected = None;
            }
            kind if kind.is_access() => self.access(event, code, &mut thread),
            _ => {}
        }
        if let Some(id) = self.thread {
            self.threads.insert(id, thread);
        }
    }

    fn block(&mut self, event: &Event, code: &Code<'_>, thread: &mut Thread) {
        let Some(start) = code.block(event.index).first().map(|record| record.address) else {
            return self.find(Rule::UnknownCode);
        };
        if let Some(expected) = thread.expected.take() {
            if expected != start {
                self.find(Rule::ReturnElsewhere);
            }
        } else if !thread.cut && !self.leads_to(thread.block, code, start) {
            self.find(Rule::BlockDoesNotFollow);
        }
        thread.block = Some(event.index);
        thread.cut = false;
    }

    /// Whether control may go from the end of a block to `start`.
    fn leads_to(&self, block: Option<u32>, code: &Code<'_>, start: u64) -> bool {
        let Some(index) = block.and_then(|block| code.blocks.get(block as usize)) else { return true };
        let last = index.first.saturating_add(index.count).saturating_sub(1);
        let (Some(record), Some(facts)) = (code.instruction(last), self.facts.get(last as usize)) else {
            return true;
        };
        let next = record.address.wrapping_add(record.length.into());
        match facts.flow {
            Flow::Next => start == next,
            // A repeated string instruction may begin its own block again.
            Flow::SystemCall => start == next || start == record.address,
            _ => true,
        }
    }

    fn access(&mut self, event: &Event, code: &Code<'_>, thread: &mut Thread) {
        if event.index == NO_INSTRUCTION {
            return;
        }
        let Some(facts) = self.facts.get(event.index as usize).copied() else {
            return self.find(Rule::UnknownCode);
        };
        let block = thread.block.and_then(|block| code.blocks.get(block as usize));
        if block.is_some_and(|block| event.index.wrapping_sub(block.first) >= block.count) {
            self.find(Rule::NotInBlock);
        }
        let is_store = event.kind.is_store();
        if if is_store { !facts.stores } else { !facts.loads } {
            self.find(Rule::WrongDirection);
        }
        if event.kind != facts.access_kind(is_store) {
            self.find(Rule::WrongFlow);
        }
        if !event.kind.is_flow() {
            return;
        }
        if is_store {
            while thread.calls.last().is_some_and(|call| call.0 <= event.value) {
                thread.calls.pop();
            }
            thread.calls.push((event.value, facts.address.wrapping_add(facts.length.into())));
        } else {
            while thread.calls.last().is_some_and(|call| call.0 < event.value) {
                thread.calls.pop();
            }
            thread.expected = thread.calls.pop_if(|call| call.0 == event.value).map(|call| call.1);
        }
    }
}

impl Analysis for Checker {
    fn observe(&mut self, events: &[Event], code: &Code<'_>) -> Result<(), ArenaFull> {
        let new = code.instructions.get(self.facts.len()..).unwrap_or_default();
        self.facts.extend(Instruction::classify_all(new));
        for event in events {
            self.check(event, code);
            self.events += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::code_asm::*;

    use super::*;
    use crate::code::{BlockRecord, InstructionRecord};

    /// `main: mov rax,[rbx]; call f; add rax,1; ret` and `f: push rax; ret`, as three blocks, and
    /// `mov` alone as a fourth.
    fn program() -> (Vec<InstructionRecord>, Vec<BlockRecord>) {
        let mut a = CodeAssembler::new(64).unwrap();
        let mut f = a.create_label();
        a.mov(rax, qword_ptr(rbx)).unwrap();
        a.call(f).unwrap();
        a.add(rax, 1).unwrap();
        a.ret().unwrap();
        a.set_label(&mut f).unwrap();
        a.push(rax).unwrap();
        a.ret().unwrap();
        let bytes = a.assemble(0x1000).unwrap();
        let mut decoder = iced_x86::Decoder::with_ip(64, &bytes, 0x1000, 0);
        let mut records = Vec::new();
        while decoder.can_decode() {
            let start = decoder.position();
            let instruction = decoder.decode();
            records.push(InstructionRecord::new(instruction.ip(), &bytes[start..decoder.position()]));
        }
        let blocks = [(0, 2), (2, 2), (4, 2), (0, 1)].map(|(first, count)| BlockRecord { first, count });
        (records, blocks.to_vec())
    }

    fn sound() -> Vec<Event> {
        vec![
            Event::new(Kind::THREAD, 0, 7),
            Event::new(Kind::BLOCK, 0, 0),
            Event::access(Kind::LOAD, 0, 0x9000, 8),
            Event::access(Kind::CALL, 1, 0x7ff8, 8),
            Event::new(Kind::BLOCK, 2, 0),
            Event::access(Kind::STORE, 4, 0x7ff0, 8),
            Event::access(Kind::RETURN, 5, 0x7ff8, 8),
            Event::new(Kind::BLOCK, 1, 0),
            Event::access(Kind::RETURN, 3, 0x8000, 8),
            Event::new(Kind::THREAD_END, 0, 7),
        ]
    }

    fn findings(events: &[Event]) -> Vec<(Rule, u64, u64)> {
        let (instructions, blocks) = program();
        let code = Code { instructions: &instructions, blocks: &blocks };
        let mut checker = Checker::new();
        for piece in events.chunks(3) {
            checker.observe(piece, &code).unwrap();
        }
        checker.findings().into_iter().map(|finding| (finding.rule, finding.count, finding.first)).collect()
    }

    #[test]
    fn a_sound_stream_has_no_findings() {
        assert_eq!(findings(&sound()), []);
    }

    #[test]
    fn each_rule_finds_its_fault() {
        let broken = |change: fn(&mut Vec<Event>)| {
            let mut events = sound();
            change(&mut events);
            findings(&events)
        };
        assert_eq!(broken(|e| e[2].kind = Kind(77)), [(Rule::UnknownEvent, 1, 2)]);
        assert_eq!(broken(|e| e[2].size = 0), [(Rule::BadSize, 1, 2)]);
        assert_eq!(broken(|e| e[2].index = 99), [(Rule::UnknownCode, 1, 2)]);
        assert_eq!(broken(|e| e[5].index = 1)[0], (Rule::NotInBlock, 1, 5));
        assert_eq!(broken(|e| e[2].kind = Kind::STORE), [(Rule::WrongDirection, 1, 2)]);
        assert_eq!(broken(|e| e[3].kind = Kind::STORE), [(Rule::WrongFlow, 1, 3)]);
        assert_eq!(
            broken(|e| drop(e.splice(1..2, [3, 2, 0].map(|n| Event::new(Kind::BLOCK, n, 0))))),
            [(Rule::BlockDoesNotFollow, 1, 2)]
        );
        assert_eq!(broken(|e| e[7].index = 0)[1], (Rule::ReturnElsewhere, 1, 7));
        assert_eq!(broken(|e| e.retain(|event| event.kind != Kind::THREAD)), [(Rule::NoThread, 9, 0)]);
        assert_eq!(broken(|e| e.push(Event::new(Kind::SYSTEM_CALL, 0, 1))), [(Rule::NoThread, 1, 10)]);
    }
}
