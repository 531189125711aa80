//! From an offset in a type to the field at the offset.
//!
//! An address has no width: if several members share the byte (unions,
//! bit-fields, variants of a Rust enum), every member is named, `(a|b)`,
//! and the descent ends. Only variants with data at the byte count.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use crate::named::{Field, TypeId};
use crate::types::{Member, Shape, Types};

/// Levels of nesting that are followed.
const MAX_LEVELS: usize = 128;
/// Most named members that share a byte.
const MAX_NAMED: usize = 4;

/// Fields by type and offset with all indices 0.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    known: HashMap<(TypeId, bool, u64), Arc<Field>>,
}

/// A step from a type into it.
enum Step<'t> {
    /// Into an element.
    Element { dimensions: u8, element: TypeId },
    /// Into a member at this offset of its record.
    Member(&'t Member),
    /// Several members; the descent ends.
    Several(&'t [Member], u64),
    /// Between members; the descent ends.
    Padding,
}

/// Where a descent ended.
#[derive(Clone, Copy)]
struct Leaf {
    /// Offset of the field with all indices 0.
    offset: u64,
    bytes: u64,
    ty: Option<TypeId>,
}

impl Fields {
    /// The field at an offset of an object of type `ty`, or of an array of `ty` when `repeated`.
    /// `None` when the offset lies outside the type.
    pub(crate) fn at(
        &mut self,
        types: &Types,
        ty: TypeId,
        repeated: bool,
        offset: u64,
    ) -> Option<Arc<Field>> {
        let bytes = types.bytes(ty).filter(|&bytes| bytes > 0);
        let offset = match (repeated, bytes) {
            (true, Some(bytes)) => offset % bytes,
            (true, None) => return None,
            (false, _) => offset,
        };
        let leaf = descend(types, ty, offset, &mut |_, _| {})?;
        let key = (ty, repeated, leaf.offset);
        if let Some(field) = self.known.get(&key) {
            return Some(Arc::clone(field));
        }
        let field = Arc::new(build(types, ty, repeated, offset)?);
        self.known.insert(key, Arc::clone(&field));
        Some(field)
    }
}

fn build(types: &Types, ty: TypeId, repeated: bool, offset: u64) -> Option<Field> {
    let is_record =
        |id: TypeId| matches!(types.get(types.strip(id)).map(|ty| &ty.shape), Some(Shape::Record { .. }));
    let mut path = String::from(if repeated { "[]" } else { "" });
    let mut within = is_record(ty).then(|| types.strip(ty));
    let mut path_within = String::new();
    let mut base_within = 0;
    let leaf = descend(types, ty, offset, &mut |step, base| match step {
        Step::Element { dimensions, element } => {
            for _ in 0..dimensions {
                path.push_str("[]");
                path_within.push_str("[]");
            }
            if is_record(element) {
                within = Some(types.strip(element));
                path_within.clear();
                base_within = base;
            }
        }
        Step::Member(member) => {
            if !member.name.is_empty() {
                let _ = write!(path, ".{}", member.name);
                let dot = if path_within.is_empty() { "" } else { "." };
                let _ = write!(path_within, "{dot}{}", member.name);
            }
        }
        Step::Several(members, at) => {
            let names = several(types, members, at);
            let _ = write!(path, ".({names})");
            let dot = if path_within.is_empty() { "" } else { "." };
            let _ = write!(path_within, "{dot}({names})");
        }
        Step::Padding => {
            path.push_str(".<padding>");
            path_within.push_str(if path_within.is_empty() { "<padding>" } else { ".<padding>" });
        }
    })?;
    let type_name = leaf.ty.and_then(|ty| types.get(ty)).map(|ty| Arc::clone(&ty.name));
    Some(Field {
        path: path.into(),
        offset: leaf.offset,
        bytes: leaf.bytes,
        type_name,
        within,
        path_within: path_within.into(),
        offset_within: leaf.offset.saturating_sub(base_within),
    })
}

fn several(types: &Types, members: &[Member], at: u64) -> String {
    let here: Vec<&Member> = members.iter().filter(|member| has_data(types, member, at, 0)).collect();
    let mut names: Vec<&str> = here.iter().map(|member| &*member.name).collect();
    for name in &mut names {
        if name.is_empty() {
            *name = "<anonymous>";
        }
    }
    names.dedup();
    let more = if names.len() > MAX_NAMED { "|…" } else { "" };
    names.truncate(MAX_NAMED);
    format!("{}{more}", names.join("|"))
}

/// Walks from `ty` to the field at `offset`; `visit` sees
/// each step with the step's offset (every index 0).
fn descend(types: &Types, ty: TypeId, offset: u64, visit: &mut dyn FnMut(Step<'_>, u64)) -> Option<Leaf> {
    let (mut at, mut rest, mut base) = (ty, offset, 0u64);
    for level in 0..MAX_LEVELS {
        at = types.strip(at);
        let ty = types.get(at)?;
        match &ty.shape {
            Shape::Array { element, stride, count, dimensions } if *stride > 0 => {
                if count.is_some_and(|count| count > 0 && rest / stride >= count) {
                    return None;
                }
                rest %= stride;
                visit(Step::Element { dimensions: *dimensions, element: *element }, base);
                at = *element;
            }
            Shape::Record { members, .. } => {
                let mut here = covering(members, rest);
                let first = here.next();
                let Some(first) = first else {
                    if level == 0 && ty.bytes.is_none_or(|bytes| rest >= bytes) {
                        return None;
                    }
                    visit(Step::Padding, base);
                    let (start, end) = hole(members, rest, ty.bytes.unwrap_or(rest + 1));
                    return Some(Leaf { offset: base + start, bytes: end - start, ty: None });
                };
                let member = if here.next().is_none() {
                    first
                } else {
                    // Variants and unions without padding at the offset.
                    let mut with_data =
                        covering(members, rest).filter(|member| has_data(types, member, rest, 0));
                    match (with_data.next(), with_data.next()) {
                        (Some(only), None) => only,
                        (None, _) => {
                            visit(Step::Padding, base);
                            return Some(Leaf { offset: base + rest, bytes: 1, ty: None });
                        }
                        (Some(_), Some(_)) => {
                            visit(Step::Several(members, rest), base);
                            let start = covering(members, rest).map(|m| m.offset).max().unwrap_or(rest);
                            let end = covering(members, rest).map(Member::end).max().unwrap_or(rest + 1);
                            return Some(Leaf { offset: base + start, bytes: end - start, ty: None });
                        }
                    }
                };
                visit(Step::Member(member), base + member.offset);
                base += member.offset;
                rest -= member.offset;
                if member.bits.is_some() {
                    return Some(Leaf { offset: base, bytes: member.bytes, ty: Some(member.ty) });
                }
                at = member.ty;
            }
            _ => {
                let bytes = ty.bytes.unwrap_or(0);
                if level == 0 && rest > 0 && rest >= bytes {
                    return None;
                }
                if bytes > 0 && rest >= bytes {
                    // The end of an element's stride.
                    visit(Step::Padding, base);
                    return Some(Leaf { offset: base + bytes, bytes: rest - bytes + 1, ty: None });
                }
                return Some(Leaf { offset: base, bytes, ty: Some(at) });
            }
        }
    }
    None
}

/// Members whose extent covers the offset.
fn covering(members: &[Member], offset: u64) -> impl Iterator<Item = &Member> {
    let behind = members.partition_point(|member| member.offset <= offset);
    members.get(..behind).unwrap_or_default().iter().filter(move |member| offset < member.end())
}

/// The bytes without members around an offset.
pub(crate) fn hole(members: &[Member], offset: u64, bytes: u64) -> (u64, u64) {
    let end_before = members.iter().map(Member::end).filter(|end| *end <= offset).max();
    let start_after = members.iter().map(|m| m.offset).filter(|start| *start > offset).min();
    (end_before.unwrap_or(0), start_after.unwrap_or(bytes).max(offset + 1))
}

/// True when the member has more than padding at an offset of its record.
fn has_data(types: &Types, member: &Member, offset: u64, level: usize) -> bool {
    let Some(rest) = offset.checked_sub(member.offset).filter(|rest| *rest < member.bytes) else {
        return false;
    };
    if level > MAX_LEVELS || member.bits.is_some() {
        return true;
    }
    match types.get(types.strip(member.ty)).map(|ty| &ty.shape) {
        Some(Shape::Record { members, .. }) => {
            covering(members, rest).any(|member| has_data(types, member, rest, level + 1))
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::types::Type;

    /// A type as the oracle sees it: nothing shared, every byte by itself.
    #[derive(Debug, Clone)]
    enum Model {
        Scalar(u64),
        Record(Vec<(u64, Model)>),
        Array(u64, Box<Model>),
    }

    impl Model {
        fn bytes(&self) -> u64 {
            match self {
                Self::Scalar(bytes) => *bytes,
                Self::Record(members) => {
                    members.iter().map(|(gap, model)| gap + model.bytes()).sum::<u64>() + 1
                }
                Self::Array(count, model) => count * model.bytes(),
            }
        }

        fn build(&self, types: &mut Types) -> TypeId {
            let shape = match self {
                Self::Scalar(_) => Shape::Scalar,
                Self::Record(models) => {
                    let (mut at, mut members) = (0, Vec::new());
                    for (index, (gap, model)) in models.iter().enumerate() {
                        at += gap;
                        let (ty, bytes) = (model.build(types), model.bytes());
                        members.push(Member {
                            name: format!("m{index}").into(),
                            ty,
                            offset: at,
                            bytes,
                            bits: None,
                        });
                        at += bytes;
                    }
                    Shape::Record { members, element: None }
                }
                Self::Array(count, model) => {
                    let element = model.build(types);
                    Shape::Array { element, stride: model.bytes(), count: Some(*count), dimensions: 1 }
                }
            };
            types.add(Type { name: "t".into(), bytes: Some(self.bytes()), declared: None, shape })
        }

        /// For each byte: path, and offset of its field with all indices 0.
        fn walk(&self, path: &str, base: u64, into: &mut Vec<(String, u64)>) {
            match self {
                Self::Scalar(bytes) => {
                    into.extend((0..*bytes).map(|_| (path.to_owned(), base)));
                }
                Self::Array(count, model) => {
                    for _ in 0..*count {
                        model.walk(&format!("{path}[]"), base, into);
                    }
                }
                Self::Record(members) => {
                    let mut at = 0;
                    let hole = |start: u64, bytes: u64, into: &mut Vec<_>| {
                        into.extend((0..bytes).map(|_| (format!("{path}.<padding>"), base + start)));
                    };
                    let mut start = 0;
                    for (index, (gap, model)) in members.iter().enumerate() {
                        hole(start, *gap, into);
                        at += gap;
                        model.walk(&format!("{path}.m{index}"), base + at, into);
                        at += model.bytes();
                        start = at;
                    }
                    hole(start, 1, into);
                }
            }
        }
    }

    fn model() -> impl Strategy<Value = Model> {
        let scalar = (1u64..9).prop_map(Model::Scalar);
        scalar.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec((0u64..3, inner.clone()), 1..4).prop_map(Model::Record),
                (1u64..4, inner).prop_map(|(count, model)| Model::Array(count, Box::new(model))),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Every byte of a random type has the path that taking the type apart by hand gives it.
        #[test]
        fn every_byte(model in model(), repeated in any::<bool>()) {
            let mut types = Types::default();
            let ty = model.build(&mut types);
            let mut wanted = Vec::new();
            model.walk(if repeated { "[]" } else { "" }, 0, &mut wanted);
            prop_assert_eq!(wanted.len() as u64, model.bytes());
            let mut fields = Fields::default();
            for (offset, (path, start)) in wanted.iter().enumerate() {
                let offset = offset as u64 + if repeated { 3 * model.bytes() } else { 0 };
                let field = fields.at(&types, ty, repeated, offset).unwrap();
                prop_assert_eq!(&*field.path, path.as_str());
                prop_assert_eq!(field.offset, *start);
                // The part within the innermost repeated struct is the end of the whole path.
                prop_assert!(field.path.ends_with(&*field.path_within) || field.path_within.is_empty());
            }
            let outside = fields.at(&types, ty, false, model.bytes());
            prop_assert!(outside.is_none());
        }
    }
}
