//! Which objects of a profile mean the same thing to a reader: one row for all of one name, type, declaration and allocation context.
//!
//! Two allocation stacks are one context when their frames agree in function, file and line (module `context`). Objects of several
//! processes that run the same program fall together; so do blocks of one site whatever their sizes.

use std::collections::HashMap;

use crate::context::{ContextId, Contexts};
use crate::model::{ModuleId, Object, ObjectId, ObjectKind, Profile};

/// What makes two objects the same.
#[derive(PartialEq, Eq, Hash)]
struct Key<'a> {
    kind: ObjectKind,
    name: &'a str,
    type_name: Option<&'a str>,
    function: Option<&'a str>,
    module: Option<ModuleId>,
    declared: Option<&'a (String, Option<u32>)>,
    site: Option<ContextId>,
    inferred: bool,
}

/// Rows of a profile.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rows {
    of_object: Vec<usize>,
    first: Vec<ObjectId>,
    bytes: Vec<Option<u64>>,
}

impl Rows {
    /// Finds the rows.
    pub fn of(profile: &Profile, contexts: &Contexts) -> Self {
        let mut rows = Self::default();
        let mut known: HashMap<Key<'_>, usize> = HashMap::new();
        for (id, object) in (0..).zip(&profile.objects) {
            let next = rows.first.len();
            let row = *known.entry(key(object, contexts)).or_insert(next);
            if row == next {
                rows.first.push(ObjectId(id));
                rows.bytes.push(None);
            }
            rows.of_object.push(row);
            if let Some(bytes) = rows.bytes.get_mut(row) {
                *bytes = (*bytes).max(object.bytes);
            }
        }
        rows
    }

    /// Row of an object.
    pub fn row(&self, object: ObjectId) -> Option<usize> {
        self.of_object.get(object.0 as usize).copied()
    }

    /// The object that stands for a row.
    pub fn first(&self, row: usize) -> Option<ObjectId> {
        self.first.get(row).copied()
    }

    /// Size of a row's largest object.
    pub fn bytes(&self, row: usize) -> Option<u64> {
        self.bytes.get(row).copied().flatten()
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.first.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }
}

fn key<'a>(object: &'a Object, contexts: &Contexts) -> Key<'a> {
    Key {
        kind: object.kind,
        name: &object.name,
        type_name: object.type_name.as_deref(),
        function: object.function.as_deref(),
        module: object.module,
        declared: object.declared.as_ref(),
        site: object.site.and_then(|site| contexts.of(site)),
        inferred: object.inferred,
    }
}
