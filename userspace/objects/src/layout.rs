//! How a struct lies in memory and in cache lines, and what another order or a split would save (pahole's view, with the
//! shares of accesses that pahole does not know).
//!
//! Nested structs are taken apart; arrays in a struct are one field, so are unions, and bit-fields that share bytes. A new order keeps each field's size and
//! alignment; what the program's correctness demands of the order (wire formats, casts, C++ bases) is not known here.
//!
//! Lines per element are counted over the positions that elements of an array take relative to line starts, for an array
//! that begins at a line's start: the mean number of lines that one visit of the hot fields touches.

use std::sync::Arc;

use crate::named::{Declared, TypeId};
use crate::resolver::Resolver;
use crate::types::{Member, Shape, Types};

/// Nesting that is taken apart.
const MAX_LEVELS: usize = 32;
/// Share of the accesses that the hot fields of a split must have together.
const HOT_SHARE: f64 = 0.9;

/// A struct as it lies in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The type.
    pub ty: TypeId,
    /// Its name.
    pub name: Arc<str>,
    /// Size in bytes: the distance of two elements of an array.
    pub bytes: u64,
    /// Alignment in bytes that its fields ask for.
    pub align: u64,
    /// Where the source declares it.
    pub declared: Option<Declared>,
    /// By offset.
    pub fields: Vec<LayoutField>,
}

/// A field of a [`Layout`], or a hole between fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutField {
    /// Path in the struct: `pos.x`, `name[]`; `<padding>` for a hole.
    pub path: Arc<str>,
    /// Offset in bytes.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Alignment in bytes that it asks for; 1 for a hole.
    pub align: u64,
    /// `None` for a hole.
    pub type_name: Option<Arc<str>>,
}

/// The part of a struct's accesses that fall on the field at an offset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// Any offset within the field, as [`crate::Field::offset_within`] has it.
    pub offset: u64,
    /// Accesses, in any unit; only their proportions count.
    pub weight: f64,
}

/// A field and where it would go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// Index in [`Layout::fields`].
    pub field: usize,
    /// New offset in bytes.
    pub offset: u64,
}

/// What a change of the struct would save.
#[derive(Debug, Clone, PartialEq)]
pub enum Advice {
    /// Put the cold fields into a struct of their own, so that an array of the hot ones is denser.
    Split {
        /// The fields that stay, in their new order.
        hot: Vec<Move>,
        /// Size of the hot struct in bytes.
        hot_bytes: u64,
        /// Share of the accesses that fall on the hot fields.
        hot_share: f64,
        /// Lines that one visit of an element's hot fields touches, before.
        lines_before: f64,
        /// The same after.
        lines_after: f64,
    },
    /// Another order of the same fields, the hottest first within their alignment.
    Reorder {
        /// All fields, in their new order.
        order: Vec<Move>,
        /// Size of the struct in bytes then.
        bytes: u64,
        /// Lines that one visit of an element's hot fields touches, before.
        lines_before: f64,
        /// The same after.
        lines_after: f64,
    },
}

impl Resolver {
    /// The layout of a struct; of an array or alias, that of the struct in it. `None` for what has no fields.
    pub fn layout(&self, ty: TypeId) -> Option<Layout> {
        Layout::of(&self.types, ty)
    }
}

impl Layout {
    pub(crate) fn of(types: &Types, ty: TypeId) -> Option<Self> {
        let mut id = types.strip(ty);
        while let Some(Shape::Array { element, .. }) = types.get(id).map(|ty| &ty.shape) {
            id = types.strip(*element);
        }
        let found = types.get(id)?;
        let bytes = found.bytes?;
        let Shape::Record { members, .. } = &found.shape else { return None };
        let mut fields = Vec::new();
        leaves(types, members, 0, "", &mut fields, 0);
        let align = fields.iter().map(|field| field.align).max().unwrap_or(1);
        let fields = with_holes(fields, bytes);
        Some(Self {
            ty: id,
            name: Arc::clone(&found.name),
            bytes,
            align,
            declared: found.declared.clone(),
            fields,
        })
    }

    /// The field around an offset in the struct.
    pub fn field_at(&self, offset: u64) -> Option<&LayoutField> {
        self.fields.iter().find(|field| (field.offset..field.end()).contains(&offset))
    }

    /// Bytes in holes and at the end that no field uses.
    pub fn padding(&self) -> u64 {
        self.fields.iter().filter(|field| field.is_hole()).map(|field| field.bytes).sum()
    }

    /// Lines that an element spans when it begins at a line's start.
    pub fn lines(&self, line_bytes: u64) -> u64 {
        self.bytes.div_ceil(line_bytes.max(1))
    }

    /// What changes would save, the best first; empty when nothing would. `line_bytes` is a power of two.
    pub fn advice(&self, shares: &[Share], line_bytes: u64) -> Vec<Advice> {
        let total: f64 = shares.iter().map(|share| share.weight.max(0.0)).sum();
        if self.fields.is_empty() || self.bytes == 0 || line_bytes == 0 {
            return Vec::new();
        }
        let mut weights = vec![0.0; self.fields.len()];
        for share in shares {
            let at = self.fields.iter().position(|f| (f.offset..f.end()).contains(&share.offset));
            if let Some(weight) = at.and_then(|at| weights.get_mut(at)) {
                *weight += share.weight.max(0.0);
            }
        }
        let hot = self.hot(&weights, total);
        let lines_before = mean_lines(&self.extents(&hot), self.bytes, line_bytes);
        let mut advice = Vec::new();
        let cold = self.real().any(|index| !hot.contains(&index));
        if cold && !hot.is_empty() {
            let (moves, hot_bytes) = self.pack(&hot);
            let extents = self.moved(&moves);
            let lines_after = mean_lines(&extents, hot_bytes, line_bytes);
            let of_hot = |index: &usize| weights.get(*index).copied().unwrap_or(0.0);
            let hot_share = hot.iter().map(of_hot).sum::<f64>() / total;
            // Denser is worth it also where a visit touches one line anyway: more elements share the line.
            let denser = lines_after <= lines_before && hot_bytes * 2 <= self.bytes;
            if hot_bytes < self.bytes && (lines_after < lines_before || denser) {
                advice.push(Advice::Split { hot: moves, hot_bytes, hot_share, lines_before, lines_after });
            }
        }
        let mut order: Vec<usize> = self.real().collect();
        let weight = |index: usize| weights.get(index).copied().unwrap_or(0.0);
        order.sort_by(|&a, &b| {
            let align = |index: usize| self.fields.get(index).map_or(1, |field| field.align);
            let by_align = align(b).cmp(&align(a));
            let by_heat = weight(b).total_cmp(&weight(a));
            by_align.then(by_heat).then(a.cmp(&b))
        });
        let (moves, bytes) = self.place(&order);
        let visited: Vec<Move> =
            moves.iter().filter(|m| hot.is_empty() || hot.contains(&m.field)).cloned().collect();
        let lines_after = mean_lines(&self.moved(&visited), bytes, line_bytes);
        let better = bytes < self.bytes || lines_after < lines_before;
        if better && bytes <= self.bytes {
            advice.push(Advice::Reorder { order: moves, bytes, lines_before, lines_after });
        }
        advice
    }

    /// The fewest fields that have [`HOT_SHARE`] of the accesses together, by offset.
    fn hot(&self, weights: &[f64], total: f64) -> Vec<usize> {
        let mut by_weight: Vec<usize> = self.real().collect();
        let weight = |index: usize| weights.get(index).copied().unwrap_or(0.0);
        by_weight.sort_by(|&a, &b| weight(b).total_cmp(&weight(a)).then(a.cmp(&b)));
        let (mut sum, mut hot) = (0.0, Vec::new());
        for index in by_weight {
            if weight(index) <= 0.0 || sum >= HOT_SHARE * total {
                break;
            }
            sum += weight(index);
            hot.push(index);
        }
        hot.sort_unstable();
        hot
    }

    /// Indices of the fields that are no holes.
    fn real(&self) -> impl Iterator<Item = usize> {
        self.fields.iter().enumerate().filter(|(_, field)| !field.is_hole()).map(|(index, _)| index)
    }

    /// The fields with the largest alignment first: no holes but at the end.
    fn pack(&self, fields: &[usize]) -> (Vec<Move>, u64) {
        let mut order = fields.to_vec();
        order.sort_by_key(|&index| std::cmp::Reverse(self.fields.get(index).map_or(1, |field| field.align)));
        self.place(&order)
    }

    /// Offsets in this order, and the size that follows.
    fn place(&self, order: &[usize]) -> (Vec<Move>, u64) {
        let (mut end, mut align, mut moves) = (0u64, 1, Vec::new());
        for &index in order {
            let Some(field) = self.fields.get(index) else { continue };
            let offset = end.next_multiple_of(field.align);
            moves.push(Move { field: index, offset });
            end = offset.saturating_add(field.bytes);
            align = align.max(field.align);
        }
        (moves, end.next_multiple_of(align))
    }

    fn extents(&self, fields: &[usize]) -> Vec<(u64, u64)> {
        let all: Vec<usize> = self.real().collect();
        let fields = if fields.is_empty() { &all[..] } else { fields };
        fields.iter().filter_map(|&index| self.fields.get(index)).map(|f| (f.offset, f.end())).collect()
    }

    fn moved(&self, moves: &[Move]) -> Vec<(u64, u64)> {
        let bytes = |field: usize| self.fields.get(field).map_or(0, |field| field.bytes);
        moves.iter().map(|m| (m.offset, m.offset.saturating_add(bytes(m.field)))).collect()
    }
}

impl LayoutField {
    /// First offset behind it.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }

    /// True for bytes that no field uses.
    pub fn is_hole(&self) -> bool {
        self.type_name.is_none()
    }
}

/// Mean number of lines that the extents touch, over the elements of an array that begins at a line's start. Large fields
/// (arrays in the struct) count whole.
fn mean_lines(extents: &[(u64, u64)], stride: u64, line_bytes: u64) -> f64 {
    let line_bytes = line_bytes.max(1);
    // Element starts repeat their positions in a line after this many elements.
    let period = line_bytes / gcd(stride.max(1), line_bytes);
    let mut lines = 0u64;
    for element in 0..period {
        let base = element * (stride % line_bytes);
        let mut touched: Vec<(u64, u64)> = extents
            .iter()
            .filter(|(start, end)| start < end)
            .map(|(start, end)| ((base + start) / line_bytes, (base + end - 1) / line_bytes))
            .collect();
        touched.sort_unstable();
        let mut next = 0;
        for (first, last) in touched {
            let first = first.max(next);
            if last >= first {
                lines += last - first + 1;
                next = last + 1;
            }
        }
    }
    lines as f64 / period as f64
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Appends the fields of a record, nested ones taken apart.
fn leaves(
    types: &Types,
    members: &[Member],
    base: u64,
    prefix: &str,
    into: &mut Vec<LayoutField>,
    level: usize,
) {
    let overlaps = |member: &Member| {
        members.iter().any(|other| {
            !std::ptr::eq(other, member)
                && other.offset < member.end()
                && member.offset < other.end()
                && other.bytes > 0
        })
    };
    let mut at = 0;
    while let Some(member) = members.get(at) {
        at += 1;
        let bytes = if member.is_flexible() { 0 } else { member.bytes };
        let dot = if prefix.is_empty() || member.name.is_empty() { "" } else { "." };
        let path = format!("{prefix}{dot}{}", member.name);
        let stripped = types.strip(member.ty);
        let Some(ty) = types.get(stripped) else { continue };
        let offset = base.saturating_add(member.offset);
        if overlaps(member) {
            // Members that share bytes can only move together.
            let (mut end, mut names, mut align) = (member.end(), vec![&*member.name], 1);
            align = alignment(types, member.ty, 0).max(align);
            while let Some(next) = members.get(at).filter(|next| next.offset < end) {
                end = end.max(next.end());
                align = align.max(alignment(types, next.ty, 0));
                names.push(&next.name);
                at += 1;
            }
            names.truncate(8);
            into.push(LayoutField {
                path: format!("{prefix}{}({})", if prefix.is_empty() { "" } else { "." }, names.join("|"))
                    .into(),
                offset,
                bytes: end - member.offset,
                align: natural(align, offset),
                type_name: Some(Arc::clone(&ty.name)),
            });
            continue;
        }
        match &ty.shape {
            Shape::Record { members: inner, .. }
                if level < MAX_LEVELS && !inner.is_empty() && !is_union(inner) =>
            {
                leaves(types, inner, offset, &path, into, level + 1);
            }
            shape => {
                let mark = match shape {
                    Shape::Array { dimensions, .. } => "[]".repeat(usize::from(*dimensions)),
                    _ => String::new(),
                };
                into.push(LayoutField {
                    path: format!("{path}{mark}").into(),
                    offset,
                    bytes,
                    align: natural(alignment(types, member.ty, 0), offset),
                    type_name: Some(Arc::clone(&ty.name)),
                });
            }
        }
    }
}

/// True when all members begin at the same place.
fn is_union(members: &[Member]) -> bool {
    members.len() > 1 && members.iter().all(|member| member.offset == 0 && member.bytes > 0)
}

/// What the offset allows: packed structs align nothing.
fn natural(align: u64, offset: u64) -> u64 {
    if offset == 0 { align } else { align.min(1 << offset.trailing_zeros().min(12)) }
}

/// The alignment that the ABI gives a type (System V, AMD64 supplement, §3.1.2).
fn alignment(types: &Types, ty: TypeId, level: usize) -> u64 {
    let Some(found) = types.get(types.strip(ty)) else { return 1 };
    match &found.shape {
        _ if level > MAX_LEVELS => 1,
        Shape::Array { element, .. } => alignment(types, *element, level + 1),
        Shape::Record { members, .. } => {
            members.iter().map(|member| alignment(types, member.ty, level + 1)).max().unwrap_or(1)
        }
        _ => match found.bytes.unwrap_or(1) {
            0 => 1,
            bytes if bytes.is_power_of_two() => bytes.min(16),
            // `_Complex` and Fortran's character strings.
            bytes => 1 << bytes.trailing_zeros().min(3),
        },
    }
}

/// Fills in holes. Fields may not overlap.
fn with_holes(mut fields: Vec<LayoutField>, bytes: u64) -> Vec<LayoutField> {
    fields.sort_by_key(|field| field.offset);
    let hole = |start: u64, end: u64| LayoutField {
        path: "<padding>".into(),
        offset: start,
        bytes: end - start,
        align: 1,
        type_name: None,
    };
    let (mut all, mut end) = (Vec::with_capacity(fields.len()), 0);
    for field in fields {
        if field.offset > end {
            all.push(hole(end, field.offset));
        }
        end = end.max(field.end());
        all.push(field);
    }
    if bytes > end {
        all.push(hole(end, bytes));
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A struct of scalars with these sizes, laid out as C does.
    fn scalars(sizes: &[u64]) -> Layout {
        let (mut end, mut align, mut fields) = (0u64, 1, Vec::new());
        for (index, &bytes) in sizes.iter().enumerate() {
            let offset = end.next_multiple_of(bytes);
            let path = format!("f{index}").into();
            fields.push(LayoutField { path, offset, bytes, align: bytes, type_name: Some("s".into()) });
            end = offset + bytes;
            align = align.max(bytes);
        }
        let bytes = end.next_multiple_of(align);
        let fields = with_holes(fields, bytes);
        Layout { ty: TypeId(0), name: "s".into(), bytes, align, declared: None, fields }
    }

    fn share(layout: &Layout, path: &str, weight: f64) -> Share {
        let field = layout.fields.iter().find(|field| &*field.path == path).unwrap();
        Share { offset: field.offset, weight }
    }

    /// Two hot doubles among 128 bytes: an element's visit goes from two lines or more to one quarter of a line.
    #[test]
    fn split() {
        let layout = scalars(&[8; 16]);
        let shares = [share(&layout, "f0", 50.0), share(&layout, "f15", 49.0), share(&layout, "f7", 1.0)];
        let advice = layout.advice(&shares, 64);
        let Some(Advice::Split { hot, hot_bytes, hot_share, lines_before, lines_after }) = advice.first()
        else {
            panic!("{advice:?}")
        };
        assert_eq!(hot, &[Move { field: 0, offset: 0 }, Move { field: 15, offset: 8 }]);
        assert_eq!((*hot_bytes, *lines_before, *lines_after), (16, 2.0, 1.0));
        assert!((hot_share - 0.99).abs() < 1e-9);
        let reorder = advice.iter().find_map(|advice| match advice {
            Advice::Reorder { lines_after, bytes, .. } => Some((*lines_after, *bytes)),
            Advice::Split { .. } => None,
        });
        assert_eq!(reorder, Some((1.0, 128)));
    }

    #[test]
    fn holes() {
        let layout = scalars(&[1, 8, 1, 8]);
        assert_eq!((layout.bytes, layout.padding(), layout.lines(64)), (32, 14, 1));
        assert_eq!(layout.field_at(3).unwrap().path.as_ref(), "<padding>");
        let advice = layout.advice(&[], 64);
        let [Advice::Reorder { order, bytes: 24, .. }] = &advice[..] else { panic!("{advice:?}") };
        assert_eq!(order.iter().map(|m| m.offset).collect::<Vec<_>>(), [0, 8, 16, 17]);
        assert_eq!(scalars(&[8, 8]).advice(&[], 64), []);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Lines counted byte by byte over as many elements as a line has bytes.
        #[test]
        fn lines_by_hand(
            extents in proptest::collection::vec((0u64..200, 1u64..40), 1..5),
            stride in 1u64..300,
            line in prop_oneof![Just(32u64), Just(64)],
        ) {
            let extents: Vec<(u64, u64)> = extents.iter().map(|(start, len)| (*start, start + len)).collect();
            let mut lines = 0;
            for element in 0..line {
                let bytes = extents.iter().flat_map(|(start, end)| *start..*end);
                let touched: std::collections::HashSet<u64> =
                    bytes.map(|byte| (element * stride + byte) / line).collect();
                lines += touched.len();
            }
            let wanted = lines as f64 / line as f64;
            prop_assert!((mean_lines(&extents, stride, line) - wanted).abs() < 1e-9);
        }

        /// A new order loses no field, overlaps none, keeps alignments, and is never larger.
        #[test]
        fn orders_are_layouts(
            sizes in proptest::collection::vec(prop_oneof![Just(1u64), Just(2), Just(4), Just(8)], 1..12),
            weights in proptest::collection::vec(0.0f64..10.0, 12),
        ) {
            let layout = scalars(&sizes);
            let shares: Vec<Share> = layout
                .fields
                .iter()
                .filter(|field| !field.is_hole())
                .zip(&weights)
                .map(|(field, &weight)| Share { offset: field.offset, weight })
                .collect();
            for advice in layout.advice(&shares, 64) {
                let (moves, bytes) = match advice {
                    Advice::Split { hot, hot_bytes, lines_before, lines_after, .. } => {
                        prop_assert!(hot_bytes < layout.bytes && lines_after <= lines_before);
                        (hot, hot_bytes)
                    }
                    Advice::Reorder { order, bytes, .. } => {
                        prop_assert_eq!(order.len(), sizes.len());
                        (order, bytes)
                    }
                };
                prop_assert!(bytes <= layout.bytes);
                let mut used = vec![false; bytes as usize];
                for m in &moves {
                    let field = &layout.fields[m.field];
                    prop_assert!(m.offset.is_multiple_of(field.align));
                    for byte in m.offset..m.offset + field.bytes {
                        prop_assert!(!std::mem::replace(&mut used[byte as usize], true));
                    }
                }
            }
        }
    }
}
