//! Facts about the program's code: lines of a block's instructions, stubs, targets of calls.
//!
//! Derived, hence outside the arena and rebuilt by a process taking over.

use locality_stream::{Code, InstructionRecord};

use crate::state::{Model, NONE};

/// Set in the recorded address of an instruction in a function with costs charged to the caller.
pub const SKIPPED: u64 = 1 << 62;
/// Mark bits of a recorded address: [`SKIPPED`], and marks of further analyses.
const MARKS: u64 = 3 << 62 | 0xff << 48;

/// The address of an instruction without marks.
pub(crate) fn address(record: &InstructionRecord) -> u64 {
    record.address & !MARKS
}

/// Whether a function beginning with the instruction is skipped.
pub(crate) fn is_skipped(record: &InstructionRecord) -> bool {
    record.address & SKIPPED != 0
}

/// Consecutive instructions of a block in a single line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// The line's number.
    pub(crate) line: u64,
    /// First and last byte within the line.
    pub(crate) first_byte: u32,
    pub(crate) last_byte: u32,
    /// The instructions' parts of the line.
    pub(crate) mask: u64,
    /// The first instruction.
    pub(crate) first: u32,
    /// Number of instructions.
    pub(crate) count: u32,
    /// The run is one instruction, continued in the next run: one fetch for both.
    pub(crate) continues: bool,
}

/// Facts found up to now.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// By block: the range of the block's runs in `runs`; `None` before the first request.
    plans: Vec<Option<(u32, u32)>>,
    runs: Vec<Run>,
    /// By block: whether a stub.
    stubs: Vec<Option<bool>>,
    /// Calls of late.
    pub(crate) children: Children,
}

/// Target of a call with facts, to avoid look-ups.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Child {
    /// The caller's node; 0 for nobody's.
    parent: u32,
    /// The call instruction, and the block of arrival.
    site: u32,
    block: u32,
    /// The function's node; 0 if the block is a stub.
    pub(crate) node: u32,
    /// The function; for a stub the paying cell.
    pub(crate) function: u32,
    pub(crate) arc: u32,
}

/// The calls of late, by the caller's node, the call instruction and the block of arrival.
#[derive(Debug)]
pub(crate) struct Children(Box<[Child; Children::COUNT]>);

impl Default for Children {
    fn default() -> Self {
        Children(Box::new([Child::NONE; Children::COUNT]))
    }
}

impl Child {
    const NONE: Child = Child { parent: 0, site: 0, block: NONE, node: 0, function: 0, arc: 0 };
}

impl Children {
    const COUNT: usize = 1 << 12;

    #[inline(always)]
    fn slot(node: u32, site: u32, block: u32) -> usize {
        let mixed = (u64::from(node) << 32 | u64::from(block)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = mixed.wrapping_add(u64::from(site).wrapping_mul(0xd1b5_4a32_d192_ed03));
        (mixed >> 52) as usize & (Self::COUNT - 1)
    }

    /// Last target of the call, if known.
    #[inline(always)]
    pub(crate) fn get(&self, node: u32, site: u32, block: u32) -> Option<&Child> {
        let known = &self.0[Self::slot(node, site, block)];
        ((known.parent, known.site, known.block) == (node, site, block)).then_some(known)
    }

    /// Remembers a call with known block.
    pub(crate) fn set(&mut self, parent: u32, site: u32, block: u32, [node, function, arc]: [u32; 3]) {
        if block != NONE {
            self.0[Self::slot(parent, site, block)] = Child { parent, site, block, node, function, arc };
        }
    }

    /// Forgets calls from or to removed nodes.
    pub(crate) fn retain(&mut self, is_there: impl Fn(u32) -> bool) {
        for child in self.0.iter_mut() {
            // An existing node has a parent.
            if child.parent != 0 && !is_there(if child.node == 0 { child.parent } else { child.node }) {
                *child = Child::NONE;
            }
        }
    }
}

fn slot<T: Copy>(list: &mut Vec<Option<T>>, index: usize) -> Option<&mut Option<T>> {
    if list.len() <= index {
        list.resize(index + 1, None);
    }
    list.get_mut(index)
}

impl Facts {
    /// The runs of a block: numbers for [`Facts::run`].
    #[inline(always)]
    pub(crate) fn plan(&mut self, code: &Code<'_>, block: u32, model: &Model) -> (u32, u32) {
        if let Some(Some(known)) = self.plans.get(block as usize) {
            return *known;
        }
        self.make_plan(code, block, model)
    }

    #[cold]
    fn make_plan(&mut self, code: &Code<'_>, block: u32, model: &Model) -> (u32, u32) {
        let begin = self.runs.len();
        let first = code.blocks.get(block as usize).map_or(0, |block| block.first);
        for (index, record) in (first..).zip(code.block(block)) {
            self.add(index, record, begin, model.line_bits);
        }
        for run in self.runs.iter_mut().skip(begin) {
            run.mask = model.parts(run.first_byte.into(), run.last_byte.into());
        }
        let plan = (begin as u32, self.runs.len() as u32);
        if (block as usize) < code.blocks.len()
            && let Some(slot) = slot(&mut self.plans, block as usize)
        {
            *slot = Some(plan);
        }
        plan
    }

    fn add(&mut self, index: u32, record: &InstructionRecord, begin: usize, line_bits: u32) {
        let start = address(record);
        let end = start + u64::from(record.length.max(1)) - 1;
        let within = |address: u64| (address & ((1 << line_bits) - 1)) as u32;
        for line in start >> line_bits..=end >> line_bits {
            let first_byte = if line == start >> line_bits { within(start) } else { 0 };
            let last_byte = if line == end >> line_bits { within(end) } else { (1 << line_bits) - 1 };
            let goes_on = line != start >> line_bits;
            // A jump over a part of the line ends a block: bytes
            // between two instructions of a run were fetched.
            let known = self.runs.len() > begin && !goes_on;
            match self.runs.last_mut().filter(|_| known) {
                Some(run) if run.line == line && run.last_byte + 1 == first_byte => {
                    run.last_byte = last_byte;
                    run.count += 1;
                }
                _ => self.runs.push(Run {
                    line,
                    first_byte,
                    last_byte,
                    mask: 0,
                    first: index,
                    count: 1,
                    continues: false,
                }),
            }
            if goes_on {
                let at = self.runs.len() - 2;
                if let Some(before) = self.runs.get_mut(at.max(begin)) {
                    before.continues = before.count == 1;
                }
            }
        }
    }

    /// A run of a plan.
    pub(crate) fn run(&self, number: u32) -> Option<&Run> {
        self.runs.get(number as usize)
    }

    /// Whether a block is a stub: a jump to an address from memory
    /// only, like a procedure linkage table's entry, or a push of a
    /// number and a jump, like an entry before the symbol is resolved.
    #[inline(always)]
    pub(crate) fn is_stub(&mut self, code: &Code<'_>, block: u32) -> bool {
        match self.stubs.get(block as usize) {
            Some(Some(known)) => *known,
            _ => self.look_at(code, block),
        }
    }

    #[cold]
    fn look_at(&mut self, code: &Code<'_>, block: u32) -> bool {
        let is = is_stub(code.block(block));
        if (block as usize) < code.blocks.len()
            && let Some(slot) = slot(&mut self.stubs, block as usize)
        {
            *slot = Some(is);
        }
        is
    }
}

/// As [`Facts::is_stub`], for a block's instructions. A source that reports few blocks must report
/// the targets of stubs.
pub fn is_stub(block: &[InstructionRecord]) -> bool {
    let mut rest =
        block.iter().map(InstructionRecord::code).filter(|code| !matches!(code, [0xf3, 0x0f, 0x1e, 0xfa]));
    // With the prefix for jumps to bounds-checked targets (`bnd`), or without.
    let bare = |code: &'_ [u8]| -> Option<[u8; 2]> {
        match code {
            [0xf2, first, second, ..] | [first, second, ..] => Some([*first, *second]),
            _ => None,
        }
    };
    let jumps_through_memory = |code: [u8; 2]| code == [0xff, 0x25];
    let pushes = |code: [u8; 2]| code[0] == 0x68 || code == [0xff, 0x35];
    let jumps = |code: [u8; 2]| code[0] == 0xe9 || jumps_through_memory(code);
    let Some(first) = rest.next().and_then(bare) else { return false };
    let second = rest.next();
    match second {
        None => jumps_through_memory(first),
        Some(second) => pushes(first) && bare(second).is_some_and(jumps) && rest.next().is_none(),
    }
}

/// The target of a direct near call.
pub(crate) fn direct_target(record: &InstructionRecord) -> Option<u64> {
    let code = match record.code() {
        // Prefixes without effect: `bnd`, and the prefix of
        // 16-bit data, as before calls to `__tls_get_addr`.
        [0xf2, rest @ ..] | [0x66, 0x66, 0x48, rest @ ..] | [0x66, 0x48, rest @ ..] | [0x48, rest @ ..] => {
            rest
        }
        all => all,
    };
    let [0xe8, offset @ ..] = code else { return None };
    let offset = i32::from_le_bytes(offset.try_into().ok()?);
    Some(address(record).wrapping_add(record.length.into()).wrapping_add_signed(offset.into()) & !MARKS)
}

/// Whether an instruction locks the bus: a `lock` prefix,
/// or an exchange with memory, which needs no prefix.
pub(crate) fn is_atomic(record: &InstructionRecord) -> bool {
    let mut code = record.code().iter();
    for byte in code.by_ref() {
        match byte {
            0xf0 => return true,
            0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf2 | 0xf3 | 0x40..=0x4f => {}
            byte => return matches!(byte, 0x86 | 0x87),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use locality_stream::BlockRecord;

    use super::*;

    fn record(address: u64, code: &[u8]) -> InstructionRecord {
        InstructionRecord::new(address, code)
    }

    #[test]
    fn stubs_of_linkage_tables_are_known() {
        let endbr: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
        let jump: &[u8] = &[0xff, 0x25, 1, 2, 3, 4];
        let bounded: &[u8] = &[0xf2, 0xff, 0x25, 1, 2, 3, 4];
        let push: &[u8] = &[0x68, 1, 0, 0, 0];
        let push_memory: &[u8] = &[0xff, 0x35, 1, 2, 3, 4];
        let near: &[u8] = &[0xe9, 1, 2, 3, 4];
        let load: &[u8] = &[0x48, 0x8b, 0x07];
        let is = |codes: &[&[u8]]| is_stub(&codes.iter().map(|code| record(0, code)).collect::<Vec<_>>());
        assert!(is(&[jump]) && is(&[bounded]) && is(&[endbr, bounded]) && is(&[endbr, jump]));
        assert!(is(&[push, near]) && is(&[endbr, push, near]) && is(&[push_memory, jump]));
        assert!(!is(&[]) && !is(&[endbr]) && !is(&[near]) && !is(&[load, jump]) && !is(&[push, load]));
        assert!(!is(&[push, near, load]) && !is(&[&[0xff, 0xe0]]));
    }

    #[test]
    fn calls_and_locks_are_read_off_the_bytes() {
        let call = record(0x1000 | SKIPPED, &[0xe8, 0xfb, 0xff, 0xff, 0xff]);
        assert_eq!(direct_target(&call), Some(0x1000));
        assert_eq!(direct_target(&record(0x1000, &[0x66, 0x48, 0xe8, 1, 0, 0, 0])), Some(0x1008));
        assert_eq!(direct_target(&record(0x1000, &[0xff, 0xd0])), None);
        for (code, is) in [
            (&[0xf0, 0x48, 0x83, 0x00, 0x01][..], true),
            (&[0x64, 0xf0, 0x0f, 0xb1, 0x0f], true),
            (&[0x48, 0x87, 0x07], true),
            (&[0x48, 0x83, 0x00, 0x01], false),
            (&[0x83, 0x00, 0xf0], false),
        ] {
            assert_eq!(is_atomic(&record(0, code)), is, "{code:x?}");
        }
    }

    #[test]
    fn blocks_are_cut_into_runs_at_lines() {
        // 6 bytes up to the end of a line, 4 across it, 3 behind it; then a block that begins with
        // one across.
        let instructions = [
            record(0x38, &[0; 6]),
            record(0x3e, &[0; 4]),
            record(0x42, &[0; 3]),
            record(0x7f, &[0; 2]),
            record(0x81, &[0; 1]),
        ];
        let blocks = [BlockRecord { first: 0, count: 3 }, BlockRecord { first: 3, count: 2 }];
        let code = Code { instructions: &instructions, blocks: &blocks };
        let mut facts = Facts::default();
        let level = crate::Level::new("L1", 1 << 15, 8, 64);
        let model = Model::new(&crate::Config::new(vec![level]));
        let mut runs = |block| {
            let (begin, end) = facts.plan(&code, block, &model);
            (begin..end).map(|number| *facts.run(number).unwrap()).collect::<Vec<_>>()
        };
        let run = |line, first_byte, last_byte, first, count, continues| Run {
            line,
            first_byte,
            last_byte,
            mask: (first_byte..=last_byte).fold(0, |mask, byte| mask | 1_u64 << byte),
            first,
            count,
            continues,
        };
        assert_eq!(runs(1), [run(1, 63, 63, 3, 1, true), run(2, 0, 1, 3, 2, false)]);
        assert_eq!(runs(0), [run(0, 0x38, 63, 0, 2, false), run(1, 0, 4, 1, 2, false)]);
        assert_eq!(runs(1).len(), 2);
        assert!(runs(7).is_empty());
    }
}
