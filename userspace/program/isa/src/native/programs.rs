//! Real programs, stepped: at each step the next access is predicted, and the steps that follow
//! must bear it out; after each access the trap that a watchpoint would have raised is given back,
//! and must be explained rightly.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::tracee::Tracee;
use crate::first_access::walk;
use crate::known::Known;
use crate::{
    AccessKind, Certainty, Code, KnownAccess, NotFound, Registers, Site, Trap, Unreachable, Watched,
    accessing_instruction, first_access,
};

/// Steps per program; LOCALITY_ISA_STEPS asks for more.
const STEPS: usize = 30_000;

fn steps() -> usize {
    std::env::var("LOCALITY_ISA_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(STEPS)
}

/// Prediction at one step for the following steps.
struct Prediction {
    path: VecDeque<(u64, Known)>,
    result: Result<KnownAccess, Unreachable>,
}

#[derive(Default)]
struct Tally {
    steps: usize,
    predicted: usize,
    after_skipping: usize,
    values_checked: usize,
    unreachable: BTreeMap<Unreachable, usize>,
    traps: usize,
    traps_right: usize,
    by_certainty: BTreeMap<Certainty, (usize, usize)>,
    through_jump: usize,
    spent: Duration,
}

#[test]
fn programs_do_as_predicted() {
    // The first program from its first instruction, the dynamic linker's; the rest from their own.
    let programs: [&[&str]; 5] = [
        &["/bin/ls", "-l", "/"],
        &["/bin/sh", "-c", "i=0; while [ $i -lt 9999 ]; do i=$((i+1)); done"],
        &["/usr/bin/sort", "/etc/services"],
        &["/bin/gzip", "-c", "/bin/ls"],
        &["/usr/bin/python3", "-S", "-c", "print(sum(x * 0.5 for x in range(9999)))"],
    ];
    for (index, command) in programs.into_iter().enumerate() {
        let Some(tracee) = Tracee::start(command) else { continue };
        if index > 0 {
            tracee.run_to_entry();
        }
        let tally = follow(tracee);
        println!(
            "{}: {} steps; {} accesses predicted, {} of them beyond rip, {} checked by value; unreachable {:?}",
            command[0],
            tally.steps,
            tally.predicted,
            tally.after_skipping,
            tally.values_checked,
            tally.unreachable
        );
        println!(
            "    {} traps, {} explained rightly ({:.4}); by certainty (right, wrong) {:?}; {} through a jump",
            tally.traps,
            tally.traps_right,
            tally.traps_right as f64 / tally.traps as f64,
            tally.by_certainty,
            tally.through_jump
        );
        println!("    first_access {:?} a call", tally.spent / tally.steps as u32);
        assert!(tally.predicted > tally.steps / 2 && tally.values_checked > tally.steps / 20);
        assert!(tally.traps_right as f64 >= 0.99 * tally.traps as f64);
        assert_eq!(tally.by_certainty.get(&Certainty::Verified).map(|(_, wrong)| *wrong), Some(0));
    }
}

fn follow(mut tracee: Tracee) -> Tally {
    let mut tally = Tally::default();
    let mut pending: VecDeque<Prediction> = VecDeque::new();
    while tally.steps < steps() {
        let before = tracee.registers();
        let code = tracee.code_around(before.rip);
        let instruction = code.decode(&mut code.decoder(), before.rip).unwrap();
        let mut path = VecDeque::new();
        let result = walk(&code, &before, |ip, known| path.push_back((ip, known.clone())));
        pending.push_back(Prediction { path, result });
        let here = result.ok().filter(|access| access.skipped == 0);
        let started = Instant::now();
        let public = first_access(&code, &before);
        tally.spent += started.elapsed();
        assert_eq!(public, result);
        pending.retain_mut(|prediction| is_still_open(prediction, &before, here, &mut tally));
        match result {
            Ok(access) if access.skipped == 0 => {}
            Ok(_) => tally.after_skipping += 1,
            Err(reason) => *tally.unreachable.entry(reason).or_default() += 1,
        }
        tally.steps += 1;

        let loaded = here.and_then(|access| tracee.read(access.address, access.size.min(8)));
        if !tracee.step() {
            break;
        }
        let after = tracee.registers();
        if let Some(access) = here {
            check_value(&tracee, &instruction, access, loaded, &before, &after, &mut tally);
            check_trap(&mut tracee, &instruction, access, &after, &mut tally);
        }
    }
    tally
}

/// Compares the next point of a predicted path with the registers that the processor has there.
fn is_still_open(
    prediction: &mut Prediction,
    now: &Registers,
    here: Option<KnownAccess>,
    tally: &mut Tally,
) -> bool {
    let (ip, known) = prediction.path.pop_front().unwrap();
    assert_eq!(ip, now.rip, "path");
    for (number, (bits, value)) in known.general_bits().iter().zip(now.general()).enumerate() {
        assert_eq!(bits.value & bits.mask, value & bits.mask, "register {number} at {ip:#x}");
    }
    // The step's own trap flag, and resume flag, are not the program's.
    let mask = known.flags.mask & 0xcd5;
    assert_eq!(known.flags.value & mask, now.rflags & mask, "flags at {ip:#x}");
    if !prediction.path.is_empty() {
        assert_eq!(here, None, "an access at {ip:#x} was passed over");
        return true;
    }
    if let Ok(access) = prediction.result {
        assert_eq!(here, Some(KnownAccess { skipped: 0, ..access }));
        tally.predicted += 1;
    }
    false
}

/// Where the instruction moves a value between memory and a register, that value shows whether the
/// address is right.
fn check_value(
    tracee: &Tracee,
    instruction: &Instruction,
    access: KnownAccess,
    loaded: Option<u64>,
    before: &Registers,
    after: &Registers,
    tally: &mut Tally,
) {
    let stored = || tracee.read(access.address, access.size);
    let of = |registers: &Registers, register: Register| Known::all(registers).get(register);
    let register = |index: u32| match instruction.op_kind(index) {
        OpKind::Register if instruction.op_register(index).is_gpr() => Some(instruction.op_register(index)),
        _ => None,
    };
    let (in_memory, in_register) = match instruction.mnemonic() {
        Mnemonic::Mov | Mnemonic::Movzx => match (register(0), register(1)) {
            (Some(to), _) => (loaded, of(after, to)),
            (_, Some(from)) => (stored(), of(before, from)),
            _ => return,
        },
        Mnemonic::Push => match register(0) {
            Some(from) => (stored(), of(before, from)),
            None => return,
        },
        Mnemonic::Pop => match register(0) {
            Some(to) => (loaded, of(after, to)),
            None => return,
        },
        Mnemonic::Ret => (loaded, Some(after.rip)),
        Mnemonic::Leave => (loaded, Some(after.rbp)),
        Mnemonic::Call if instruction.op0_kind() != OpKind::Memory => (stored(), Some(instruction.next_ip())),
        Mnemonic::Jmp | Mnemonic::Call => (loaded, Some(after.rip)),
        _ => return,
    };
    // The kernel's clock page (vvar) cannot be read from outside.
    if in_memory.is_none() {
        return;
    }
    assert_eq!(in_memory, in_register, "{:?} at {:#x}", instruction.code(), instruction.ip());
    tally.values_checked += 1;
}

fn check_trap(
    tracee: &mut Tracee,
    instruction: &Instruction,
    access: KnownAccess,
    after: &Registers,
    tally: &mut Tally,
) {
    let top_of_stack = tracee.read(after.rsp, 8);
    let trap = Trap {
        registers: *after,
        watched: Watched { address: access.words().next().unwrap(), bytes: 8 },
        function_start: None,
        top_of_stack,
        call_site: None,
    };
    let site_bytes = match top_of_stack {
        Some(top) if trap.is_on_top_of_stack() => tracee.bytes_before(top),
        _ => None,
    };
    let call_site = site_bytes.as_ref().map(|(address, bytes)| Code { address: *address, bytes });
    let call_site_is_known = call_site.is_some();
    let trap = Trap { call_site, ..trap };
    let code = tracee.code_around(after.rip);
    let found = accessing_instruction(&code, &trap);
    let truth = match instruction.flow_control() {
        FlowControl::Next => Some(Site::Instruction { ip: instruction.ip() }),
        FlowControl::Call => Some(Site::Call { return_address: Some(instruction.next_ip()) }),
        FlowControl::IndirectCall if instruction.op0_kind() != OpKind::Memory => {
            Some(Site::Call { return_address: Some(instruction.next_ip()) })
        }
        FlowControl::Return => Some(Site::Return),
        // Through memory: nothing leads back from the target.
        _ => None,
    };
    let Some(truth) = truth else {
        tally.through_jump += 1;
        if let Ok(found) = found {
            assert!(found.certainty < Certainty::Verified, "{found:?} for a jump at {:#x}", instruction.ip());
        }
        return;
    };
    tally.traps += 1;
    match found {
        Ok(found) => {
            let is_right = found.site == truth;
            // The code at the call site was given, so that only an indirect call's target remains open.
            if matches!(found.site, Site::Call { .. }) && call_site_is_known {
                assert!(found.certainty >= Certainty::Consistent, "{found:?} at {:#x}", instruction.ip());
            }
            let (right, wrong) = tally.by_certainty.entry(found.certainty).or_default();
            *(if is_right { &mut *right } else { &mut *wrong }) += 1;
            tally.traps_right += usize::from(is_right);
            // A second access of the same instruction may touch the same word.
            let is_kind = found.kind == access.kind || found.kind == AccessKind::ReadWrite;
            assert!(!is_right || is_kind, "{found:?} for {access:?}");
            if !is_right {
                println!("wrong: {found:?} for {:?} at {:#x}", instruction.code(), instruction.ip());
            }
        }
        Err(NotFound::AfterBranch | NotFound::NoInstruction) => {
            println!("not found: {found:?} for {:?} at {:#x}", instruction.code(), instruction.ip());
        }
    }
}
