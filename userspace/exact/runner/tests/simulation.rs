//! A program under QEMU with simulated caches, read back as the parent does. Needs `qemu-x86_64`;
//! without it nothing is checked here.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::{
    ffi::{CString, OsStr},
    os::unix::ffi::OsStrExt as _,
    path::Path,
    process::Command,
    sync::atomic::Ordering::Relaxed,
};

use locality_cachesim::{Column, Config, Totals};
use locality_plugin::{extra, program::Program, region::Region, settings::Settings};
use locality_runner::embedded::Plugin;

/// What one process did, and the addresses of functions called.
fn simulate(cache: &str, words: &[&str], skip: &[&str], one_order: bool) -> Option<Totals> {
    let qemu = ["/usr/bin/qemu-x86_64", "/usr/local/bin/qemu-x86_64"]
        .into_iter()
        .find(|path| Path::new(path).exists())?;
    let folder = tempfile::tempdir().unwrap();
    let plugin = Plugin::create().unwrap();
    let mut settings = Settings::parse(&[]).unwrap();
    settings.qemu = qemu.into();
    settings.plugin = plugin.path();
    settings.folder = folder.path().to_owned();
    settings.reuse = false;
    settings.one_order = one_order;
    settings.skipped = skip.iter().map(|name| (*name).to_owned()).collect();
    settings.cache = Some(Config::parse(cache).unwrap());
    let arguments: Vec<CString> = words.iter().map(|word| CString::new(*word).unwrap()).collect();
    let program = Program::resolve(&arguments[0].clone(), arguments).unwrap();
    let (arguments, _) = settings.command(&program, Vec::new());
    let words = arguments.iter().map(|word| OsStr::from_bytes(word.as_bytes()));
    let output = Command::new(qemu).args(words.skip(1)).env_clear().output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let region = Region::open(&file).unwrap();
    let header = region.header();
    assert_eq!(header.skipped_found.load(Relaxed), (1 << skip.len()) - 1);
    let unseen = |thread: usize, consumed: u64| region.unseen(thread, consumed);
    let totals = if one_order {
        let threads = 0..header.threads.load(Relaxed) as usize;
        extra::simulated(&region, &header.extra, threads, unseen).unwrap().unwrap()
    } else {
        extra::simulated(&region, &region.threads()[0].extra, [0], unseen).unwrap().unwrap()
    };
    region.unmap();
    assert!(totals.balances());
    assert_eq!((totals.torn, totals.full, totals.tree.calls_folded), (0, 0, 0));
    Some(totals)
}

const PLAIN: &str = "L1:32768/8/64+LL:1048576/16/64+objects";
const CALLGRIND: &str = "L1:32768/8/64+LL:1048576/16/64+I1:32768/8/64+callgrind+objects";

#[test]
fn a_program_has_misses_use_and_a_call_tree() {
    let Some(totals) = simulate(PLAIN, &["/bin/echo", "one"], &[], false) else { return };
    let sum = |column| totals.sum[column];
    assert!(sum(Column::Dr) > 10_000 && sum(Column::Dw) > 3_000, "{:?}", totals.sum);
    let misses = sum(Column::D1mr) + sum(Column::D1mw);
    assert!(misses >= sum(Column::DLmr) + sum(Column::DLmw) && sum(Column::DLmr) > 100);
    // A line loses less than its 64 bytes, and costs at most one access.
    assert!((1..64 * misses).contains(&sum(Column::SpLoss1)));
    assert!((1..1_000_000 * misses).contains(&sum(Column::AcCost1)));
    assert!(totals.functions.len() > 30 && totals.arcs.len() > 30);
    // The dynamic linker's first function stands above all.
    assert!(totals.unknown_caller().is_zero());
    assert_eq!((totals.roots.len(), totals.roots[0].inclusive), (1, totals.sum));
    assert!(totals.arcs.iter().all(|arc| arc.site != 0 && arc.callee != 0));
    // Both orders of a single thread are the same, and so is every count.
    let again = simulate(PLAIN, &["/bin/echo", "one"], &[], true).unwrap();
    assert_eq!(again.sum, totals.sum);
    assert_eq!(again.functions, totals.functions);
    // Callgrind's model sees the same functions, and no blocks are missed where not all are told.
    let fetched = simulate(CALLGRIND, &["/bin/echo", "one"], &[], false).unwrap();
    assert!(fetched.sum[Column::Ir] > 100_000 && fetched.sum[Column::I1mr] > 300);
    let entries =
        |totals: &Totals| totals.functions.iter().map(|function| function.entry).collect::<Vec<_>>();
    assert_eq!(entries(&fetched), entries(&totals));
    assert_eq!(
        fetched.arcs.iter().map(|arc| arc.calls).sum::<u64>(),
        totals.arcs.iter().map(|arc| arc.calls).sum::<u64>()
    );
}

#[test]
fn skipped_functions_hand_their_costs_to_their_callers() {
    let Some(plain) = simulate(PLAIN, &["/bin/echo", "one"], &[], false) else { return };
    let skipped = simulate(PLAIN, &["/bin/echo", "one"], &["_dl_relocate_object"], false).unwrap();
    assert_eq!(plain.sum, skipped.sum);
    assert_eq!(skipped.roots[0].inclusive, plain.roots[0].inclusive);
    // The function is still known, but nothing is charged to it, and nothing calls it any more.
    let charged = |totals: &Totals, entry: u64| {
        let number = totals.functions.iter().position(|function| function.entry == entry)?;
        let calls = totals.arcs.iter().filter(|arc| arc.callee as usize == number).count();
        Some((!totals.functions[number].inclusive.is_zero(), calls > 0))
    };
    let gone: Vec<u64> = skipped
        .functions
        .iter()
        .map(|function| function.entry)
        .filter(|entry| *entry != 0 && charged(&skipped, *entry) == Some((false, false)))
        .collect();
    assert_eq!(gone.len(), 1);
    assert_eq!(charged(&plain, gone[0]), Some((true, true)));
}
