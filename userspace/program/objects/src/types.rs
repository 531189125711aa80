//! Types as a small graph: types contained by value are in it, types of pointers' targets are named
//! by their entry and read on request ([`crate::type_reader`]).

use std::collections::HashMap;
use std::sync::Arc;

use crate::debug::Die;
use crate::named::{Declared, TypeId};

/// Extent of a flexible array member: more than any object.
pub(crate) const FLEXIBLE: u64 = 1 << 62;

/// A type's entry, and the module it is in.
pub(crate) type TypeDie = (u32, Die);

/// A type.
#[derive(Debug, Clone)]
pub(crate) struct Type {
    pub(crate) name: Arc<str>,
    /// `None` where only the running program knows.
    pub(crate) bytes: Option<u64>,
    pub(crate) declared: Option<Declared>,
    pub(crate) shape: Shape,
}

/// What a type is made of.
#[derive(Debug, Clone)]
pub(crate) enum Shape {
    /// No parts, or none that is known.
    Scalar,
    /// `None`: a pointer without a target type.
    Pointer { to: Option<TypeDie> },
    /// Struct, class, union, Fortran type, Rust enum. By offset; members may overlap. `element` is
    /// the template parameter `T` of Rust's containers, which forget it in the pointers they have.
    Record { members: Vec<Member>, element: Option<TypeDie> },
    /// `count` over all dimensions.
    Array { element: TypeId, stride: u64, count: Option<u64>, dimensions: u8 },
    /// A name for another type.
    Alias { of: TypeId },
}

/// A member of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// Empty for anonymous members and base classes, whose own members are spoken of directly.
    pub(crate) name: Arc<str>,
    pub(crate) ty: TypeId,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// First bit, counted from `offset`, and number of bits.
    pub(crate) bits: Option<(u64, u64)>,
}

impl Member {
    /// First offset after it.
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }

    /// An array without a length at the end of its record.
    pub(crate) fn is_flexible(&self) -> bool {
        self.bytes == FLEXIBLE
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Identity {
    name: Arc<str>,
    bytes: u64,
    declared: Option<Declared>,
    members: Vec<(Arc<str>, u64, u64, u64)>,
}

/// All types of one resolver.
#[derive(Debug, Default)]
pub(crate) struct Types {
    types: Vec<Type>,
    /// `None` for what cannot be read: not tried again.
    pub(crate) by_die: HashMap<TypeDie, Option<TypeId>>,
    records: HashMap<Identity, TypeId>,
    unnamed: Option<TypeId>,
}

impl Types {
    pub(crate) fn get(&self, id: TypeId) -> Option<&Type> {
        self.types.get(id.0 as usize)
    }

    /// The same without aliases.
    pub(crate) fn strip(&self, mut id: TypeId) -> TypeId {
        while let Some(Type { shape: Shape::Alias { of }, .. }) = self.get(id) {
            id = *of;
        }
        id
    }

    pub(crate) fn bytes(&self, id: TypeId) -> Option<u64> {
        self.get(id)?.bytes
    }

    /// True when objects of the type may be longer than it.
    pub(crate) fn is_flexible(&self, id: TypeId) -> bool {
        match self.get(self.strip(id)).map(|ty| &ty.shape) {
            Some(Shape::Record { members, .. }) => members.last().is_some_and(Member::is_flexible),
            _ => false,
        }
    }

    /// The type at an entry, if it was read before.
    pub(crate) fn known(&self, die: TypeDie) -> Option<TypeId> {
        self.by_die.get(&die).copied().flatten()
    }

    pub(crate) fn add(&mut self, ty: Type) -> TypeId {
        self.push(ty)
    }

    /// Adds a record, or finds the equal one from another unit. `signatures` separate targets of
    /// members.
    pub(crate) fn add_record(&mut self, ty: Type, signatures: &[u64]) -> TypeId {
        let Shape::Record { members, .. } = &ty.shape else { return self.push(ty) };
        let member = |(m, signature): (&Member, &u64)| (Arc::clone(&m.name), m.offset, m.bytes, *signature);
        let identity = Identity {
            name: Arc::clone(&ty.name),
            bytes: ty.bytes.unwrap_or(0),
            declared: ty.declared.clone(),
            members: members.iter().zip(signatures).map(member).collect(),
        };
        if let Some(known) = self.records.get(&identity) {
            return *known;
        }
        let id = self.push(ty);
        self.records.insert(identity, id);
        id
    }

    fn push(&mut self, ty: Type) -> TypeId {
        let id = TypeId(u32::try_from(self.types.len()).unwrap_or(u32::MAX));
        self.types.push(ty);
        id
    }

    /// For an object without a readable type.
    pub(crate) fn unnamed(&mut self) -> TypeId {
        if let Some(id) = self.unnamed {
            return id;
        }
        let id = self.push(Type { name: "?".into(), bytes: None, declared: None, shape: Shape::Scalar });
        self.unnamed = Some(id);
        id
    }
}
