//! A named object: a variable, or the memory that a pointer variable points at.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::program::TypeRef;

/// What a variable's name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The static variable itself.
    Static,
    /// The thread-local variable itself.
    ThreadLocal,
    /// The variable in its function's frame.
    Stack,
    /// The target of the named pointer: in most programs a heap block.
    Pointee,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Static => "static",
            Kind::ThreadLocal => "thread-local",
            Kind::Stack => "stack",
            Kind::Pointee => "pointee",
        })
    }
}

/// Order and equality are those of the object: kind, name, and place of the variable.
#[derive(Clone)]
pub(crate) struct Named {
    /// As the source would say it: `grid->cells`.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Whether the name's first variable outlives its function.
    pub(crate) is_global: bool,
    /// Place of the variable's declaration.
    pub(crate) file: Option<Arc<str>>,
    pub(crate) line: u32,
    pub(crate) function: Option<Arc<str>>,
    /// Type of the object; for a pointer's target, type of one element.
    pub(crate) of: Option<TypeRef>,
    /// Further names of the pointer.
    pub(crate) aliases: BTreeSet<String>,
    /// The function that returned the pointer, and the place of the call.
    pub(crate) made_by: Option<(String, String)>,
}

impl Named {
    /// An object with a name alone.
    pub(crate) fn bare(name: String, kind: Kind) -> Self {
        Named {
            name,
            kind,
            is_global: true,
            file: None,
            line: 0,
            function: None,
            of: None,
            aliases: BTreeSet::new(),
            made_by: None,
        }
    }

    fn key(&self) -> (Kind, &str, Option<&str>, u32, Option<&str>) {
        (self.kind, &self.name, self.file.as_deref(), self.line, self.function.as_deref())
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Named {}

impl PartialOrd for Named {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Named {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.key())
    }
}
