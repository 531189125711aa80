//! How an object's used parts lie in cache lines, and the saving by a changed layout.
//!
//! Hot fields together take [`HOT_SHARE`] of the object's accesses; the remaining
//! members of the structure are cold. Lines are counted for an array of the structure
//! starting at a line: a *visit* touches the hot members of one element (the mean over
//! places in a line), a *sweep* the hot members of every element in order. Two changes
//! are computed: to *split* the hot members into a separate structure (structure
//! splitting: Chilimbi, Davidson & Larus 1999, PLDI, §3), and to *reorder* members,
//! hot members first, each part by falling alignment, with padding at the end only.
//!
//! Sources of error: hot fields follow from sampled uses; further
//! effects of the layout (inheritance, files, foreign languages) are
//! not seen; the index or pointer required by a split is not counted.

use locality_model::{Member, Profile, Record, RecordId};

use super::{FieldUse, LINE};

/// Joint share of the hot fields in the accesses.
pub const HOT_SHARE: f64 = 0.95;
/// Uses in a structure below which no layout is reported: a
/// field with 1 % of 64 uses is seen in one of two cases.
const FEWEST_USES: u64 = 64;

/// Bytes and lines before and after a change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// Bytes of an element: the whole before, the part visited by hot code afterwards.
    pub bytes: (u64, u64),
    /// Lines of a visit.
    pub visit_lines: (f64, f64),
    /// Lines of a sweep, per element.
    pub sweep_lines: (f64, f64),
}

/// A piece of a structure: a member, or bytes outside members.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Piece {
    /// Index of the member; `None` for a hole.
    pub member: Option<usize>,
    /// First byte within an element.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Share of the object's accesses.
    pub access_share: f64,
}

/// A structure and the use of members.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// The structure.
    pub record: RecordId,
    /// Members and holes, by offset.
    pub pieces: Vec<Piece>,
    /// Hot members by index, in the order of offsets.
    pub hot: Vec<usize>,
    /// Cold members by index.
    pub cold: Vec<usize>,
    /// Bytes of hot members.
    pub hot_bytes: u64,
    /// Bytes from the first hot member's first to the last one's last.
    pub hot_span: u64,
    /// Bytes of no member.
    pub padding: u64,
    /// Hot members in a separate structure.
    pub split: Change,
    /// Whole structure, hot members first.
    pub reorder: Change,
}

/// Marks the fields with [`HOT_SHARE`] together. `fields` are in falling order of accesses.
pub(super) fn mark_hot(fields: &mut [FieldUse]) {
    let total: f64 = fields.iter().map(|field| field.access_share.value).sum();
    let mut before = 0.0;
    for field in fields {
        field.hot = before < HOT_SHARE * total;
        before += field.access_share.value;
    }
}

/// Examines a structure. `None` with fewer than two members or too few uses.
pub(super) fn of(profile: &Profile, id: RecordId, fields: &[FieldUse]) -> Option<Layout> {
    let record = profile.records.get(id.0 as usize)?;
    let mut within: Vec<FieldUse> = fields.iter().filter(|field| field.record == Some(id)).cloned().collect();
    let n: u64 = within.iter().map(|field| field.access_share.n).sum();
    if record.members.len() < 2 || n < FEWEST_USES || !(1..=1 << 16).contains(&record.bytes) {
        return None;
    }
    mark_hot(&mut within);
    let is_in = |field: &FieldUse, member: &Member| {
        let at = profile.fields.get(field.field.0 as usize).map(|field| field.record_offset);
        at.is_some_and(|at| (member.offset..member.offset + member.bytes.max(1)).contains(&at))
    };
    let is_hot = |member: &Member| within.iter().filter(|field| field.hot).any(|field| is_in(field, member));
    let (hot, cold): (Vec<usize>, Vec<usize>) =
        (0..record.members.len()).partition(|index| record.members.get(*index).is_some_and(is_hot));
    // Accesses to padding, or to bytes without a member.
    if hot.is_empty() {
        return None;
    }
    let share = |member: &Member| {
        let within = within.iter().filter(|field| is_in(field, member));
        within.fold(0.0, |sum, field| sum + field.access_share.value)
    };
    Some(arrange(id, record, hot, cold, share))
}

/// Members and holes by offset; overlapping members (unions) follow in turn.
fn pieces(record: &Record, share: impl Fn(&Member) -> f64) -> Vec<Piece> {
    let mut members: Vec<(usize, &Member)> = record.members.iter().enumerate().collect();
    members.sort_by_key(|(index, member)| (member.offset, *index));
    let (mut pieces, mut end) = (Vec::new(), 0);
    let hole = |from: u64, until: u64| {
        (from < until).then(|| Piece { member: None, offset: from, bytes: until - from, access_share: 0.0 })
    };
    for (index, member) in members {
        pieces.extend(hole(end, member.offset));
        let Member { offset, bytes, .. } = *member;
        pieces.push(Piece { member: Some(index), offset, bytes, access_share: share(member) });
        end = end.max(offset.saturating_add(bytes));
    }
    pieces.extend(hole(end, record.bytes));
    pieces
}

fn arrange(
    id: RecordId,
    record: &Record,
    hot: Vec<usize>,
    cold: Vec<usize>,
    share: impl Fn(&Member) -> f64,
) -> Layout {
    let members = |indices: &[usize]| -> Vec<&Member> {
        indices.iter().filter_map(|index| record.members.get(*index)).collect()
    };
    let (hots, colds) = (members(&hot), members(&cold));
    let now: Vec<(u64, u64)> = hots.iter().map(|member| (member.offset, member.bytes)).collect();
    let before = (record.bytes, lines(record.bytes, &now));
    let change = |bytes: u64, after: (f64, f64)| Change {
        bytes: (before.0, bytes),
        visit_lines: (before.1.0, after.0),
        sweep_lines: (before.1.1, after.1),
    };
    let (alone, packed) = pack(&[&hots]);
    let (all, reordered) = pack(&[&hots, &colds]);
    let first = hots.iter().map(|member| member.offset).min().unwrap_or(0);
    let last = hots.iter().map(|member| member.offset + member.bytes).max().unwrap_or(0);
    let pieces = pieces(record, share);
    Layout {
        record: id,
        hot_bytes: hots.iter().map(|member| member.bytes).sum(),
        hot_span: last - first,
        padding: pieces.iter().filter(|piece| piece.member.is_none()).map(|piece| piece.bytes).sum(),
        split: change(alone, lines(alone, &packed)),
        reorder: change(all, lines(all, &reordered)),
        hot,
        cold,
        pieces,
    }
}

/// Required alignment of a member.
fn alignment(member: &Member) -> u64 {
    if member.align.is_power_of_two() { member.align.min(1 << 12) } else { 1 }
}

/// Places groups of members in turn, each by falling alignment. Returns the bytes of an
/// element, and the first group's position. Overlapping members (unions) are placed once.
fn pack(groups: &[&[&Member]]) -> (u64, Vec<(u64, u64)>) {
    let (mut end, mut widest) = (0_u64, 1);
    let mut placed = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        let mut members: Vec<&&Member> = group.iter().collect();
        members.sort_by_key(|member| (std::cmp::Reverse(alignment(member)), member.offset));
        let mut at: Vec<(u64, u64)> = Vec::new();
        for member in members {
            let span = (member.offset, member.offset + member.bytes);
            if at.iter().any(|(from, until)| span.0 < *until && *from < span.1) {
                continue;
            }
            at.push(span);
            widest = widest.max(alignment(member));
            let start = end.next_multiple_of(alignment(member));
            end = start + member.bytes;
            if number == 0 {
                placed.push((start, member.bytes));
            }
        }
    }
    (end.next_multiple_of(widest).max(1), placed)
}

/// Lines with hot bytes, for elements of a size: per visit
/// of an element, mean over places; per element of a sweep.
fn lines(bytes: u64, hot: &[(u64, u64)]) -> (f64, f64) {
    // Elements that fill whole lines.
    let elements = LINE >> bytes.trailing_zeros().min(LINE.trailing_zeros());
    let mut all: Vec<u64> = Vec::new();
    let mut visits = 0;
    for element in 0..elements {
        let mut own: Vec<u64> = hot
            .iter()
            .flat_map(|(offset, len)| {
                let first = element * bytes + offset;
                first / LINE..=(first + len.max(&1) - 1) / LINE
            })
            .collect();
        own.sort_unstable();
        own.dedup();
        visits += own.len();
        all.extend(own);
    }
    all.sort_unstable();
    all.dedup();
    (visits as f64 / elements as f64, all.len() as f64 / elements as f64)
}

#[cfg(test)]
mod tests;
