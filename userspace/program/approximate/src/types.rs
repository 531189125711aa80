//! Types of one compilation unit, as far as naming needs them: a pointer's target, the member at an
//! offset.
//!
//! Type units and types of other units are unknown, which costs member names only.

use std::collections::HashMap;
use std::sync::Arc;

/// Offset of a type's entry in its unit.
pub(crate) type TypeAt = usize;

/// Most types that are followed one into another; broken debug information may have cycles.
const DEEPEST: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Typedef, const and the like.
    Alias,
    Pointer,
    Array,
    /// Struct, class or union.
    Struct,
    /// Number, enumeration, function, unknown.
    Other,
}

/// One type entry.
#[derive(Debug, Clone)]
pub(crate) struct Type {
    pub(crate) shape: Shape,
    /// Keyword before the name: "struct", "union", "const".
    pub(crate) prefix: &'static str,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) size: Option<u64>,
    /// Aliased, pointed at or element type.
    pub(crate) target: Option<TypeAt>,
    /// Elements of an array, the product of its dimensions; 0 if open.
    pub(crate) count: u64,
    pub(crate) members: Vec<Member>,
}

#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) offset: u64,
    /// `None` for base classes and anonymous members.
    pub(crate) name: Option<Arc<str>>,
    pub(crate) of: Option<TypeAt>,
}

/// All types of a unit.
#[derive(Debug, Default)]
pub(crate) struct Types(pub(crate) HashMap<TypeAt, Type>);

impl Types {
    /// The type without typedefs and qualifiers.
    pub(crate) fn plain(&self, at: TypeAt) -> Option<(TypeAt, &Type)> {
        let mut at = at;
        for _ in 0..DEEPEST {
            let found = self.0.get(&at)?;
            if found.shape != Shape::Alias {
                return Some((at, found));
            }
            at = found.target?;
        }
        None
    }

    /// What a pointer or array of that type holds; for arrays of arrays the innermost element.
    pub(crate) fn pointee(&self, at: TypeAt) -> Option<TypeAt> {
        let (_, plain) = self.plain(at)?;
        match plain.shape {
            Shape::Pointer | Shape::Array => plain.target,
            _ => None,
        }
    }

    pub(crate) fn is_pointer(&self, at: TypeAt) -> bool {
        self.plain(at).is_some_and(|(_, plain)| plain.shape == Shape::Pointer)
    }

    pub(crate) fn size(&self, at: TypeAt) -> Option<u64> {
        let mut factor = 1_u64;
        let mut at = at;
        for _ in 0..DEEPEST {
            let (_, plain) = self.plain(at)?;
            match plain.shape {
                Shape::Pointer => return factor.checked_mul(8),
                Shape::Array if plain.size.is_none() => {
                    factor = factor.checked_mul(plain.count)?;
                    at = plain.target?;
                }
                _ => return factor.checked_mul(plain.size?),
            }
        }
        None
    }

    /// As the language's users write it, as far as that is simple.
    pub(crate) fn name(&self, at: TypeAt) -> Option<String> {
        self.name_within(at, DEEPEST)
    }

    fn name_within(&self, at: TypeAt, depth: usize) -> Option<String> {
        let found = self.0.get(&at)?;
        let inner = || {
            let depth = depth.checked_sub(1)?;
            found.target.map_or(Some("void".to_owned()), |target| self.name_within(target, depth))
        };
        match (found.shape, &found.name) {
            (Shape::Pointer, None) => inner().map(|of| if of.ends_with('*') { of + "*" } else { of + " *" }),
            (Shape::Array, _) => inner().map(|of| format!("{of}[{}]", found.count)),
            (_, Some(name)) => Some([found.prefix, name].join(" ").trim_start().to_owned()),
            (Shape::Alias, None) => inner().map(|of| [found.prefix, &of].join(" ").trim_start().to_owned()),
            (Shape::Struct, None) => Some(format!("{} (unnamed)", found.prefix)),
            (Shape::Other, None) => None,
        }
    }

    /// The path of members and elements from a value of the type to an offset that is known up to
    /// multiples of `modulus` (0: exactly), and the type there: `.head.next`, `[].vx`. Empty at a
    /// plain value. `None` when the offset does not tell a single member.
    pub(crate) fn path(&self, at: TypeAt, offset: i64, modulus: u64) -> Option<(String, TypeAt)> {
        let (mut path, mut at, mut offset, mut modulus) = (String::new(), at, offset, modulus);
        for _ in 0..DEEPEST {
            let (plain_at, plain) = self.plain(at)?;
            match plain.shape {
                Shape::Array => {
                    at = plain.target?;
                    path.push_str("[]");
                    (offset, modulus) = within(offset, modulus, self.size(at)?)?;
                }
                Shape::Struct => {
                    (offset, modulus) = within(offset, modulus, plain.size?)?;
                    if modulus != 0 {
                        return self.whole(plain).then_some((path, plain_at));
                    }
                    let member = self.member(plain, u64::try_from(offset).ok()?)?;
                    if let Some(name) = &member.name {
                        path.push('.');
                        path.push_str(name);
                    }
                    offset -= i64::try_from(member.offset).ok()?;
                    at = member.of?;
                }
                _ => return Some((path, at)),
            }
        }
        None
    }

    /// Whether a struct has no members, hence is one value.
    fn whole(&self, plain: &Type) -> bool {
        plain.members.is_empty()
    }

    /// The member that covers the offset; of a union the first.
    fn member<'a>(&self, of: &'a Type, offset: u64) -> Option<&'a Member> {
        of.members.iter().find(|member| {
            let size = member.of.and_then(|at| self.size(at)).unwrap_or(1).max(1);
            let inside = offset.checked_sub(member.offset).is_some_and(|inside| inside < size);
            inside && !member.of.is_some_and(|at| self.is_empty(at, 4))
        })
    }

    /// Whether values of the type hold nothing: C++'s allocators as base classes.
    fn is_empty(&self, at: TypeAt, depth: usize) -> bool {
        let Some(deeper) = depth.checked_sub(1) else { return false };
        self.plain(at).is_some_and(|(_, plain)| {
            let nothing = |member: &Member| member.of.is_some_and(|of| self.is_empty(of, deeper));
            // Few members and levels: broken types may hold themselves.
            plain.shape == Shape::Struct
                && plain.size.is_some_and(|size| size <= 1)
                && plain.members.len() <= 8
                && plain.members.iter().all(nothing)
        })
    }
}

/// An offset into a sequence of values of `size` bytes as an offset into one of them. Where the
/// offset is known up to multiples of something that is no multiple of the size, it is not known
/// within a value, unless it is a whole value.
fn within(offset: i64, modulus: u64, size: u64) -> Option<(i64, u64)> {
    let size = i64::try_from(size).ok().filter(|size| *size > 0)?;
    let known = modulus == 0 || modulus.is_multiple_of(size as u64);
    Some(if known { (offset.rem_euclid(size), 0) } else { (offset, modulus) })
}
