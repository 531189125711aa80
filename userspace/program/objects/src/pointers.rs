//! The pointers inside a type: their offsets, targets and names in the source.
//!
//! Containers of the standard libraries are spoken of as one thing: the block of a `Vec` or
//! `std::vector` named `cells` is `cells`, whatever the private members on the way are called.

use crate::named::TypeId;
use crate::types::{Shape, TypeDie, Types};

/// Nesting that is followed.
const MAX_LEVELS: usize = 24;
/// Pointers of one type: beyond, the rest is left out.
const MAX_POINTERS: usize = 256;

/// A pointer, or an array of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub(crate) offset: u64,
    /// Distance and number of the repeated ones.
    pub(crate) stride: u64,
    pub(crate) count: u64,
    /// `.next`, `[]`, empty when the object itself is the pointer.
    pub(crate) path: String,
    /// A container's own.
    pub(crate) closed: bool,
    pub(crate) to: TypeDie,
}

/// All pointers of a type with a known target type.
pub(crate) fn pointers(types: &Types, ty: TypeId) -> Vec<Pointer> {
    let mut search = Search { types, found: Vec::new(), element: None, closed: false };
    search.visit(ty, 0, &mut String::new(), (0, 1), 0);
    search.found
}

struct Search<'t> {
    types: &'t Types,
    found: Vec<Pointer>,
    /// What the containers around contain.
    element: Option<TypeDie>,
    /// Inside a container: members have no name of their own.
    closed: bool,
}

impl Search<'_> {
    fn visit(&mut self, ty: TypeId, offset: u64, path: &mut String, repeat: (u64, u64), level: usize) {
        if level > MAX_LEVELS || self.found.len() >= MAX_POINTERS {
            return;
        }
        let Some(found) = self.types.get(self.types.strip(ty)) else { return };
        match &found.shape {
            Shape::Pointer { to: Some(to) } => {
                let to = self.element.unwrap_or(*to);
                let (stride, count) = repeat;
                self.found.push(Pointer {
                    offset,
                    stride,
                    count,
                    path: path.clone(),
                    closed: self.closed,
                    to,
                });
            }
            // Of arrays in arrays only the inner one's first elements are followed.
            Shape::Array { element, stride, count, dimensions } => {
                let len = path.len();
                path.push_str(&"[]".repeat(usize::from(*dimensions)));
                let inner = if repeat.1 > 1 { repeat } else { (*stride, count.unwrap_or(0)) };
                if inner.1 > 0 {
                    self.visit(*element, offset, path, inner, level + 1);
                }
                path.truncate(len);
            }
            Shape::Record { members, element } => {
                let (outer, was_closed) = (self.element, self.closed);
                self.element = self.element.or(*element);
                self.closed |= is_container(&found.name);
                for member in members {
                    if member.bits.is_some() || self.closed && is_end(&member.name) {
                        continue;
                    }
                    let len = path.len();
                    if !member.name.is_empty() && !self.closed {
                        path.push('.');
                        path.push_str(&member.name);
                    }
                    self.visit(member.ty, offset.saturating_add(member.offset), path, repeat, level + 1);
                    path.truncate(len);
                }
                (self.element, self.closed) = (outer, was_closed);
            }
            _ => {}
        }
    }
}

/// Owners of memory in the standard libraries of C++ and Rust, and slices.
fn is_container(name: &str) -> bool {
    // Go's slices.
    if name.starts_with("[]") {
        return true;
    }
    let name = name.split('<').next().unwrap_or(name);
    [
        "vector",
        "unique_ptr",
        "shared_ptr",
        "deque",
        "list",
        "forward_list",
        "map",
        "set",
        "multimap",
        "multiset",
        "unordered_map",
        "unordered_set",
        "basic_string",
        "Vec",
        "VecDeque",
        "Box",
        "Rc",
        "Arc",
        "String",
        "HashMap",
        "HashSet",
        "BTreeMap",
        "BTreeSet",
        "NonNull",
        "Unique",
    ]
    .contains(&name)
}

/// Members that point after the last element.
fn is_end(name: &str) -> bool {
    ["_M_finish", "_M_end_of_storage", "__end_", "__end_cap_"].contains(&name)
}
