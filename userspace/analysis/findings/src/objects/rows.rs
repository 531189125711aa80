//! Equal objects of a profile: a row for an allocation context;
//! without a context, for a name, type and declaration.
//!
//! Blocks of a context may have been reached by several variables: the row has the name of
//! the object with the most accesses. Two allocation stacks are one context if frames
//! agree in function, file and line (module `calling_context`). Objects of several
//! processes running one program fall together, as do blocks of a site whatever the sizes.

use std::collections::HashMap;

use locality_estimate::calling_context::{ContextId, Contexts};
use locality_model::{ModuleId, Object, ObjectId, ObjectKind, Profile};

/// The identity of an object.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    Allocated {
        kind: ObjectKind,
        site: ContextId,
    },
    Named {
        kind: ObjectKind,
        name: &'a str,
        type_name: Option<&'a str>,
        function: Option<&'a str>,
        module: Option<ModuleId>,
        declared: Option<&'a (String, Option<u32>)>,
        inferred: bool,
    },
}

/// Rows of a profile.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rows {
    of_object: Vec<usize>,
    named_by: Vec<ObjectId>,
    bytes: Vec<Option<u64>>,
}

impl Rows {
    /// Finds the rows.
    pub fn of(profile: &Profile, contexts: &Contexts) -> Self {
        let mut rows = Self::default();
        let mut accesses: HashMap<ObjectId, u64> = HashMap::new();
        for located in &profile.located {
            *accesses.entry(located.object).or_default() += 1;
        }
        let mut known: HashMap<Key<'_>, usize> = HashMap::new();
        for (id, object) in (0..).map(ObjectId).zip(&profile.objects) {
            let next = rows.named_by.len();
            let row = *known.entry(key(object, contexts)).or_insert(next);
            if row == next {
                rows.named_by.push(id);
                rows.bytes.push(None);
            }
            rows.of_object.push(row);
            // Of two with as many, the first.
            if let Some(named_by) = rows.named_by.get_mut(row)
                && accesses.get(&id) > accesses.get(named_by)
            {
                *named_by = id;
            }
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

    /// A row's representative object.
    pub fn object(&self, row: usize) -> Option<ObjectId> {
        self.named_by.get(row).copied()
    }

    /// Size of a row's largest object.
    pub fn bytes(&self, row: usize) -> Option<u64> {
        self.bytes.get(row).copied().flatten()
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.named_by.len()
    }

    /// Whether the profile has no rows.
    pub fn is_empty(&self) -> bool {
        self.named_by.is_empty()
    }
}

fn key<'a>(object: &'a Object, contexts: &Contexts) -> Key<'a> {
    let kind = object.kind;
    match object.site.and_then(|site| contexts.of(site)) {
        Some(site) => Key::Allocated { kind, site },
        None => Key::Named {
            kind,
            name: &object.name,
            type_name: object.type_name.as_deref(),
            function: object.function.as_deref(),
            module: object.module,
            declared: object.declared.as_ref(),
            inferred: object.inferred,
        },
    }
}
