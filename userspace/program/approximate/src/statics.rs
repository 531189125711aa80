//! Where the static and thread-local variables of all units lie: addresses only, so that one pass
//! over the debug information of a large program stays cheap. Names and types are read with the
//! unit when one is asked for.

use std::collections::BTreeMap;

use gimli::{AttributeValue, UnitRef};

use crate::debug::UnitAt;
use crate::module::Slice;
use crate::types::TypeAt;
use crate::unit::{Spot, spot};

/// Start of each variable to its unit and entry.
pub(crate) type Starts = BTreeMap<u64, (UnitAt, TypeAt)>;

/// All variables of a module with a single place.
#[derive(Debug, Default)]
pub(crate) struct Statics {
    pub(crate) by_address: Starts,
    /// By offset in the thread-local block.
    pub(crate) thread_local: Starts,
}

impl Statics {
    /// Adds the variables of one unit, up to a fault in it.
    pub(crate) fn add<'a>(&mut self, unit: UnitRef<'a, Slice<'a>>, at: UnitAt) -> gimli::Result<()> {
        let mut entries = unit.entries_raw(None)?;
        while !entries.is_empty() {
            let entry = entries.next_offset().0;
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            let attributes = abbreviation.attributes();
            let has_place = || attributes.iter().any(|attribute| attribute.name() == gimli::DW_AT_location);
            if abbreviation.tag() != gimli::DW_TAG_variable || !has_place() {
                entries.skip_attributes(attributes)?;
                continue;
            }
            for attribute in attributes {
                let attribute = entries.read_attribute(*attribute)?;
                if let (gimli::DW_AT_location, AttributeValue::Exprloc(place)) =
                    (attribute.name(), attribute.value())
                {
                    match spot(&unit, place) {
                        // Variables that the linker threw away lie at 0.
                        Some(Spot::Address(address)) if address != 0 => {
                            self.by_address.entry(address).or_insert((at, entry));
                        }
                        Some(Spot::ThreadLocal(offset)) => {
                            self.thread_local.entry(offset).or_insert((at, entry));
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}
