//! The type of the pointer by which an instruction accesses memory.
//!
//! For heap blocks without a name by record or pointer. The variable with
//! the pointer is asked first, then the pointer's source in memory. Callers
//! are not examined, and accesses of one instruction must agree. Source of
//! error: a program that stores data of another type than the pointer's.

use std::sync::Arc;

use iced_x86::{Instruction, MemorySize};

use crate::flow::Holder;
use crate::names::{PathFrame, Resolver, To};
use crate::object::Kind;
use crate::program::{Analysed, TypeRef};
use crate::rank::{Analyzer, Frame, SourceLine, source_line};
use crate::value::Value;

/// The type of a pointer's target, and the accessed place in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revealed {
    /// Offset of the type's entry in the `.debug_info` of the code's module.
    pub entry: usize,
    /// Offset of the access in the value.
    pub offset: u64,
    /// The variable with the pointer, if any.
    pub through: Option<Arc<str>>,
    /// The instruction's own evidence about the value, if any.
    pub element: Option<Element>,
    /// The instruction's line.
    pub line: SourceLine,
}

/// A value as an instruction takes it from memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Element {
    /// Its size.
    pub bytes: u64,
    /// It is a floating-point number.
    pub is_float: bool,
}

impl Element {
    /// Of an instruction. Vectors of bits and of single precision
    /// prove no type: compilers move all data with such instructions.
    fn of(instruction: &Instruction) -> Option<Self> {
        let whole = instruction.memory_size().info();
        let bytes = u64::try_from(whole.element_size()).ok()?;
        match whole.element_type() {
            MemorySize::Float64 => Some(Self { bytes, is_float: true }),
            MemorySize::Float32 if !whole.is_packed() => Some(Self { bytes, is_float: true }),
            _ if !whole.is_packed() && matches!(bytes, 1 | 2 | 4 | 8) => {
                Some(Self { bytes, is_float: false })
            }
            _ => None,
        }
    }
}

impl Analyzer {
    /// Evidence of the instruction at an address. `None` without an access through a typed pointer,
    /// or with several.
    pub fn revealed(&mut self, at: Frame) -> Option<Revealed> {
        let function = self.program.function(at.module, at.address).ok()?;
        let index = function.graph.instruction_at(at.address)?;
        let line = source_line(&function, function.lines.get(index).copied().flatten())?;
        let path = vec![PathFrame { function: function.clone(), caller: None }];
        let mut resolver = Resolver::new(&mut self.program, path);
        let mut found: Option<Revealed> = None;
        let element = function.graph.instructions.get(index).and_then(Element::of);
        for access in function.flow.accesses.get(index)? {
            let mut types = Vec::new();
            let mut through = None;
            match held_type(&function, access.address) {
                Some((name, of)) => {
                    through = Some(name);
                    types.push((of, access.address.offset, access.address.modulus));
                }
                None => {
                    for target in resolver.address(access.address) {
                        let To::Named(named) = target.to else { continue };
                        let of = named.of.filter(|_| named.kind == Kind::Pointee)?;
                        types.push((of, target.offset, target.modulus));
                    }
                }
            }
            for (of, offset, modulus) in types {
                let (offset, modulus) = of.within(offset, modulus);
                let offset = u64::try_from(offset).ok().filter(|_| modulus == 0)?;
                let (entry, through, line) = (of.entry()?, through.clone(), line.clone());
                let this = Revealed { entry, offset, through, element, line };
                if *found.get_or_insert_with(|| this.clone()) != this {
                    return None;
                }
            }
        }
        found
    }
}

/// The variable with an address's pointer, and the pointer's target.
fn held_type(function: &Analysed, address: Value) -> Option<(Arc<str>, TypeRef)> {
    let base = address.base.filter(|_| address.minus.is_none())?;
    let holders = function.flow.holders.get(&base)?;
    holders.iter().find_map(|(elsewhere, _, holder)| match holder {
        Holder::Variable(index) if !elsewhere => {
            let variable = function.variable(*index)?;
            let of = function.type_ref(variable.of?).pointee()?;
            Some((Arc::clone(&variable.name), of))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    /// Integers lead to the blocks, so that only the accesses tell.
    #[test]
    fn members_through_pointers_that_came_from_integers() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/programs/objects.c");
        for level in ["-O1", "-O2"] {
            let folder = tempfile::tempdir().expect("a folder");
            let program = folder.path().join("objects");
            let mut gcc = Command::new("gcc");
            gcc.args(["-g", "-fno-tree-vectorize", "-pthread", level, "-o"]).args([&program, &source]);
            assert!(gcc.status().expect("gcc").success());
            let mut analyzer = Analyzer::new();
            let module = analyzer.open(&program).expect("the program");
            let entry = analyzer.program.symbol(module, "hidden").expect("the function");
            let function = analyzer.program.function(module, entry).expect("its code");
            let mut found = BTreeSet::new();
            for instruction in &function.graph.instructions {
                if let Some(revealed) = analyzer.revealed(Frame { module, address: instruction.ip() }) {
                    let of = function.type_ref(revealed.entry - function.state.start);
                    assert!(revealed.line.file.ends_with("objects.c"), "{revealed:?}");
                    found.insert((of.name().expect("a name"), revealed.offset));
                }
            }
            let expected = [("struct entry", 0), ("struct entry", 8), ("struct node", 0), ("struct node", 8)];
            assert_eq!(found, expected.map(|(name, offset)| (name.to_owned(), offset)).into(), "{level}");
        }
    }
}
