//! The values that a [`crate::Resolver`] answers with. Cheap to clone: texts are shared.

use std::fmt;
use std::sync::Arc;

/// Where an object lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A variable at a fixed place of a module, or a section of one.
    Static,
    /// A local variable or parameter, or a frame of the stack.
    Stack,
    /// One thread's copy of a variable.
    ThreadLocal,
    /// A block that an allocator handed out.
    Heap,
    /// Memory without a file: anonymous, named by its owner, or of the kernel.
    Mapped,
    /// A file that is mapped as data.
    File,
}

impl Kind {
    /// As the report's JSON has it. `ThreadLocal` is `"thread-local"`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Stack => "stack",
            Self::ThreadLocal => "thread-local",
            Self::Heap => "heap",
            Self::Mapped => "mapped",
            Self::File => "file",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Distinguishes objects of one [`crate::Resolver`]: equal for every access to the same variable,
/// or to heap blocks of one allocation site; a stack variable is one object in all frames of its
/// function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub u32);

/// A type of one [`crate::Resolver`]. Types of several modules and units with equal name, size and
/// declaration are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(pub u32);

/// A place in the source.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Declared {
    /// As in the debug information, absolute if it gives the directory.
    pub file: Arc<str>,
    /// 1-based; 0 where only the file is known.
    pub line: u32,
}

/// A data object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Of its resolver.
    pub id: ObjectId,
    /// Its storage.
    pub kind: Kind,
    /// The variable's name, qualified and demangled (`ns::Grid::count`); `main [stack]` for a place
    /// in a frame without a variable; a section (`[.rodata]`), a path, or a mapping in brackets
    /// without a variable. An unnamed heap block is `[heap]` until its allocation site names it.
    pub name: Arc<str>,
    /// The function of a stack variable or function-local static.
    pub function: Option<Arc<str>>,
    /// As in the source, without `const` and `volatile`: `cell [100]`, `node *`. Of a heap block,
    /// its element's type.
    pub type_name: Option<Arc<str>>,
    /// Of a variable the type; of a heap block the type of the elements.
    pub ty: Option<TypeId>,
    /// Path of the variable's module, as the process sees it; of a stack variable, of its
    /// function's module.
    pub module: Option<Arc<str>>,
    /// Place of the declaration in the source.
    pub declared: Option<Declared>,
    /// Size in bytes; 0 if unknown. Of a heap object the size of the largest block seen.
    pub bytes: u64,
    /// Allocation site, as [`crate::HeapBlock::site`] has it.
    pub site: Option<u64>,
    /// Name and type come from a pointer to the block (or
    /// from the allocator's bookkeeping), not from a record.
    pub inferred: bool,
    /// Why name, type or declaration are missing, as a sentence for the user.
    pub unknown: Option<Arc<str>>,
}

/// The part of an object that an address lies in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// From the object's name on: `[].vx`, `.head.next`, `.u.(a|b)`. Array indices are left out:
    /// all elements share one field. Empty when the object has no parts. Padding is `.<padding>`.
    pub path: Arc<str>,
    /// Offset of the field in the object with all indices 0.
    pub offset: u64,
    /// Size of the field in bytes; of padding, of the hole.
    pub bytes: u64,
    /// Type of the field; `None` for padding.
    pub type_name: Option<Arc<str>>,
    /// The struct to lay out better when this field is hot or cold: the innermost struct passed
    /// that is an element of an array, or else the object's own; see [`crate::Layout`].
    pub within: Option<TypeId>,
    /// The field's path in the struct, in the form of [`crate::LayoutField::path`].
    pub path_within: Arc<str>,
    /// Offset in that struct.
    pub offset_within: u64,
}

/// The answer for one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The object at the address.
    pub object: Arc<Object>,
    /// Offset of the address in the object (in a file: file offset), in bytes.
    pub offset: u64,
    /// The touched part of the object, if the type is known.
    pub field: Option<Arc<Field>>,
}

impl Named {
    /// The object's name and the field's path, as a report shows it: `cells[].vx`.
    pub fn full_name(&self) -> String {
        match &self.field {
            Some(field) => format!("{}{}", self.object.name, field.path),
            None => self.object.name.to_string(),
        }
    }
}
