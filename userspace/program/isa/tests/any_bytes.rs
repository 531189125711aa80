//! For arbitrary bytes and registers, no call panics, and answers are sound.

use locality_isa::{Code, Registers, Site, Trap, Watched, accessing_instruction, first_access};
use proptest::prelude::*;

prop_compose! {
    fn registers()(v in proptest::array::uniform16(any::<u64>()), rflags: u64, fs_base: u64, gs_base: u64) -> Registers {
        Registers {
            rax: v[0], rcx: v[1], rdx: v[2], rbx: v[3], rsp: v[4], rbp: v[5], rsi: v[6], rdi: v[7],
            r8: v[8], r9: v[9], r10: v[10], r11: v[11], r12: v[12], r13: v[13], r14: v[14], r15: v[15],
            rip: 0, rflags, fs_base, gs_base,
        }
    }
}

/// Addresses of code, with addresses near the wrap of sums.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..4_u64, u64::MAX - 300..=u64::MAX]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(20_000) })]

    #[test]
    fn first_access_never_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        address in address(),
        offset in 0..310_u64,
        registers in registers(),
    ) {
        let registers = Registers { rip: address.wrapping_add(offset), ..registers };
        if let Ok(access) = first_access(&Code { address, bytes: &bytes }, &registers) {
            prop_assert!(access.size > 0);
            prop_assert!(access.skipped > 0 || access.ip == registers.rip);
            prop_assert!(access.ip.wrapping_sub(address) < bytes.len() as u64);
            let words: Vec<u64> = access.words().collect();
            let last = access.address.wrapping_add(u64::from(access.size) - 1);
            prop_assert_eq!(words.first(), Some(&(access.address & !7)));
            prop_assert_eq!(words.last(), Some(&(last & !7)));
            prop_assert!(words.is_sorted_by_key(|word| word.wrapping_sub(access.address & !7)));
        }
    }

    #[test]
    fn accessing_instruction_never_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        address in address(),
        offset in 0..310_u64,
        registers in registers(),
        watched in any::<u64>(),
        on_stack in -16..16_i64,
        function_start in proptest::option::of(0..310_u64),
        top_of_stack in proptest::option::of(0..310_u64),
        is_on_stack: bool,
        size in 0..4_u8,
    ) {
        let registers = Registers { rip: address.wrapping_add(offset), ..registers };
        let near_stack = registers.rsp.wrapping_add_signed(on_stack);
        let trap = Trap {
            registers,
            watched: Watched { address: if is_on_stack { near_stack } else { watched }, bytes: 1 << size },
            function_start: function_start.map(|start| address.wrapping_add(start)),
            top_of_stack: top_of_stack.map(|top| address.wrapping_add(top)),
            call_site: None,
        };
        if let Ok(found) = accessing_instruction(&Code { address, bytes: &bytes }, &trap)
            && let Site::Instruction { ip } = found.site
        {
            prop_assert!(registers.rip.wrapping_sub(ip) <= 15);
        }
    }
}
