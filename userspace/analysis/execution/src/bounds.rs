//! Trip counts as expressions: from the comparisons that leave a loop and its variables.
//!
//! A test whose difference is linear in variables of the loop, with an integer step, changes its outcome
//! after a number of iterations that is a form of what the loop does not change. A bound is a cap where the
//! loop has other exits. Sources of error: those of `values`; unsigned comparisons are taken as signed.

use iced_x86::ConditionCode;

use crate::code::Function;
use crate::form::{Atom, Form, Op};
use crate::graph::Graph;
use crate::values::{Test, Values, is_invariant};

/// How often a loop's header is reached for each time that the loop is entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// Number of the loop.
    pub of_loop: usize,
    /// Iterations, at least 1; what is less counts as 1.
    pub trips: Form,
    /// The block that ends with the test.
    pub test: usize,
    /// Other blocks that end with a test of the same outcome: each iteration comes to one of them.
    pub others: Vec<usize>,
    /// Edges that leave the loop, this test's included.
    pub exits: usize,
    /// Difference of what is compared, as a form of the loop's variables.
    pub difference: Form,
    /// What an iteration adds to the difference.
    pub step: i64,
}

/// Bounds of all loops that have one; of a loop the test nearest its end.
pub fn find(function: &Function, graph: &Graph, values: &Values) -> Vec<Bound> {
    let mut bounds = Vec::new();
    let headers: Vec<u64> = graph.loops.iter().map(|found| function.blocks[found.header].start).collect();
    for (number, found) in graph.loops.iter().enumerate() {
        let leaves =
            |block: &usize| function.blocks[*block].next.iter().filter(|to| !found.has(**to)).count();
        let exits = found.blocks.iter().map(leaves).sum();
        let tests = found
            .blocks
            .iter()
            .filter_map(|block| values.tests.get(block))
            .filter(|test| graph.innermost[test.block] == Some(number) && leaves(&test.block) == 1);
        let mut candidates: Vec<Bound> =
            tests.filter_map(|test| bound(function, graph, values, number, test, exits)).collect();
        // Each iteration must come to the test, or to one of several that are alike.
        let all = candidates.clone();
        candidates.retain_mut(|bound| {
            let alike = all.iter().filter(|other| other.trips == bound.trips && other.test != bound.test);
            bound.others = alike.map(|other| other.test).collect();
            let covers = |latch: &usize, test: &usize| graph.dominates(*test, *latch);
            if found.latches.iter().all(|latch| covers(latch, &bound.test)) {
                bound.others.clear();
                return true;
            }
            let any = |latch: &usize| {
                std::iter::once(&bound.test).chain(&bound.others).any(|test| covers(latch, test))
            };
            found.latches.iter().all(any)
        });
        // A test in a latch is the loop's own.
        candidates.sort_by_key(|bound| {
            (!found.latches.contains(&bound.test), bound.trips.depth(), std::cmp::Reverse(bound.test))
        });
        if let Some(mut bound) = candidates.into_iter().next() {
            bound.trips = values.counted(&bound.trips, &headers);
            bounds.push(bound);
        }
    }
    bounds
}

fn bound(
    function: &Function,
    graph: &Graph,
    values: &Values,
    number: usize,
    test: &Test,
    exits: usize,
) -> Option<Bound> {
    let found = &graph.loops[number];
    // The branch falls through to the first block that follows.
    let next = &function.blocks[test.block].next;
    let [falls, taken] = next.as_slice() else { return None };
    let goes_on_if_taken = found.has(*taken);
    if goes_on_if_taken == found.has(*falls) {
        return None;
    }
    let goes_on = if goes_on_if_taken { test.condition } else { negated(test.condition)? };
    let difference = test.left.plus(&test.right, -1)?;
    let mut step = 0_i64;
    let mut start = Form::number(difference.constant);
    for (atom, factor) in &difference.terms {
        let variable = match atom {
            Atom::Name(name) => {
                values.variables.iter().find(|variable| variable.of_loop == number && variable.name == *name)
            }
            _ => None,
        };
        match variable {
            Some(variable) => {
                step = step.checked_add(variable.step.as_number()?.checked_mul(*factor)?)?;
                start = start.plus(&variable.start, *factor)?;
            }
            None => start = start.plus(&Form::atom(atom.clone()), *factor)?,
        }
    }
    if step == 0 || !is_invariant(&start, &found.blocks, values) {
        return None;
    }
    let quotient = |op: Op| match step > 0 {
        true => Form::op(op, start.scaled(-1)?, Form::number(step)),
        false => Form::op(op, start.clone(), Form::number(step.checked_neg()?)),
    };
    use ConditionCode as C;
    let rises = step > 0;
    let trips = match goes_on {
        C::ne => quotient(Op::Ceil)?.add(1)?,
        C::l | C::b | C::s if rises => quotient(Op::Ceil)?.add(1)?,
        C::le | C::be if rises => quotient(Op::Floor)?.add(2)?,
        C::g | C::a if !rises => quotient(Op::Ceil)?.add(1)?,
        C::ge | C::ae | C::ns if !rises => quotient(Op::Floor)?.add(2)?,
        _ => return None,
    };
    Some(Bound { of_loop: number, trips, test: test.block, others: Vec::new(), exits, difference, step })
}

fn negated(condition: ConditionCode) -> Option<ConditionCode> {
    use ConditionCode as C;
    Some(match condition {
        C::e => C::ne,
        C::ne => C::e,
        C::l => C::ge,
        C::ge => C::l,
        C::le => C::g,
        C::g => C::le,
        C::b => C::ae,
        C::ae => C::b,
        C::be => C::a,
        C::a => C::be,
        C::s => C::ns,
        C::ns => C::s,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use iced_x86::code_asm::*;

    use super::*;
    use crate::values::follow;

    /// Trip counts of a function's loops, outer ones first.
    fn trips(make: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Vec<Option<String>> {
        let mut assembler = CodeAssembler::new(64).unwrap();
        make(&mut assembler).unwrap();
        let bytes = assembler.assemble(0x1000).unwrap();
        let function = Function::read(0x1000, 0x1000, &bytes, &BTreeMap::new()).unwrap();
        let graph = Graph::of(&function);
        let values = follow(&function, &graph);
        let bounds = find(&function, &graph, &values);
        let of = |number: usize| bounds.iter().find(|bound| bound.of_loop == number);
        (0..graph.loops.len()).map(|number| of(number).map(|bound| bound.trips.to_string())).collect()
    }

    #[test]
    fn a_counted_loop_has_its_argument_as_bound() {
        let found = trips(|a| {
            let mut head = a.create_label();
            a.xor(eax, eax)?;
            a.set_label(&mut head)?;
            a.add(qword_ptr(rsi + rax * 8), 1)?;
            a.add(rax, 1)?;
            a.cmp(rax, rdi)?;
            a.jl(head)?;
            a.ret()
        });
        assert_eq!(found, [Some("arg0".to_owned())]);
    }

    #[test]
    fn pointers_cancel_and_steps_divide() {
        let found = trips(|a| {
            let mut head = a.create_label();
            a.lea(rdx, qword_ptr(rdi + rsi * 8))?;
            a.set_label(&mut head)?;
            a.mov(qword_ptr(rdi), 0)?;
            a.add(rdi, 16)?;
            a.cmp(rdi, rdx)?;
            a.jne(head)?;
            a.ret()
        });
        assert_eq!(found, [Some("ceil(8*arg1 - 16, 16) + 1".to_owned())]);
    }

    #[test]
    fn bounds_spilled_to_the_stack_and_in_memory_are_found() {
        let found = trips(|a| {
            let (mut outer, mut inner) = (a.create_label(), a.create_label());
            a.push(rbx)?;
            a.sub(rsp, 32)?;
            a.mov(qword_ptr(rsp + 8), rsi)?;
            a.mov(qword_ptr(rsp + 16), 0)?;
            a.set_label(&mut outer)?;
            a.mov(rcx, qword_ptr(rsp + 16))?;
            a.set_label(&mut inner)?;
            a.add(rcx, 1)?;
            a.cmp(rcx, qword_ptr(rdi + 32))?;
            a.jl(inner)?;
            a.mov(rax, qword_ptr(rsp + 16))?;
            a.add(rax, 1)?;
            a.mov(qword_ptr(rsp + 16), rax)?;
            a.cmp(rax, qword_ptr(rsp + 8))?;
            a.jne(outer)?;
            a.add(rsp, 32)?;
            a.pop(rbx)?;
            a.ret()
        });
        assert_eq!(found[0].as_deref(), Some("arg1"));
        assert_eq!(found[1].as_deref(), Some("-it1013 + [arg0 + 32]"));
    }

    #[test]
    fn loops_that_data_end_have_no_bound() {
        let found = trips(|a| {
            let mut head = a.create_label();
            a.set_label(&mut head)?;
            a.mov(rdi, qword_ptr(rdi))?;
            a.test(rdi, rdi)?;
            a.jne(head)?;
            a.ret()
        });
        assert_eq!(found, [None]);
    }

    #[test]
    fn two_latches_with_one_test_each_are_one_loop() {
        let found = trips(|a| {
            let (mut head, mut other, mut end) = (a.create_label(), a.create_label(), a.create_label());
            a.xor(eax, eax)?;
            a.set_label(&mut head)?;
            a.test(qword_ptr(rsi + rax * 8), rdx)?;
            a.je(other)?;
            a.add(rax, 1)?;
            a.cmp(rax, rdi)?;
            a.jne(head)?;
            a.jmp(end)?;
            a.set_label(&mut other)?;
            a.mov(qword_ptr(rsi), 0)?;
            a.add(rax, 1)?;
            a.cmp(rax, rdi)?;
            a.jne(head)?;
            a.set_label(&mut end)?;
            a.ret()
        });
        assert_eq!(found, [Some("arg0".to_owned())]);
    }

    #[test]
    fn a_countdown_and_a_constant() {
        let found = trips(|a| {
            let (mut outer, mut inner) = (a.create_label(), a.create_label());
            a.set_label(&mut outer)?;
            a.mov(ecx, 100)?;
            a.set_label(&mut inner)?;
            a.sub(ecx, 1)?;
            a.jne(inner)?;
            a.dec(edi)?;
            a.jns(outer)?;
            a.ret()
        });
        assert_eq!(found, [Some("arg0 + 1".to_owned()), Some("100".to_owned())]);
    }
}
