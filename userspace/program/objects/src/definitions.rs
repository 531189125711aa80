//! Definitions of structs that units of a module only declare, by name. Made at the first request.
//!
//! Names are not qualified: of two structs with one name and different sizes neither is taken.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use gimli::{AttributeValue, constants as dw};

use crate::debug::Die;
use crate::elf::Slice;
use crate::session::Session;

/// Entries and sizes by the hash of the name; `None` if sizes differ.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    by_name: HashMap<u64, Option<(Die, u64)>, BuildHasherDefault<DefaultHasher>>,
}

impl Definitions {
    /// Reads all units of the module; the rest of a broken unit is left out.
    pub(crate) fn find(session: &Session<'_>, units: usize) -> Self {
        let mut this = Self::default();
        for unit in 0..units {
            let Ok(unit) = u32::try_from(unit) else { break };
            let _ = this.read(session, unit);
            session.forget(unit);
        }
        this
    }

    pub(crate) fn get(&self, name: &str) -> Option<Die> {
        (*self.by_name.get(&self.hash(name.as_bytes()))?).map(|(die, _)| die)
    }

    fn hash(&self, name: &[u8]) -> u64 {
        self.by_name.hasher().hash_one(name)
    }

    fn read(&mut self, session: &Session<'_>, index: u32) -> Result<(), gimli::Error> {
        let Some(unit) = session.unit(index) else { return Ok(()) };
        let mut entries = unit.entries_raw(None)?;
        while !entries.is_empty() {
            let offset = entries.next_offset();
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            let wanted = matches!(
                abbreviation.tag(),
                dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type
            );
            let declaration =
                abbreviation.attributes().iter().any(|spec| spec.name() == dw::DW_AT_declaration);
            if !wanted || declaration {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let (mut name, mut bytes): (Option<AttributeValue<Slice<'_>>>, u64) = (None, 0);
            for spec in abbreviation.attributes() {
                let attribute = entries.read_attribute(*spec)?;
                match attribute.name() {
                    dw::DW_AT_name => name = Some(attribute.value()),
                    dw::DW_AT_byte_size => bytes = attribute.udata_value().unwrap_or(0),
                    _ => {}
                }
            }
            let Some(name) = name.and_then(|name| session.dwarf.attr_string(&unit, name).ok()) else {
                continue;
            };
            let Ok(offset) = u32::try_from(offset.0) else { continue };
            let hash = self.hash(name.slice());
            match self.by_name.entry(hash) {
                Entry::Vacant(vacant) => {
                    vacant.insert(Some((Die { unit: index, offset }, bytes)));
                }
                Entry::Occupied(mut known) => {
                    if known.get().is_some_and(|(_, other)| other != bytes) {
                        known.insert(None);
                    }
                }
            }
        }
        Ok(())
    }
}
