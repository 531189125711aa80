//! Values of arguments become values of the atoms passed by callers: an input stands at the source.
//!
//! If a function's argument is known, and a caller passes a form with one unknown atom,
//! the atom's value follows. An argument with a value from every caller is then no input.
//!
//! Sources of error: of several calls the first tells the value.

use std::collections::BTreeMap;

use crate::form::{Atom, Form};
use crate::language::{FunctionText, Input, Location, Part, Skeleton};

/// Limit of levels of callers that a value is lifted through.
const ROUNDS: usize = 6;

/// Calls of a function: callee, arguments.
fn calls(function: &FunctionText) -> Vec<(Location, Vec<(u8, Form)>)> {
    let mut found = Vec::new();
    function.blocks(&mut |block| {
        for part in &block.parts {
            if let Part::Call { to, arguments, .. } = part {
                found.push((to.clone(), arguments.clone()));
            }
        }
    });
    found
}

/// Lifts values of arguments to callers.
pub(crate) fn lift(skeleton: &mut Skeleton) {
    let places = skeleton.places();
    let all: Vec<_> = skeleton.functions.iter().map(calls).collect();
    for _ in 0..ROUNDS {
        let mut new: Vec<(usize, Input)> = Vec::new();
        for (caller, calls) in all.iter().enumerate() {
            let Some(text) = skeleton.functions.get(caller) else { continue };
            for (to, arguments) in calls {
                let callee = places.get(to).filter(|callee| **callee != caller);
                let Some(callee) = callee.and_then(|callee| skeleton.functions.get(*callee)) else {
                    continue;
                };
                for (number, form) in arguments {
                    let name = Form::name(format!("arg{number}"));
                    let Some(known) = callee.inputs.iter().find(|input| input.name == name) else { continue };
                    let [(value, _)] = known.values.as_slice() else { continue };
                    if let Some(input) = solved(text, form, *value, &callee.name)
                        && !new.iter().any(|(of, other)| *of == caller && other.name == input.name)
                    {
                        new.push((caller, input));
                    }
                }
            }
        }
        if new.is_empty() {
            break;
        }
        for (caller, input) in new {
            if let Some(function) = skeleton.functions.get_mut(caller) {
                function.inputs.push(input);
            }
        }
    }
    // Arguments with a value from every caller.
    let mut passed: BTreeMap<(usize, u8), bool> = BTreeMap::new();
    for (caller, calls) in all.iter().enumerate() {
        let Some(text) = skeleton.functions.get(caller) else { continue };
        for (to, arguments) in calls {
            let Some(callee) = places.get(to) else { continue };
            for (number, form) in arguments {
                let has_value = is_known(text, form) && *callee != caller;
                passed.entry((*callee, *number)).and_modify(|all| *all &= has_value).or_insert(has_value);
            }
        }
    }
    for ((callee, number), is_passed) in passed {
        let Some(function) = skeleton.functions.get_mut(callee).filter(|of| is_passed && of.calls == 0.0)
        else {
            continue;
        };
        let name = Form::name(format!("arg{number}"));
        function.inputs.retain(|input| input.name != name);
    }
}

fn is_variable(text: &FunctionText, atom: &Atom) -> bool {
    matches!(atom, Atom::Name(name) if text.variables.iter().any(|variable| *variable.name == **name))
}

fn value_of(text: &FunctionText, atom: &Atom) -> Option<f64> {
    let form = Form::atom(atom.clone());
    let own = text.inputs.iter().find(|input| input.name == form).map(Input::mean);
    own.or_else(|| is_variable(text, atom).then_some(0.0))
}

fn is_known(text: &FunctionText, form: &Form) -> bool {
    form.value(&|atom| value_of(text, atom)).is_ok()
}

/// The value of a form's only unknown atom, from the form's value.
fn solved(text: &FunctionText, form: &Form, value: f64, callee: &str) -> Option<Input> {
    let mut unknown = form.terms.iter().filter(|(atom, _)| value_of(text, atom).is_none());
    let ((atom, factor), None) = (unknown.next()?, unknown.next()) else { return None };
    if matches!(atom, Atom::Op(..)) || form.any(|atom| is_variable(text, atom)) {
        return None;
    }
    let rest = form.value(&|other| if other == atom { Some(0.0) } else { value_of(text, other) }).ok()?;
    let found = (value - rest) / *factor as f64;
    let from = format!("passed to {callee}");
    (found.abs() < 1e15).then(|| Input { name: Form::atom(atom.clone()), values: vec![(found, 1.0)], from })
}
