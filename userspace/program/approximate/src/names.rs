//! From a pointer of a function to the variable that owns the target: alias
//! classes within the function, and across calls along the sampled path.
//!
//! Two pointers are aliases if they have one source: one call's result (`y = x`
//! after `x = malloc(…)`: both are x, the first variable), one argument, one place
//! in memory. An argument is the value passed by the caller on the sampled path.
//! Where paths meet, each possible source is named. A pointer from the pointer's
//! own target (`p = p->next`) adds no source: a list is named by the head.
//!
//! Sources of error: a call made by a jump from the function that the
//! caller called is known from the target of a direct jump; of a pointer
//! stored and loaded again in one function the order is not known.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::flow::{Holder, Where};
use crate::object::{Kind, Named};
use crate::program::{Analysed, ModuleId, Program, StaticVariable, TypeRef};
use crate::reason::Reason;
use crate::transfer::ARGUMENTS;
use crate::unit::Variable;
use crate::value::{Base, BaseAt, Value, gcd};

/// Most possible objects of one pointer; a pointer with more is unknown.
const MOST: usize = 8;
/// Most frames of a path, and of functions looked into.
const MOST_FRAMES: usize = 512;
/// Most nested steps of one resolution: callers, loads and meetings.
const DEEPEST: usize = 40;

/// A function on a sample's path, or called by a function on the path.
#[derive(Clone)]
pub(crate) struct PathFrame {
    pub(crate) function: Arc<Analysed>,
    /// Index of the calling frame, and the address of the call there.
    pub(crate) caller: Option<(usize, u64)>,
}

/// Where a pointer points.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub(crate) to: To,
    /// Offset from there, up to multiples of the modulus.
    pub(crate) offset: i64,
    pub(crate) modulus: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum To {
    /// An address of a module.
    Static(ModuleId, u64),
    /// The canonical frame address of a frame of the path.
    Frame(usize),
    /// The thread pointer, for the variables of a module.
    Thread(ModuleId),
    /// What a named pointer points at.
    Named(Box<Named>),
    Unknown(Reason),
}

/// Resolves the pointers of one sampled path.
pub(crate) struct Resolver<'a> {
    pub(crate) program: &'a mut Program,
    path: Vec<PathFrame>,
    visiting: BTreeSet<(usize, BaseAt)>,
    steps: usize,
}

impl<'a> Resolver<'a> {
    pub(crate) fn new(program: &'a mut Program, path: Vec<PathFrame>) -> Self {
        Resolver { program, path, visiting: BTreeSet::new(), steps: 0 }
    }

    /// Where an address of the innermost function points.
    pub(crate) fn address(&mut self, address: Value) -> BTreeSet<Target> {
        self.steps = 0;
        self.value(0, address)
    }

    /// The object at a target.
    pub(crate) fn object(&mut self, target: &Target) -> Result<Named, Reason> {
        match &target.to {
            To::Unknown(reason) => Err(*reason),
            To::Named(named) => Ok((**named).clone()),
            To::Static(module, address) => {
                let address = address.wrapping_add_signed(target.offset);
                match self.program.static_at(*module, address) {
                    Some(found) => static_object(&found, Kind::Static).ok_or(Reason::UnnamedData),
                    None => self
                        .program
                        .data_symbol(*module, address)
                        .map(|name| Named::bare(name, Kind::Static))
                        .ok_or(Reason::UnnamedData),
                }
            }
            To::Thread(module) => {
                let found = self.program.thread_local_at(*module, target.offset);
                found.and_then(|found| static_object(&found, Kind::ThreadLocal)).ok_or(Reason::UnnamedData)
            }
            To::Frame(depth) => {
                let function = self
                    .path
                    .get(*depth)
                    .map(|frame| frame.function.clone())
                    .ok_or(Reason::UnknownPointer)?;
                let (index, _) = function.frame_variable(target.offset).ok_or(Reason::StackTemporary)?;
                let variable = function.variable(index).ok_or(Reason::StackTemporary)?;
                let of = variable.of.map(|of| function.type_ref(of));
                Ok(object_of(variable, Kind::Stack, of))
            }
        }
    }

    fn value(&mut self, depth: usize, value: Value) -> BTreeSet<Target> {
        let (Some(base), None) = (value.base, value.minus) else { return unknown(Reason::UnknownPointer) };
        let targets = self.base(depth, base);
        targets.into_iter().map(|target| target.shifted(value.offset, value.modulus)).collect()
    }

    fn base(&mut self, depth: usize, base: BaseAt) -> BTreeSet<Target> {
        self.steps += 1;
        if self.steps > DEEPEST * MOST
            || self.visiting.len() > DEEPEST
            || !self.visiting.insert((depth, base))
        {
            // A pointer from the pointer's own target adds no source.
            return BTreeSet::new();
        }
        let found = self.base_once(depth, base);
        self.visiting.remove(&(depth, base));
        if found.len() > MOST { unknown(Reason::UnknownPointer) } else { found }
    }

    fn base_once(&mut self, depth: usize, base: BaseAt) -> BTreeSet<Target> {
        let Some(frame) = self.path.get(depth).cloned() else { return unknown(Reason::UnknownPointer) };
        let function = &frame.function;
        let at = |to: To| BTreeSet::from([Target { to, offset: 0, modulus: 0 }]);
        match function.flow.bases.get(base) {
            Some(Base::Address(address)) => at(To::Static(function.module, address)),
            Some(Base::Frame) => at(To::Frame(depth)),
            Some(Base::Thread) => at(To::Thread(function.module)),
            Some(Base::Foreign(slot)) => match self.program.foreign(function.module, slot) {
                Some(name) => at(To::Named(Box::new(Named::bare(name, Kind::Static)))),
                None => unknown(Reason::UnnamedData),
            },
            Some(Base::Argument(number)) => {
                let passed = self.passed(depth, |passed| passed.registers.get(&number).copied());
                passed.filter(|_| ARGUMENTS.contains(&number)).unwrap_or_else(|| self.held(depth, base))
            }
            Some(Base::Call(call)) => match self.returned(depth, call) {
                Some(found) => found,
                None => self.held(depth, base),
            },
            Some(Base::Load(from, offset, modulus)) => self.loaded(depth, base, (from, offset, modulus)),
            Some(Base::Variable(index)) => match function.variable(index) {
                Some(variable) => at(To::Named(Box::new(pointee_of_variable(function, variable)))),
                None => unknown(Reason::UnknownPointer),
            },
            Some(Base::Merge(..)) => self.merged(depth, base),
            None => unknown(Reason::UnknownPointer),
        }
    }

    /// The value passed by the caller, if the caller's code can be followed.
    fn passed(
        &mut self,
        depth: usize,
        which: impl Fn(&crate::flow::Passed) -> Option<Value>,
    ) -> Option<BTreeSet<Target>> {
        let callee = self.path.get(depth)?.function.clone();
        let (caller_at, call) = self.path.get(depth)?.caller?;
        let caller = self.path.get(caller_at)?.clone();
        let passed = caller.function.flow.calls.get(&call)?;
        let targets = match passed.target {
            // A call of another function, which then jumped here.
            Some(target)
                if target != callee.entry() && self.program.is_entry(caller.function.module, target) =>
            {
                self.passed_on(&callee, (caller_at, call), target, which)?
            }
            _ => self.value(caller_at, which(passed)?),
        };
        let known = targets.iter().all(|target| !matches!(target.to, To::Unknown(_)));
        (known && !targets.is_empty()).then_some(targets)
    }

    /// The arguments that a called function passes on in a jump.
    fn passed_on(
        &mut self,
        callee: &Analysed,
        caller: (usize, u64),
        target: u64,
        which: impl Fn(&crate::flow::Passed) -> Option<Value>,
    ) -> Option<BTreeSet<Target>> {
        let between =
            self.program.function(callee.module, target).ok().filter(|found| found.entry() == target)?;
        let mut jumps = between
            .flow
            .calls
            .values()
            .filter(|passed| passed.jumps && passed.target == Some(callee.entry()));
        let value = which(jumps.next()?)?;
        // With several jumps the taken one is unknown.
        if jumps.next().is_some() || self.path.len() > MOST_FRAMES {
            return None;
        }
        let at = self.path.len();
        self.path.push(PathFrame { function: between.clone(), caller: Some(caller) });
        let found = self.value(at, value);
        self.path.truncate(at);
        let own = |target: &Target| matches!(target.to, To::Frame(frame) if frame >= at);
        (!found.iter().any(own)).then_some(found)
    }

    /// Result of a function of this program, unless an object of
    /// the callee: a member of an argument, or a static variable.
    fn returned(&mut self, depth: usize, call: u64) -> Option<BTreeSet<Target>> {
        let caller = self.path.get(depth)?.function.clone();
        let target = caller.flow.calls.get(&call)?.target?;
        let callee =
            self.program.function(caller.module, target).ok().filter(|callee| callee.entry() == target)?;
        if self.path.len() > MOST_FRAMES {
            return None;
        }
        let at = self.path.len();
        self.path.push(PathFrame { function: callee.clone(), caller: Some((depth, call)) });
        let mut found = BTreeSet::new();
        for value in callee.flow.returned.iter().filter(|value| value.exact().is_none()) {
            found.extend(self.value(at, *value));
        }
        self.path.truncate(at);
        let name = callee.name();
        let foreign = |target: &Target| match &target.to {
            To::Static(..) | To::Thread(_) => true,
            To::Frame(frame) => *frame < at,
            // What has a name in the callee only is better named by the caller.
            To::Named(named) => named.is_global || named.function.is_none() || named.function != name,
            To::Unknown(_) => false,
        };
        (!found.is_empty() && found.iter().all(foreign)).then_some(found)
    }

    /// Target of a pointer known by its owner only: the result of a call, an argument of unknown
    /// origin.
    fn held(&mut self, depth: usize, base: BaseAt) -> BTreeSet<Target> {
        let Some(function) = self.path.get(depth).map(|frame| frame.function.clone()) else {
            return unknown(Reason::UnknownPointer);
        };
        let call = match function.flow.bases.get(base) {
            Some(Base::Call(address)) => Some(address),
            _ => None,
        };
        let holders = function.flow.holders.get(&base);
        let mut names: Vec<Named> = Vec::new();
        for (_, _, holder) in holders.into_iter().flatten().take(MOST) {
            names.extend(match holder {
                Holder::Variable(index) => {
                    function.variable(*index).map(|held| pointee_of_variable(&function, held))
                }
                Holder::Memory(place) => self.pointer_at(depth, *place),
            });
        }
        // Permanent variables come before first ones.
        let first = names.iter().position(|named| named.is_global).unwrap_or(0);
        let origin = call.and_then(|call| self.origin(&function, call));
        let mut named = match names.get(first) {
            Some(named) => named.clone(),
            None => match &origin {
                Some((callee, line)) => Named::bare(format!("{callee} at {line}"), Kind::Pointee),
                None => return unknown(Reason::UnknownPointer),
            },
        };
        named.aliases.extend(names.iter().map(|other| other.name.clone()).filter(|name| *name != named.name));
        named.made_by = origin.or(named.made_by);
        BTreeSet::from([Target { to: To::Named(Box::new(named)), offset: 0, modulus: 0 }])
    }

    /// Name of the called function, and the call's place as `file:line`.
    fn origin(&mut self, function: &Analysed, call: u64) -> Option<(String, String)> {
        let target = function.flow.calls.get(&call)?.target?;
        let callee = self.program.callee(function.module, target)?;
        let line =
            function.graph.instruction_at(call).and_then(|at| function.lines.get(at).copied().flatten())?;
        let file = function.state.unit.lines.file(line.file)?;
        let file = file.rsplit('/').next().unwrap_or(&file);
        Some((callee, format!("{file}:{}", line.line)))
    }

    fn loaded(&mut self, depth: usize, base: BaseAt, place: Where) -> BTreeSet<Target> {
        let Some(function) = self.path.get(depth).map(|frame| frame.function.clone()) else {
            return unknown(Reason::UnknownPointer);
        };
        if function.flow.bases.get(place.0) == Some(Base::Frame) {
            if place.1 >= 0
                && place.2 == 0
                && let Some(passed) = self.passed(depth, |passed| passed.stack.get(&place.1).copied())
            {
                return passed;
            }
            if let Some(sources) = function.flow.stored.get(&place)
                && let Some(found) = self.all_of(depth, sources)
            {
                return found;
            }
        }
        let owners = self.base(depth, place.0);
        if owners.is_empty() {
            // Loaded from what is being resolved: `p = p->next`.
            return owners;
        }
        if let Some(mut named) = self.pointer_at(depth, place) {
            for source in function.flow.stored.get(&place).into_iter().flatten().flatten() {
                if let Some(Base::Call(call)) = function.flow.bases.get(*source) {
                    named.made_by = self.origin(&function, call).or(named.made_by);
                }
            }
            return BTreeSet::from([Target { to: To::Named(Box::new(named)), offset: 0, modulus: 0 }]);
        }
        let unnamed = self.held_by_variable(depth, base);
        unnamed.unwrap_or_else(|| unknown(Reason::UnknownPointer))
    }

    fn held_by_variable(&self, depth: usize, base: BaseAt) -> Option<BTreeSet<Target>> {
        let function = &self.path.get(depth)?.function;
        let variable = function.flow.holders.get(&base)?.iter().find_map(|(_, _, holder)| match holder {
            Holder::Variable(index) => function.variable(*index),
            Holder::Memory(_) => None,
        })?;
        let named = pointee_of_variable(function, variable);
        Some(BTreeSet::from([Target { to: To::Named(Box::new(named)), offset: 0, modulus: 0 }]))
    }

    /// The targets of all sources; `None` if a source is unknown,
    /// or without another source than the source being resolved.
    fn all_of(&mut self, depth: usize, sources: &BTreeSet<Option<BaseAt>>) -> Option<BTreeSet<Target>> {
        let mut found = BTreeSet::new();
        for source in sources {
            // The exact position of a pointer in an object is unknown after ways have met.
            found.extend(self.base(depth, (*source)?));
        }
        let known = found.iter().all(|target| !matches!(target.to, To::Unknown(_)));
        (known && !found.is_empty()).then_some(found)
    }

    fn merged(&mut self, depth: usize, base: BaseAt) -> BTreeSet<Target> {
        let Some(function) = self.path.get(depth).map(|frame| frame.function.clone()) else {
            return unknown(Reason::UnknownPointer);
        };
        let sources = function.flow.bases.sources.get(&base).cloned().unwrap_or_default();
        if let Some(found) = self.all_of(depth, &sources) {
            return found;
        }
        if let Some(found) = self.held_by_variable(depth, base) {
            return found;
        }
        let known: BTreeSet<Target> =
            sources.iter().flatten().flat_map(|source| self.base(depth, *source)).collect();
        // Inside a cycle the others decide.
        if known.is_empty() && !sources.contains(&None) {
            known
        } else {
            union(known, unknown(Reason::UnknownPointer))
        }
    }

    /// Target of the pointer stored at a place, named after the place.
    fn pointer_at(&mut self, depth: usize, place: Where) -> Option<Named> {
        let targets = self.base(depth, place.0);
        let mut named =
            targets.into_iter().filter_map(|target| self.pointer_in(&target.shifted(place.1, place.2)));
        named.next()
    }

    /// [`Self::pointer_at`] for a target, a place with a pointer: the name.
    fn pointer_in(&mut self, target: &Target) -> Option<Named> {
        let owner = self.object(target).ok()?;
        let (whole, offset, modulus) = match &target.to {
            To::Static(module, address) => {
                let address = address.wrapping_add_signed(target.offset);
                let found = self.program.static_at(*module, address);
                (owner.of.clone(), found.map_or(0, |found| found.inside as i64), target.modulus)
            }
            To::Thread(module) => {
                let found = self.program.thread_local_at(*module, target.offset);
                (owner.of.clone(), found.map_or(0, |found| found.inside as i64), target.modulus)
            }
            To::Frame(depth) => {
                let (_, inside) = self.path.get(*depth)?.function.frame_variable(target.offset)?;
                (owner.of.clone(), inside as i64, target.modulus)
            }
            To::Named(named) => {
                let (offset, modulus) = match &named.of {
                    Some(of) => of.within(target.offset, target.modulus),
                    None => (target.offset, target.modulus),
                };
                (named.of.clone(), offset, modulus)
            }
            To::Unknown(_) => return None,
        };
        let through_pointer = owner.kind == Kind::Pointee;
        let path = whole.as_ref().and_then(|whole| whole.path(offset, modulus));
        let (path, of) = match path {
            Some((path, of)) => (path, of.pointee()),
            // Without types the distance tells the members apart.
            None if modulus == 0 && through_pointer => (format!("[+{offset}]"), None),
            None => return None,
        };
        // A list or a tree is one object, named by the head.
        if through_pointer
            && let (Some(owner_type), Some(of)) = (&owner.of, &of)
            && owner_type.is_same(of)
        {
            return Some(owner);
        }
        let name = match (through_pointer, path.strip_prefix('.')) {
            (true, Some(path)) => format!("{}->{path}", owner.name),
            (true, None) if path.is_empty() => format!("{}[]", owner.name),
            _ => format!("{}{path}", owner.name),
        };
        Some(Named { name, kind: Kind::Pointee, of, aliases: BTreeSet::new(), made_by: None, ..owner })
    }
}

impl Target {
    fn shifted(mut self, offset: i64, modulus: u64) -> Self {
        self.offset = self.offset.wrapping_add(offset);
        self.modulus = gcd(self.modulus, modulus);
        if matches!(self.to, To::Unknown(_)) {
            (self.offset, self.modulus) = (0, 0);
        }
        self
    }
}

fn union(mut a: BTreeSet<Target>, b: BTreeSet<Target>) -> BTreeSet<Target> {
    a.extend(b);
    a
}

fn unknown(reason: Reason) -> BTreeSet<Target> {
    BTreeSet::from([Target { to: To::Unknown(reason), offset: 0, modulus: 0 }])
}

/// A variable itself as an object.
fn object_of(variable: &Variable, kind: Kind, of: Option<TypeRef>) -> Named {
    Named {
        name: variable.name.to_string(),
        kind,
        is_global: variable.function.is_none(),
        file: variable.file.clone(),
        line: variable.line,
        function: variable.function.clone(),
        of,
        aliases: BTreeSet::new(),
        made_by: None,
    }
}

fn static_object(found: &StaticVariable, kind: Kind) -> Option<Named> {
    let variable = found.variable()?;
    let of = variable.of.map(|at| TypeRef { state: found.state.clone(), at });
    Some(Named { is_global: true, ..object_of(variable, kind, of) })
}

/// What a pointer variable of a function points at.
fn pointee_of_variable(function: &Analysed, variable: &Variable) -> Named {
    let of = variable.of.and_then(|of| function.type_ref(of).pointee());
    object_of(variable, Kind::Pointee, of)
}
