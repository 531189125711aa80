//! From an instruction's bytes to its accesses in the stream: the callback and its prepared word.
//!
//! QEMU calls back for each access that its generated code makes, which is not always the
//! processor's: 16 and 32-byte vectors come as 8-byte pieces, 80-bit floats as 8 + 2, saved states
//! as dozens. Pieces of one operand are joined, so that one operand of one executed instruction is
//! one access (two when it is read and written), as in the live windows. A REP iteration is an
//! execution of its own. Measured on QEMU 7.2; docs of the events: `locality-stream`.
//!
//! Limits: neighbouring elements of a gather or masked move count as one access; a prefetch is none.

use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, OpAccess};
use locality_stream::{Event, Kind};

/// The callback of an instruction, with its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// No access to memory.
    Nothing,
    /// Loads of one known size: the event's second word.
    Load(u64),
    /// Stores of one known size: the event's second word.
    Store(u64),
    /// Loads and stores whose direction and size QEMU tells: a [`Template`].
    Mixed(u64),
    /// As [`Shape::Mixed`], and pieces of one operand are joined up to the size in the template.
    Joined(u64),
    /// A call or a return whose access is not asked for, in a run of sampled lines: a [`Template`].
    Flow(u64),
}

impl Shape {
    /// The rest of the shape if only calls and returns matter.
    pub fn flow(self) -> Self {
        let is_flow = |kind: u64| kind as u8 == Kind::CALL.0 || kind as u8 == Kind::RETURN.0;
        let keep = match self {
            Self::Nothing => false,
            Self::Load(what) | Self::Store(what) => is_flow(what >> 48),
            Self::Mixed(template) | Self::Joined(template) => {
                is_flow(template >> 48) || is_flow(template >> 56)
            }
            Self::Flow(_) => true,
        };
        if keep { self } else { Self::Nothing }
    }

    /// As [`Shape::flow`], without the accesses themselves.
    pub fn flow_alone(self) -> Self {
        let kinds = |load: u64, store: u64| load << 48 | store << 56;
        let (load, store) = (u64::from(Kind::LOAD.0), u64::from(Kind::STORE.0));
        match self.flow() {
            Self::Load(what) => Self::Flow(what & 0xffff_ffff_ffff | kinds(what >> 48 & 0xff, store)),
            Self::Store(what) => Self::Flow(what & 0xffff_ffff_ffff | kinds(load, what >> 48 & 0xff)),
            Self::Mixed(template) | Self::Joined(template) => Self::Flow(template),
            other => other,
        }
    }
}

/// Set in the second word of an access after which a function begins though it is no call:
/// [`Event::flags`] is 1.
pub const LEADS_ON: u64 = 1 << 56;

impl Shape {
    /// The same with [`LEADS_ON`], if a word is prepared.
    pub fn leading_on(self) -> Self {
        match self {
            Self::Load(what) => Self::Load(what | LEADS_ON),
            Self::Store(what) => Self::Store(what | LEADS_ON),
            other => other,
        }
    }
}

/// Index of the instruction, the kinds its loads and stores have, and the largest size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Template(pub u64);

impl Template {
    fn word(index: u32, load: Kind, store: Kind, most: u16) -> u64 {
        u64::from(index) | u64::from(most) << 32 | u64::from(load.0) << 48 | u64::from(store.0) << 56
    }

    /// Largest operand in bytes.
    #[inline(always)]
    pub fn most(self) -> u64 {
        self.0 >> 32 & 0xffff
    }

    /// The second word of an event for an access of `size` bytes.
    #[inline(always)]
    pub fn what(self, is_store: bool, size: u64) -> u64 {
        let kind = if is_store { self.0 >> 56 } else { self.0 >> 48 & 0xff };
        self.0 & 0xffff_ffff | (size & 0xffff) << 32 | kind << 48
    }
}

/// Largest operand of an instruction whose operand has no fixed size.
const ANY: u16 = u16::MAX;

/// The shape of the instruction `index` at `address`.
pub fn shape(index: u32, address: u64, bytes: &[u8], factory: &mut InstructionInfoFactory) -> Shape {
    let decoded = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
    if decoded.is_invalid() {
        // QEMU may know what iced does not.
        return Shape::Joined(Template::word(index, Kind::LOAD, Kind::STORE, ANY));
    }
    let (mut loads, mut stores, mut most, mut unknown) = (0, 0, 0, false);
    for memory in factory.info(&decoded).used_memory() {
        let (reads, writes) = directions(memory.access());
        loads += u32::from(reads);
        stores += u32::from(writes);
        let size = memory.memory_size().size();
        unknown |= size == 0 && (reads || writes);
        most = most.max(size);
    }
    if decoded.is_string_instruction() {
        // Each iteration is a separate execution; iced describes the whole repetition.
        (most, unknown) = (decoded.memory_size().size(), false);
    }
    let near_call = decoded.is_call_near() || decoded.is_call_near_indirect();
    let load = if decoded.flow_control() == FlowControl::Return { Kind::RETURN } else { Kind::LOAD };
    let store = if near_call { Kind::CALL } else { Kind::STORE };
    let most = u16::try_from(most).unwrap_or(ANY);
    let known = Event::access(if stores == 0 { load } else { store }, index, 0, most).what();
    match (loads, stores) {
        (0, 0) => Shape::Nothing,
        _ if unknown || !matches!(most, 1 | 2 | 4 | 8) => {
            Shape::Joined(Template::word(index, load, store, if unknown { ANY } else { most }))
        }
        (1, 0) => Shape::Load(known),
        (0, 1) => Shape::Store(known),
        _ => Shape::Mixed(Template::word(index, load, store, most)),
    }
}

/// Whether an access reads, and whether it writes; a conditional one counts, since QEMU calls back
/// when it happens.
fn directions(access: OpAccess) -> (bool, bool) {
    match access {
        OpAccess::Read | OpAccess::CondRead => (true, false),
        OpAccess::Write | OpAccess::CondWrite => (false, true),
        OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
        OpAccess::None | OpAccess::NoMemAccess => (false, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Shape {
        shape(7, 0x1000, bytes, &mut InstructionInfoFactory::new())
    }

    fn known(kind: Kind, size: u16) -> u64 {
        Event::access(kind, 7, 0, size).what()
    }

    #[test]
    fn scalar_accesses_have_their_word_ready() {
        assert_eq!(of(&[0x48, 0x8b, 0x00]), Shape::Load(known(Kind::LOAD, 8))); // mov rax, [rax]
        assert_eq!(of(&[0x88, 0x08]), Shape::Store(known(Kind::STORE, 1))); // mov [rax], cl
        assert_eq!(of(&[0xf2, 0x0f, 0x10, 0x00]), Shape::Load(known(Kind::LOAD, 8))); // movsd xmm0, [rax]
        assert_eq!(of(&[0x50]), Shape::Store(known(Kind::STORE, 8))); // push rax
        assert_eq!(of(&[0xe8, 0, 0, 0, 0]), Shape::Store(known(Kind::CALL, 8))); // call
        assert_eq!(of(&[0xc3]), Shape::Load(known(Kind::RETURN, 8))); // ret
    }

    #[test]
    fn registers_and_addresses_are_no_accesses() {
        for bytes in
            [&[0x48, 0x8d, 0x00][..], &[0x90], &[0x0f, 0x1f, 0x00], &[0x0f, 0x05], &[0x0f, 0x18, 0x08]]
        {
            assert_eq!(of(bytes), Shape::Nothing, "{bytes:x?}");
        }
    }

    #[test]
    fn other_accesses_are_described_by_qemu() {
        for (bytes, load, store, most) in [
            (&[0x83, 0x00, 0x01][..], Kind::LOAD, Kind::STORE, 4), // add dword [rax], 1
            (&[0xff, 0x10], Kind::LOAD, Kind::CALL, 8),            // call [rax]
            (&[0xff, 0x30], Kind::LOAD, Kind::STORE, 8),           // push [rax]
            (&[0xf3, 0xa4], Kind::LOAD, Kind::STORE, 1),           // rep movsb
        ] {
            assert_eq!(of(bytes), Shape::Mixed(Template::word(7, load, store, most)), "{bytes:x?}");
        }
        for (bytes, most) in [
            (&[0x0f, 0x10, 0x06][..], 16),   // movups
            (&[0xdb, 0xae, 0, 0, 0, 0], 10), // fld tbyte
            (&[0xc5, 0xfc, 0x10, 0x06], 32), // vmovups ymm
            (&[0x0f, 0xae, 0x00], 512),      // fxsave
        ] {
            let template = Template::word(7, Kind::LOAD, Kind::STORE, most);
            assert_eq!(of(bytes), Shape::Joined(template), "{bytes:x?}");
            assert_eq!(Template(template).most(), u64::from(most));
        }
    }

    #[test]
    fn only_calls_and_returns_are_flow() {
        for bytes in [&[0xe8, 0, 0, 0, 0][..], &[0xc3], &[0xff, 0x10]] {
            assert_eq!(of(bytes).flow(), of(bytes), "{bytes:x?}");
        }
        for bytes in [&[0x48, 0x8b, 0x00][..], &[0x50], &[0x83, 0x00, 0x01], &[0x0f, 0x10, 0x06], &[0x90]] {
            assert_eq!(of(bytes).flow(), Shape::Nothing, "{bytes:x?}");
        }
    }

    #[test]
    fn a_flow_alone_has_the_kinds_of_its_accesses() {
        for (bytes, load, store) in [
            (&[0xe8, 0, 0, 0, 0][..], Kind::LOAD, Kind::CALL),
            (&[0xc3], Kind::RETURN, Kind::STORE),
            (&[0xff, 0x10], Kind::LOAD, Kind::CALL),
        ] {
            assert_eq!(of(bytes).flow_alone(), Shape::Flow(Template::word(7, load, store, 8)), "{bytes:x?}");
        }
        assert_eq!(of(&[0x48, 0x8b, 0x00]).flow_alone(), Shape::Nothing);
    }

    #[test]
    fn templates_make_the_words_of_events() {
        let template = Template(Template::word(7, Kind::LOAD, Kind::CALL, 8));
        assert_eq!(template.what(false, 4), known(Kind::LOAD, 4));
        assert_eq!(template.what(true, 8), known(Kind::CALL, 8));
    }
}
