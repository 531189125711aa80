//! A simulation's results by function and line, over the processes of the run.
//!
//! A function is a symbol within a module. Inlined code belongs to the surrounding function,
//! at the inlined code's lines. Code without a symbol, but in the unwind table, is named by
//! the start address (not with `--compatible callgrind`). Code without a name belongs to the
//! function of the current call: to a named function of the module after a jump from the
//! function, otherwise to the code's own address. Stubs of a procedure linkage table belong
//! to the calling function. Both rules are Callgrind's. Limits: functions of one module with
//! equal names (`static` functions of different files) are merged.

use std::collections::{HashMap, HashSet};

use locality_cachesim::{Column, Named, SelfCost, Totals, UNKNOWN_CALLER_NAME};
use locality_report::schema::costs::UNKNOWN;
use locality_stream::NO_INSTRUCTION;

use super::objects::Objects;
use crate::{image::Image, names::Names};

/// A function's number among [`Simulated::functions`].
pub type FunctionNumber = u32;
/// Part of a line: loads and stores have little in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Place {
    /// The file's number among [`Simulated::files`].
    pub file: u32,
    /// 0: not known.
    pub line: u32,
    /// Whether the instruction only stores.
    pub stores: bool,
}

/// A function's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionName {
    /// The function's own name.
    pub name: String,
    /// The file of the first sighting, a number among [`Simulated::files`].
    pub file: u32,
    /// The ELF file; empty without a module.
    pub module: String,
}

/// Results of the run.
#[derive(Debug, Default)]
pub struct Simulated {
    /// Functions by number.
    pub functions: Vec<FunctionName>,
    /// Source files by number.
    pub files: Vec<String>,
    /// The results.
    pub named: Named<FunctionNumber, Place>,
    /// Processes with unbalanced sums: 0, unless the program has an error.
    pub unbalanced: u64,
    /// Costs by data object.
    pub objects: Objects,
    numbers: HashMap<(String, String), FunctionNumber>,
    file_numbers: HashMap<String, u32>,
}

impl Simulated {
    /// Adds the results of an image.
    pub fn add(&mut self, image: &Image, totals: &Totals, names: &mut Names) {
        self.unbalanced += u64::from(!totals.balances());
        image.objects.charge(&totals.objects, &mut self.objects);
        let mut totals = totals.clone();
        let costs = totals.self_costs.iter().map(|cost| cost.instruction);
        let functions = totals.functions.iter().map(|function| function.instruction);
        let arcs = totals.arcs.iter().map(|arc| arc.instruction);
        names.ahead(image, costs.chain(functions).chain(arcs));
        let homes: Vec<(u32, u64)> =
            totals.functions.iter().map(|function| (function.instruction, function.entry)).collect();
        let home = |function: u32| homes.get(function as usize).copied().filter(|home| home.1 != 0);
        for cost in &mut totals.self_costs {
            if names.is_linkage(image, cost.instruction)
                || image.is_skipped(cost.instruction)
                || home(cost.function).is_some_and(|home| is_nameless(image, cost.instruction, home.0, names))
            {
                // Costs without an address are the function's own.
                cost.address = 0;
            }
        }
        for arc in &mut totals.arcs {
            if let Some(home) = home(arc.caller)
                && (image.is_skipped(arc.instruction) || is_nameless(image, arc.instruction, home.0, names))
            {
                (arc.instruction, arc.site) = home;
            }
        }
        let entries: HashSet<u64> = totals.functions.iter().map(|function| function.entry).collect();
        let loads = |cost: &&SelfCost| cost.costs[Column::Dr] > 0;
        let stores = |cost: &&SelfCost| cost.costs[Column::Dw] > 0;
        let loading: HashSet<u32> =
            totals.self_costs.iter().filter(loads).map(|cost| cost.instruction).collect();
        let storing = totals.self_costs.iter().filter(stores).map(|cost| cost.instruction);
        let storing: HashSet<u32> = storing.filter(|instruction| !loading.contains(instruction)).collect();
        let named = Named::of(&totals, |instruction, address| {
            let (function, mut place) = self.name(image, instruction, address, &entries, names);
            place.stores = storing.contains(&instruction);
            (function, place)
        });
        self.named.merge(&named);
    }

    fn name(
        &mut self,
        image: &Image,
        instruction: u32,
        address: u64,
        entries: &HashSet<u64>,
        names: &mut Names,
    ) -> (FunctionNumber, Place) {
        if address == 0 || instruction == NO_INSTRUCTION {
            let file = self.file(UNKNOWN);
            return (self.function(UNKNOWN_CALLER_NAME, "", file), Place { file, ..Place::default() });
        }
        let frames = names.frames(image, instruction);
        let (Some(inner), Some(outer)) = (frames.first(), frames.last()) else {
            let file = self.file(UNKNOWN);
            return (self.function(UNKNOWN, "", file), Place { file, ..Place::default() });
        };
        let file = self.file(inner.file.as_deref().unwrap_or(UNKNOWN));
        let line = inner.line.unwrap_or(0);
        let module = outer.module.clone().unwrap_or_default();
        let own_file = self.file(outer.file.as_deref().unwrap_or(UNKNOWN));
        let name = match &outer.function {
            Some(name) => name.clone(),
            // By the first instruction, if known; otherwise
            // the unnamed code of a module forms one function.
            None if entries.contains(&address) => {
                format!("{}+{:#x}", base(&module), outer.address.unwrap_or(address))
            }
            None => format!("{UNKNOWN} in {}", base(&module)),
        };
        (self.function(&name, &module, own_file), Place { file, line, stores: false })
    }

    fn function(&mut self, name: &str, module: &str, file: u32) -> FunctionNumber {
        let key = (name.to_owned(), module.to_owned());
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let number = self.functions.len() as u32;
        self.functions.push(FunctionName { name: name.to_owned(), file, module: module.to_owned() });
        self.numbers.insert(key, number);
        number
    }

    fn file(&mut self, name: &str) -> u32 {
        if let Some(number) = self.file_numbers.get(name) {
            return *number;
        }
        let number = self.files.len() as u32;
        self.files.push(name.to_owned());
        self.file_numbers.insert(name.to_owned(), number);
        number
    }
}

/// Whether an instruction has no name, and is in the function's module.
fn is_nameless(image: &Image, instruction: u32, entry: u32, names: &mut Names) -> bool {
    let (ours, entrys) = (names.frames(image, instruction), names.frames(image, entry));
    let (Some(ours), Some(entrys)) = (ours.last(), entrys.last()) else { return false };
    ours.function.is_none() && ours.module == entrys.module
}

/// The file name of a path.
pub fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
