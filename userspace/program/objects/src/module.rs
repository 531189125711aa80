//! A module of the process in the resolver: file, place, and the current index.

use std::sync::Arc;

use locality_symbols::ModuleFile;

use crate::debug::{Debug, DebugFaults};
use crate::elf::DataElf;
use crate::named::{Kind, Object, ObjectId};
use crate::statics::Statics;
use crate::types::Types;

/// A loaded ELF file.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) file: ModuleFile,
    pub(crate) elf: DataElf,
    /// Process address minus module address (wrapping).
    pub(crate) bias: u64,
    pub(crate) path: Arc<str>,
    /// Device and inode.
    pub(crate) key: ((u32, u32), u64),
    indexed: Option<(Option<Arc<Debug>>, Statics)>,
}

/// Data to describe an object of a module beside its index.
pub(crate) struct Context<'c> {
    pub(crate) file: &'c ModuleFile,
    pub(crate) path: &'c Arc<str>,
    pub(crate) elf: &'c DataElf,
    pub(crate) module: u32,
    /// `None` without debug information.
    pub(crate) faults: Option<DebugFaults>,
    /// Debug sections that cannot be read, with the reason.
    pub(crate) trouble: &'c [String],
    pub(crate) types: &'c mut Types,
    pub(crate) objects: &'c mut Vec<Arc<Object>>,
}

impl Module {
    pub(crate) fn new(file: ModuleFile, elf: DataElf, bias: u64, key: ((u32, u32), u64)) -> Self {
        let path = Arc::from(file.info().path.as_str());
        Self { file, elf, bias, path, key, indexed: None }
    }

    /// Makes the index, the first time.
    pub(crate) fn index(&mut self) {
        if self.indexed.is_none() {
            let derived = || self.file.derived(|| Debug::index(&self.elf, &self.file));
            let debug = self.elf.has_dwarf.then(derived).flatten();
            let statics = Statics::new(&self.elf, &self.file, debug.as_deref());
            self.indexed = Some((debug, statics));
        }
    }

    /// Context for the description of the module's objects: the
    /// first call makes the index. `number` is the module's.
    pub(crate) fn context<'c>(
        &'c mut self,
        number: u32,
        types: &'c mut Types,
        objects: &'c mut Vec<Arc<Object>>,
    ) -> (Context<'c>, Option<&'c Debug>, Option<&'c mut Statics>) {
        self.index();
        let (debug, statics) = match &mut self.indexed {
            Some((debug, statics)) => (debug.as_deref(), Some(statics)),
            None => (None, None),
        };
        let faults = debug.map(|debug| debug.faults);
        let (file, path, elf) = (&self.file, &self.path, &self.elf);
        let trouble = debug.map_or(&[][..], |debug| &debug.trouble);
        (Context { file, path, elf, module: number, faults, trouble, types, objects }, debug, statics)
    }

    /// The index over its DWARF, if present and indexed.
    pub(crate) fn debug(&self) -> Option<&Debug> {
        self.indexed.as_ref()?.0.as_deref()
    }
}

impl Context<'_> {
    /// An object of this module without facts yet.
    pub(crate) fn blank(&self, kind: Kind) -> Object {
        Object { module: Some(Arc::clone(self.path)), ..blank(kind) }
    }

    /// Gives the object its number.
    pub(crate) fn add(&mut self, object: Object) -> Arc<Object> {
        add(self.objects, object)
    }

    /// Why a description is missing, with a remedy.
    pub(crate) fn undescribed(&self, what: &str) -> Arc<str> {
        match self.faults {
            None => format!("{what}: no debug info (install its -dbgsym package or build with -g)").into(),
            _ if !self.trouble.is_empty() => {
                format!("{what}: its debug info cannot be read ({})", self.trouble.join(", ")).into()
            }
            Some(faults) if faults.split > 0 => {
                format!(
                    "{what}: its debug info is split into .dwo files that were not found or cannot be read (keep them where the build puts \
                     them, or put the package that `dwp` or `llvm-dwp` makes of them beside the program as PROGRAM.dwp; type units of DWARF 4 \
                     are not read)"
                )
                .into()
            }
            Some(faults) if faults.broken > 0 => {
                format!("{what}: {} units of its debug info cannot be read", faults.broken).into()
            }
            Some(_) => what.into(),
        }
    }
}

/// An object without any facts yet.
pub(crate) fn blank(kind: Kind) -> Object {
    Object {
        id: ObjectId(u32::MAX),
        kind,
        name: Arc::from(""),
        function: None,
        type_name: None,
        ty: None,
        module: None,
        declared: None,
        bytes: 0,
        site: None,
        inferred: false,
        unknown: None,
    }
}

/// Gives the object its number.
pub(crate) fn add(objects: &mut Vec<Arc<Object>>, mut object: Object) -> Arc<Object> {
    object.id = ObjectId(u32::try_from(objects.len()).unwrap_or(u32::MAX));
    let object = Arc::new(object);
    objects.push(Arc::clone(&object));
    object
}

/// Adds facts to a numbered object.
pub(crate) fn replace(objects: &mut [Arc<Object>], object: Object) -> Arc<Object> {
    let object = Arc::new(object);
    if let Some(known) = objects.get_mut(object.id.0 as usize) {
        *known = Arc::clone(&object);
    }
    object
}
