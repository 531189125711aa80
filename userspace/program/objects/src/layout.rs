//! How a struct lies in memory (pahole's view). What another layout would save: `locality_findings`.
//!
//! Nested structs are taken apart; arrays in a struct are one field, and so are unions and
//! bit-fields with a common byte.

use std::sync::Arc;

use crate::named::{Declared, TypeId};
use crate::resolver::Resolver;
use crate::types::{Member, Shape, Types};

/// Nesting that is taken apart.
const MAX_LEVELS: usize = 32;

/// A struct as it lies in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The type.
    pub ty: TypeId,
    /// Its name.
    pub name: Arc<str>,
    /// Size in bytes: the distance of two elements of an array.
    pub bytes: u64,
    /// Alignment in bytes required by its fields.
    pub align: u64,
    /// Place of the declaration in the source.
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
    /// Required alignment in bytes; 1 for a hole.
    pub align: u64,
    /// `None` for a hole.
    pub type_name: Option<Arc<str>>,
}

impl Resolver {
    /// The layout of a struct; for an array or alias, the layout of the struct inside. `None` for
    /// types without fields.
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

    /// Lines that an element spans from a line's start.
    pub fn lines(&self, line_bytes: u64) -> u64 {
        self.bytes.div_ceil(line_bytes.max(1))
    }
}

impl LayoutField {
    /// First offset after it.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }

    /// True for bytes that no field uses.
    pub fn is_hole(&self) -> bool {
        self.type_name.is_none()
    }
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

/// True when all members begin at the same offset.
fn is_union(members: &[Member]) -> bool {
    members.len() > 1 && members.iter().all(|member| member.offset == 0 && member.bytes > 0)
}

/// Alignment allowed by the offset: packed structs align nothing.
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

    #[test]
    fn holes() {
        let layout = scalars(&[1, 8, 1, 8]);
        assert_eq!((layout.bytes, layout.padding()), (32, 14));
        assert_eq!(layout.field_at(3).unwrap().path.as_ref(), "<padding>");
    }
}
