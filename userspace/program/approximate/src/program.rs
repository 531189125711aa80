//! The opened modules and the known facts of the modules'
//! functions. Each fact is computed at the first request.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use iced_x86::FlowControl;

use crate::debug::{Debug, UnitState};
use crate::flow::Flow;
use crate::graph::Graph;
use crate::lines::Line;
use crate::module::Module;
use crate::reason::{Reason, Unreadable};
use crate::types::TypeAt;
use crate::unit::{FrameBase, Function, Spot, Variable};

/// DWARF's number of the stack pointer.
const RSP: u16 = 7;
/// DWARF's number of the frame pointer.
const RBP: u16 = 6;

/// An opened module of an [`crate::Analyzer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(pub(crate) u32);

/// A type with its unit.
#[derive(Clone)]
pub(crate) struct TypeRef {
    pub(crate) state: Arc<UnitState>,
    pub(crate) at: TypeAt,
}

/// A function whose pointers have been followed.
pub(crate) struct Analysed {
    pub(crate) module: ModuleId,
    pub(crate) state: Arc<UnitState>,
    index: usize,
    pub(crate) graph: Graph,
    pub(crate) flow: Flow,
    /// The line of each instruction.
    pub(crate) lines: Vec<Option<Line>>,
}

/// A variable of static storage that covers an address.
pub(crate) struct StaticVariable {
    pub(crate) state: Arc<UnitState>,
    pub(crate) index: usize,
    /// Offset of the address in it.
    pub(crate) inside: u64,
}

impl StaticVariable {
    pub(crate) fn variable(&self) -> Option<&Variable> {
        self.state.unit.statics.get(self.index).map(|(_, variable)| variable)
    }
}

struct Loaded {
    path: PathBuf,
    file: Module,
    debug: Debug,
    /// By entry address.
    functions: HashMap<u64, Result<Arc<Analysed>, Reason>>,
    /// By requested address.
    asked: HashMap<u64, Result<Arc<Analysed>, Reason>>,
}

impl Loaded {
    /// The function around a code address.
    fn function(&mut self, module: ModuleId, address: u64) -> Result<Arc<Analysed>, Reason> {
        let state = self.debug.unit_of(&self.file, address)?;
        let found = Debug::function(&state, address)?;
        let entry = found.code.first().map_or(0, |range| range.start);
        if let Some(known) = self.functions.get(&entry) {
            return known.clone();
        }
        let index =
            state.unit.functions.iter().position(|function| std::ptr::eq(function, found)).unwrap_or(0);
        let analysed = analyse(&self.file, module, &state, index).map(Arc::new);
        self.functions.insert(entry, analysed.clone());
        analysed
    }
}

/// All modules.
#[derive(Default)]
pub(crate) struct Program {
    modules: Vec<Loaded>,
}

impl Program {
    /// Opens a file, or finds the file open already. With a
    /// build id, another file at the path is refused.
    pub(crate) fn open(&mut self, path: &Path, build_id: Option<&str>) -> Result<ModuleId, Unreadable> {
        let id = |at: usize| ModuleId(u32::try_from(at).unwrap_or(u32::MAX));
        if let Some(at) = self.modules.iter().position(|loaded| loaded.path == path) {
            return Ok(id(at));
        }
        let file = Module::open(path)?;
        if let Some(traced) = build_id
            && let found = file.build_id()
            && found.as_deref() != Some(traced)
        {
            let found = found.unwrap_or_else(|| "none".to_owned());
            return Err(Unreadable::Another { found, traced: traced.to_owned() });
        }
        let debug = Debug::index(&file);
        self.modules.push(Loaded {
            path: path.to_owned(),
            file,
            debug,
            functions: HashMap::new(),
            asked: HashMap::new(),
        });
        Ok(id(self.modules.len() - 1))
    }

    fn loaded(&mut self, module: ModuleId) -> Result<&mut Loaded, Reason> {
        self.modules.get_mut(module.0 as usize).ok_or(Reason::NoModule)
    }

    /// The function around a code address.
    pub(crate) fn function(&mut self, module: ModuleId, address: u64) -> Result<Arc<Analysed>, Reason> {
        let loaded = self.loaded(module)?;
        if let Some(known) = loaded.asked.get(&address) {
            return known.clone();
        }
        let found = loaded.function(module, address);
        loaded.asked.insert(address, found.clone());
        found
    }

    /// The static variable at an address of a module.
    pub(crate) fn static_at(&mut self, module: ModuleId, address: u64) -> Option<StaticVariable> {
        let loaded = self.loaded(module).ok()?;
        let (state, index, inside) = loaded.debug.static_at(&loaded.file, address)?;
        Some(StaticVariable { state, index, inside })
    }

    /// The thread-local variable at an offset from the thread pointer.
    pub(crate) fn thread_local_at(&mut self, module: ModuleId, offset: i64) -> Option<StaticVariable> {
        let loaded = self.loaded(module).ok()?;
        let offset = loaded.file.tls_bytes.checked_add_signed(offset)?;
        let (state, index, inside) = loaded.debug.thread_local_at(&loaded.file, offset)?;
        Some(StaticVariable { state, index, inside })
    }

    /// Symbol of a variable at an address, for data without
    /// debug information: name, and offset in the variable.
    pub(crate) fn data_symbol(&mut self, module: ModuleId, address: u64) -> Option<String> {
        let loaded = self.loaded(module).ok()?;
        Module::covering(&loaded.file.variables, address).map(|symbol| symbol.name.clone())
    }

    /// Name of the symbol that a slot of the global offset table will hold.
    pub(crate) fn foreign(&mut self, module: ModuleId, slot: u64) -> Option<String> {
        match self.loaded(module).ok()?.file.slot(slot)? {
            crate::module::Slot::Symbol(name) => Some(name.clone()),
            crate::module::Slot::Address(_) => None,
        }
    }

    /// Name of a call's target: a symbol of this module, or the target of a stub.
    pub(crate) fn callee(&mut self, module: ModuleId, target: u64) -> Option<String> {
        let loaded = self.loaded(module).ok()?;
        if let Some(symbol) =
            Module::covering(&loaded.file.functions, target).filter(|symbol| symbol.address == target)
        {
            return Some(symbol.name.clone());
        }
        // A stub: `endbr64; bnd jmp *slot(%rip)`.
        let code = loaded.file.code(&(target..target.saturating_add(16)));
        let decoder = iced_x86::Decoder::with_ip(64, code, target, iced_x86::DecoderOptions::NONE);
        let jump = decoder
            .into_iter()
            .take(2)
            .find(|instruction| instruction.flow_control() == FlowControl::IndirectBranch)?;
        let slot = jump.is_ip_rel_memory_operand().then(|| jump.ip_rel_memory_address())?;
        self.foreign(module, slot)
    }

    /// Address of a function's symbol.
    #[cfg(test)]
    pub(crate) fn symbol(&mut self, module: ModuleId, name: &str) -> Option<u64> {
        let loaded = self.loaded(module).ok()?;
        loaded.file.functions.iter().find(|symbol| symbol.name == name).map(|symbol| symbol.address)
    }

    /// Whether a function begins at the address.
    pub(crate) fn is_entry(&mut self, module: ModuleId, address: u64) -> bool {
        let Ok(loaded) = self.loaded(module) else { return false };
        Module::covering(&loaded.file.functions, address).is_some_and(|symbol| symbol.address == address)
    }
}

fn analyse(
    file: &Module,
    module: ModuleId,
    state: &Arc<UnitState>,
    index: usize,
) -> Result<Analysed, Reason> {
    let function = state.unit.functions.get(index).ok_or(Reason::NotCovered)?;
    let graph = Graph::of(file, &function.code)?;
    let types = &state.unit.types;
    let type_of = |variable: usize| function.variables.get(variable).and_then(|variable| variable.of);
    let is_pointer = |variable: usize| type_of(variable).is_some_and(|of| types.is_pointer(of));
    let size = |variable: usize| type_of(variable).and_then(|of| types.size(of));
    let flow = Flow::of(file, &graph, function, &is_pointer, &size);
    let lines = graph.instructions.iter().map(|instruction| state.unit.lines.at(instruction.ip())).collect();
    Ok(Analysed { module, state: state.clone(), index, graph, flow, lines })
}

impl Analysed {
    pub(crate) fn function(&self) -> Option<&Function> {
        self.state.unit.functions.get(self.index)
    }

    pub(crate) fn name(&self) -> Option<Arc<str>> {
        self.function()?.name.clone()
    }

    pub(crate) fn entry(&self) -> u64 {
        self.function().and_then(|function| function.code.first()).map_or(0, |range| range.start)
    }

    pub(crate) fn variable(&self, index: usize) -> Option<&Variable> {
        self.function()?.variables.get(index)
    }

    pub(crate) fn type_ref(&self, at: TypeAt) -> TypeRef {
        TypeRef { state: self.state.clone(), at }
    }

    /// The variable in the frame that covers an offset from the
    /// canonical frame address, and the offset in the variable.
    pub(crate) fn frame_variable(&self, offset: i64) -> Option<(usize, u64)> {
        let function = self.function()?;
        let mut found: Option<(usize, u64)> = None;
        for (at, variable) in function.variables.iter().enumerate() {
            for place in &variable.places {
                let start = match place.spot {
                    Spot::Frame(start) => {
                        self.frame_base(function.frame_base).and_then(|base| base.checked_add(start))
                    }
                    Spot::Memory(register, start) => self.frame_base(FrameBase::Register(register, start)),
                    _ => None,
                };
                let Some(start) = start else { continue };
                let size = variable.of.and_then(|of| self.state.unit.types.size(of)).unwrap_or(1).max(1);
                let inside = offset.checked_sub(start).and_then(|inside| u64::try_from(inside).ok());
                if let Some(inside) = inside.filter(|inside| *inside < size)
                    // Variables of separate scopes may share a place; the first one's name is given.
                    && found.is_none_or(|(_, known)| inside < known)
                {
                    found = Some((at, inside));
                }
            }
        }
        found
    }

    /// Offset of a frame base from the canonical frame address.
    fn frame_base(&self, base: FrameBase) -> Option<i64> {
        match base {
            FrameBase::Cfa => Some(0),
            FrameBase::Register(RSP, offset) => self.flow.body[0]?.checked_add(offset),
            FrameBase::Register(RBP, offset) => self.flow.body[1]?.checked_add(offset),
            FrameBase::Register(..) | FrameBase::Unknown => None,
        }
    }

    /// The call with the address in its bytes, or with its end
    /// at the address: both conventions for return addresses.
    pub(crate) fn call_at(&self, address: u64) -> Option<u64> {
        let is_call = |at: &usize| {
            let flow = self.graph.instructions.get(*at).map(iced_x86::Instruction::flow_control);
            matches!(flow, Some(FlowControl::Call | FlowControl::IndirectCall))
        };
        let at = self.graph.instruction_at(address)?;
        let before = || {
            let starts =
                self.graph.instructions.get(at).is_some_and(|instruction| instruction.ip() == address);
            at.checked_sub(1).filter(|_| starts)
        };
        let call = Some(at).filter(is_call).or_else(|| before().filter(is_call))?;
        self.graph.instructions.get(call).map(iced_x86::Instruction::ip)
    }
}

impl TypeRef {
    /// Whether both are the same type but for qualifiers and typedefs.
    pub(crate) fn is_same(&self, other: &TypeRef) -> bool {
        let plain = |of: &TypeRef| of.state.unit.types.plain(of.at).map(|(at, _)| at);
        Arc::ptr_eq(&self.state, &other.state) && plain(self).is_some() && plain(self) == plain(other)
    }

    /// Its target, or the element of an array.
    pub(crate) fn pointee(&self) -> Option<TypeRef> {
        Some(TypeRef { state: self.state.clone(), at: self.state.unit.types.pointee(self.at)? })
    }

    pub(crate) fn name(&self) -> Option<String> {
        self.state.unit.types.name(self.at)
    }

    /// Offset of its entry in `.debug_info`, after resolving aliases.
    pub(crate) fn entry(&self) -> Option<usize> {
        let (plain, _) = self.state.unit.types.plain(self.at)?;
        Some(self.state.start + plain)
    }

    /// Path from a value of the type to the member at the offset, and the member's type.
    pub(crate) fn path(&self, offset: i64, modulus: u64) -> Option<(String, TypeRef)> {
        let (path, at) = self.state.unit.types.path(self.at, offset, modulus)?;
        Some((path, TypeRef { state: self.state.clone(), at }))
    }

    /// The offset within one value, as far as known: a pointer may point at one of many values.
    pub(crate) fn within(&self, offset: i64, modulus: u64) -> (i64, u64) {
        match self.state.unit.types.size(self.at).and_then(|size| i64::try_from(size).ok()) {
            Some(size @ 1..) if modulus == 0 || modulus.is_multiple_of(size as u64) => {
                (offset.rem_euclid(size), 0)
            }
            _ => (offset, modulus),
        }
    }
}
