//! Texts of the kernel, of runtimes and of reports.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use fastrand::Rng;
use locality_compare::{print, reports};
use locality_kernel::proc;
use locality_report::{json, schema};
use locality_symbols::{CodeAddress, Mappings, Processes, Symbolizer, demangle};
use serde_json::Value;

use super::Target;
use crate::random;

/// A valid text, mutated in half of the cases.
fn one_of(seeds: &[&str], random: &mut Rng) -> Vec<u8> {
    let mut text = Vec::new();
    for _ in 0..1 + random.usize(..4) {
        text.extend(seeds[random.usize(..seeds.len())].bytes());
    }
    if random.u8(..8) > 0 {
        random::mutate(&mut text, random);
    }
    text
}

const MAPS: [&str; 6] = [
    "5581fa7ea000-5581fa7ec000 r--p 00000000 fe:00 14680129                   /usr/bin/cat\n",
    "5581fa7ec000-5581fa7f0000 r-xp 00002000 fe:00 14680129                   /usr/bin/c at (deleted)\n",
    "7f2c1a5d8000-7f2c1a5e0000 rw-s 00000000 00:01 2057                       /memfd:a\\012b\n",
    "7ffd4b2f1000-7ffd4b312000 rw-p 00000000 00:00 0                          [stack]\n",
    "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n",
    "7fff7000-8fff7000 rw-p 00000000 00:00 0 \n",
];

/// `/proc/PID/maps`.
pub struct Maps;

impl Target for Maps {
    fn make(&mut self, random: &mut Rng) -> Vec<u8> {
        one_of(&MAPS, random)
    }

    fn run(&mut self, input: &[u8]) {
        let mappings = Mappings::parse(input);
        for address in [0, 0x5581_fa7e_c010, u64::MAX] {
            if let Some(found) = mappings.find(address) {
                assert!(found.contains(address), "{found:?} does not contain {address}");
            }
        }
        for mapping in mappings.iter() {
            std::hint::black_box(mappings.find(mapping.start));
        }
    }
}

const PROC: [&str; 5] = [
    "Name:\ta b\\n)\nState:\tt (tracing stop)\nTgid:\t12\nPPid:\t1\nTracerPid:\t7\nUid:\t0\t0\t0\t0\nVmSize:\t 12 kB\n",
    "SigBlk:\tffffffffffffffff\nSigCgt:\t0000000000000001\nVmSize:\t    2232 kB\n",
    "12 (a) b) R 1 12 12 0 -1 4194304 97 0 0 0 0 0 0 0 20 0 1 0 1187342 2334720 224 18446744073709551615 1 1\n",
    "\u{7}\0\0\0\0\0\0\0\0\0\u{10}\0\0\0\0\0",
    MAPS[1],
];

/// Further files of `/proc`.
pub struct Proc;

impl Target for Proc {
    fn make(&mut self, random: &mut Rng) -> Vec<u8> {
        one_of(&PROC, random)
    }

    fn run(&mut self, input: &[u8]) {
        let text = String::from_utf8_lossy(input);
        std::hint::black_box((proc::parse_status(&text), proc::parse_start_ticks(&text)));
        std::hint::black_box((proc::has_leak_checker(&text), proc::loader_base(input)));
        std::hint::black_box(proc::is_in_file_at(0x5581_fa7e_c010, 0x5581_fa7e_c020, &text));
    }
}

/// A runtime's map of functions; this process has a page of generated code for the map.
pub struct PerfMap {
    symbolizer: Symbolizer,
    page: u64,
    file: File,
    path: PathBuf,
}

impl PerfMap {
    pub fn open() -> Result<PerfMap> {
        let pid = std::process::id();
        let path = PathBuf::from(format!("/tmp/perf-{pid}.map"));
        let _ = std::fs::remove_file(&path);
        let file =
            File::options().write(true).create_new(true).open(&path).context("cannot write a perf map")?;
        let access = libc::PROT_READ | libc::PROT_EXEC;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new page, at a place that the kernel chooses.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, kind, -1, 0) };
        anyhow::ensure!(page != libc::MAP_FAILED, "cannot map a page");
        let processes = Processes::new();
        processes.attach(pid).context("cannot read our own mappings")?;
        Ok(PerfMap { symbolizer: Symbolizer::new(processes), page: page as u64, file, path })
    }
}

impl Drop for PerfMap {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Target for PerfMap {
    fn make(&mut self, random: &mut Rng) -> Vec<u8> {
        let mut text = Vec::new();
        for _ in 0..random.usize(..12) {
            // Places in the page, whose address differs from process to process, begin with a plus.
            let start = random.u64(..4096);
            let size = if random.u8(..6) == 0 { random::number(random) } else { random.u64(..600) };
            let name = ["f", "LazyCompile:*a b.js:1", "\u{e4}\u{2028}", "", "[x]"][random.usize(..5)];
            let sign = if random.u8(..6) == 0 { "" } else { "+" };
            text.extend(format!("{sign}{start:x} {size:x} {name}\n").bytes());
        }
        if random.bool() {
            random::mutate(&mut text, random);
        }
        text
    }

    fn run(&mut self, input: &[u8]) {
        let mut text = Vec::with_capacity(input.len());
        for line in input.split_inclusive(|byte| *byte == b'\n') {
            let place = line.strip_prefix(b"+").and_then(|line| line.split(|byte| *byte == b' ').next());
            let place = place.and_then(|place| u64::from_str_radix(str::from_utf8(place).ok()?, 16).ok());
            match place {
                Some(place) => {
                    text.extend(format!("{:x}", self.page.wrapping_add(place)).bytes());
                    text.extend(line.iter().skip_while(|byte| **byte != b' '));
                }
                None => text.extend(line),
            }
        }
        let written = self
            .file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)))
            .and_then(|_| self.file.write_all(&text));
        if written.is_err() {
            return;
        }
        for inside in [0, 100, 4095] {
            let frames = self
                .symbolizer
                .symbolize(std::process::id(), CodeAddress::Exact(self.page.wrapping_add(inside)));
            assert!(!frames.is_empty(), "an address has a frame");
        }
    }
}

const NAMES: [&str; 9] = [
    "_ZN4core3fmt9Formatter3pad17h0123456789abcdefE",
    "_RNvCs15kBYyAo9fc_7mycrate7example",
    "_RINvNtC3std3mem8align_ofdEC4foo",
    "_ZNSt6vectorIiSaIiEE9push_backEOi",
    "_ZN3fooIJXsZT_EXspT_EEE1fIiEEvDpT_",
    "_ZZN1AC1EvENKUlvE_clEv",
    "_Z1fIXplL_Z1gvEcvT_LZ1gvEEEvv",
    "_RYFG_FF",
    "S_T_St",
];

/// Symbols.
pub struct Demangle;

impl Target for Demangle {
    fn make(&mut self, random: &mut Rng) -> Vec<u8> {
        let mut name = one_of(&NAMES, random);
        if random.u8(..50) == 0 {
            // Deep nesting, fatal for recursive readers.
            let part = ["I", "P", "N1a", "FG_", "Xpl", "J", "R", "S_"][random.usize(..8)];
            let deep = part.repeat(random.usize(..20_000));
            name.extend(deep.bytes());
        }
        name
    }

    fn run(&mut self, input: &[u8]) {
        std::hint::black_box(demangle(&String::from_utf8_lossy(input)));
    }
}

/// A report, as small as one can be compared.
const REPORT: &str = r#"{"schema":"locality-report/2","frames":[{"function":"f"}],"stacks":[[0]],
"pairs":[{"use":{"stack":0},"reuse":{"stack":0}}],"reuse":{"8":{"cold_fraction":0.125,"footprint":1024,
"time":{"unit":"accesses","bins":[{"low":0,"high":1,"fraction":0.75},{"low":1,"high":64,"fraction":0.25}]},
"stack":{"unit":"granules","bins":[{"low":0,"high":2,"fraction":0.5},{"low":4,"high":8,"fraction":0.5}]},
"miss_ratio_curve":[{"bytes":8,"ratio":1},{"bytes":4096,"ratio":0.5}]},
"64":{"cold_fraction":0.5,"stack":{"unit":"granules","bins":[{"low":0,"high":18446744073709551615,"fraction":1}]}}}}"#;

/// Two reports to compare: the input is both texts with a zero byte between.
pub struct Json;

fn change(value: &mut Value, random: &mut Rng) {
    if random.u8(..8) == 0 {
        *value = match random.u8(..7) {
            0 => Value::Null,
            1 => Value::from(random::number(random)),
            2 => Value::from(f64::from_bits(random.u64(..))),
            3 => Value::from([0.0, -1.0, 1e300, 1e-320, 0.5][random.usize(..5)]),
            4 => Value::from("x"),
            5 => Value::Array(vec![value.clone(), value.clone()]),
            _ => Value::from(-(random::number(random) as i64 >> 1)),
        };
        return;
    }
    match value {
        Value::Array(values) if !values.is_empty() => {
            let at = random.usize(..values.len());
            change(&mut values[at], random);
        }
        Value::Object(values) if !values.is_empty() => {
            let at = random.usize(..values.len());
            if random.u8(..40) == 0 {
                let key = values.keys().nth(at).cloned().unwrap_or_default();
                values.remove(&key);
            } else if let Some(value) = values.values_mut().nth(at) {
                change(value, random);
            }
        }
        _ => {}
    }
}

impl Target for Json {
    fn make(&mut self, random: &mut Rng) -> Vec<u8> {
        let mut text = Vec::new();
        for turn in 0..2 {
            let mut report: Value = serde_json::from_str(REPORT).unwrap_or_default();
            for _ in 0..random.usize(..6) {
                change(&mut report, random);
            }
            let mut one = report.to_string().into_bytes();
            if random.u8(..16) == 0 {
                random::mutate(&mut one, random);
            }
            one.retain(|byte| *byte != 0);
            text.extend(one);
            text.extend(if turn == 0 { &[0][..] } else { &[] });
        }
        text
    }

    fn run(&mut self, input: &[u8]) {
        let texts: Vec<&[u8]> = input.splitn(2, |byte| *byte == 0).collect();
        let reports: Vec<_> = texts
            .iter()
            .filter_map(|text| match schema::read(text) {
                Ok(report) => Some(reports::read(&report)),
                Err(unreadable) => reports::Unfit::of(unreadable).ok().map(Err),
            })
            .collect();
        for unfit in reports.iter().filter_map(|report| report.as_ref().err()) {
            std::hint::black_box(unfit.to_string());
        }
        if let [Ok(a), Ok(b)] = reports.as_slice() {
            match reports::compare(a, b) {
                Ok(comparison) => {
                    super::profiles::check_text(&print::text(&comparison, "a", "b"));
                    std::hint::black_box(json::page(&print::value(&comparison, "a", "b")));
                }
                Err(unfit) => {
                    std::hint::black_box(unfit.to_string());
                }
            }
        }
    }
}
