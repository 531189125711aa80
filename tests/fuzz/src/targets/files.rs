//! Programs whose ELF or DWARF is damaged: names and lines, unwinding, data objects, attribution
//! without addresses.

use std::ffi::c_void;
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use fastrand::Rng;
use locality_approximate::{Analyzer, Frame, Level, Options, Sample};
use locality_objects::{Place, Resolver};
use locality_symbols::{ModuleInfo, claims_are_bounded};
use locality_symbols::{Processes, Registers, StackSlice, Symbolizer, Unwinder};

use super::Target;
use crate::random;

/// The program, compiled in each way below.
const SOURCE: &str = r"
struct inner { short kind; union { long whole; float part; } value; unsigned flag : 3; };
struct node { struct node *next; struct inner inside[3]; double (*call)(double); };
enum shade { DARK, LIGHT = 7 };
struct node nodes[40]; static long table[16][8]; _Thread_local int own; enum shade shade; const char *name;
static inline long sum(struct node *at, long many) {
    long all = 0;
    for (long i = 0; i < many; i++) all += at[i].inside[i % 3].value.whole + table[i % 16][i % 8];
    return all;
}
long walk(struct node *from, int deep) {
    long all = deep > 3 ? 0 : walk(from->next, deep + 1);
    for (struct node *at = from; at; at = at->next) { at->inside[0].kind++; all += sum(at, 3); }
    return all;
}
int fill(long *to, const long *from, unsigned long many) {
    volatile struct inner local[4];
    for (unsigned long i = 0; i < many; i++) { to[i] = from[many - i - 1] * 3; local[i % 4].kind = (short) i; }
    return local[many % 4].kind + own;
}
long begin(int many) { return walk(nodes, many) + fill(table[0], table[3], 8) + shade; }
";

/// Name and compiler options of each way.
const WAYS: [(&str, &[&str]); 7] = [
    ("dwarf5", &["-g", "-gdwarf-5", "-O2"]),
    ("dwarf4", &["-g", "-gdwarf-4", "-O1"]),
    ("plain", &["-g", "-O0", "-fno-omit-frame-pointer"]),
    ("zlib", &["-g", "-O2", "-gz=zlib"]),
    ("split5", &["-g", "-gdwarf-5", "-gsplit-dwarf", "-O1"]),
    ("split4", &["-g", "-gdwarf-4", "-gsplit-dwarf", "-O1"]),
    ("stripped", &["-O2", "-s"]),
];

/// Compiles the seeds into the folder, unless present.
pub fn prepare(folder: &Path) -> Result<()> {
    let seeds = folder.join("seeds");
    fs::create_dir_all(&seeds)?;
    fs::write(seeds.join("seed.c"), SOURCE)?;
    let seeds = seeds.canonicalize()?;
    for (name, options) in WAYS {
        if seeds.join(name).exists() {
            continue;
        }
        let made = Command::new("gcc")
            .args(["-shared", "-fPIC", "-nostdlib", "-Wl,--build-id"])
            .args(options)
            .args(["-o", name, "seed.c"])
            .current_dir(&seeds)
            .status()
            .context("cannot run gcc, which compiles the programs to be damaged")?;
        if !made.success() {
            bail!("gcc could not compile the program {name}");
        }
    }
    Ok(())
}

/// A folder for files of one execution, in memory if possible.
pub fn room() -> Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.context("cannot make a temporary folder")
}

/// The reader of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    Symbols,
    Objects,
    Approximate,
}

/// A program before it is damaged.
struct Seed {
    bytes: Vec<u8>,
    /// Offset and length of each section, debug sections several times.
    places: Vec<(usize, usize)>,
    /// Offsets of section headers, and of the program headers that are loaded.
    sections: Vec<usize>,
    segments: Vec<usize>,
}

fn word(bytes: &[u8], at: usize, width: usize) -> usize {
    let mut word = [0; 8];
    random::set(&mut word, 0, bytes.get(at..at + width).unwrap_or_default());
    u64::from_le_bytes(word) as usize
}

impl Seed {
    fn read(path: &Path) -> Result<Seed> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let (headers, count) = (word(&bytes, 40, 8), word(&bytes, 60, 2));
        let sections: Vec<usize> = (0..count).map(|i| headers + 64 * i).collect();
        let segments: Vec<usize> = (0..word(&bytes, 56, 2)).map(|i| word(&bytes, 32, 8) + 56 * i).collect();
        let segments = segments.into_iter().filter(|at| word(&bytes, *at, 4) == 1).collect();
        let mut places = Vec::new();
        for at in &sections {
            let (kind, flags) = (word(&bytes, at + 4, 4), word(&bytes, at + 8, 8));
            let place = (word(&bytes, at + 24, 8), word(&bytes, at + 32, 8));
            // Sections that are not loaded have debug information, symbols and names.
            let weight = if kind == 8 || place.1 == 0 {
                0
            } else if flags & 2 == 0 {
                4
            } else {
                1
            };
            places.extend(std::iter::repeat_n(place, weight));
        }
        Ok(Seed { bytes, places, sections, segments })
    }
}

/// The readers of program files.
pub struct Files {
    reader: Reader,
    seeds: Vec<Seed>,
    room: tempfile::TempDir,
}

impl Files {
    pub fn open(reader: Reader, folder: &Path) -> Result<Files> {
        let seeds = folder.join("seeds");
        let seeds = WAYS.iter().map(|(name, _)| Seed::read(&seeds.join(name))).collect::<Result<_>>()?;
        Ok(Files { reader, seeds, room: room()? })
    }
}

impl Target for Files {
    /// The number of the seed, a number for addresses, and the file.
    fn make(&mut self, random: &mut Rng) -> Vec<u8> {
        let number = random.usize(..self.seeds.len());
        let seed = &self.seeds[number];
        let mut file = seed.bytes.clone();
        for _ in 0..1 << random.u8(..4) {
            let value = random::number(random).to_le_bytes();
            let width = 1 << random.u8(..4);
            let field = |random: &mut Rng, of: &[usize], size: usize| {
                of.get(random.usize(..of.len().max(1))).map_or(0, |at| at + random.usize(..size / 4) * 4)
            };
            match random.u8(..16) {
                0 => random::set(&mut file, field(random, &seed.sections, 64), &value[..width]),
                1 => random::set(&mut file, field(random, &seed.segments, 56), &value[..width]),
                2 => random::set(&mut file, 16 + random.usize(..48), &value[..width]),
                3 if random.u8(..8) == 0 => file.truncate(random.usize(..seed.bytes.len())),
                kind => {
                    let (start, len) = seed.places[random.usize(..seed.places.len())];
                    let at = start + random.usize(..if kind == 4 { len.min(48) } else { len });
                    match random.u8(..4) {
                        0 => random::set(&mut file, at, &value[..width]),
                        1 => random::set(&mut file, at, &[random.u8(..)]),
                        2 => random::set(&mut file, at, &[0xff; 10][..random.usize(1..10)]),
                        _ => {
                            let (from, len) = seed.places[random.usize(..seed.places.len())];
                            let from = from + random.usize(..len);
                            let piece = seed.bytes.get(from..from + random.usize(1..32)).unwrap_or_default();
                            random::set(&mut file, at, piece);
                        }
                    }
                }
            }
        }
        let mut input = vec![number as u8];
        input.extend(random.u64(..).to_le_bytes());
        input.extend(file);
        input
    }

    fn run(&mut self, input: &[u8]) {
        let mut input = random::Input(input);
        let (number, addresses) = (usize::from(input.u8()), input.u64());
        let Some(seed) = self.seeds.get(number) else { return };
        let path = self.room.path().join("damaged");
        let _ = fs::remove_file(&path);
        if fs::write(&path, input.0).is_err() {
            return;
        }
        let mut random = Rng::with_seed(addresses);
        match self.reader {
            Reader::Symbols => symbols(&path, input.0, &mut random),
            Reader::Approximate => approximate(&path, &mut random),
            Reader::Objects => objects(&path, seed, &mut random),
        }
    }
}

/// An address in the code or data of the seeds.
fn address(random: &mut Rng) -> u64 {
    match random.u8(..8) {
        0 => random::number(random),
        1 => 0x3000 + random.u64(..0x3000),
        _ => 0x1000 + random.u64(..0x300),
    }
}

fn symbols(path: &Path, file: &[u8], random: &mut Rng) {
    std::hint::black_box(claims_are_bounded(file));
    let mut symbolizer = Symbolizer::new(Processes::new());
    let module = ModuleInfo { path: path.display().to_string(), build_id: String::new() };
    for _ in 0..12 {
        let frames = symbolizer.symbolize_in_file(&module, address(random));
        assert!(!frames.is_empty(), "an address has a frame");
    }
}

fn approximate(path: &Path, random: &mut Rng) {
    let mut analyzer = Analyzer::new();
    let Ok(module) = analyzer.open(path) else { return };
    let mut samples = Vec::new();
    for _ in 0..12 {
        let frames =
            (0..1 + random.usize(..3)).map(|_| Some(Frame { module, address: address(random) })).collect();
        samples.push(Sample { frames, weight: 1.0 });
    }
    for level in [Level::Line, Level::Instruction] {
        let found = analyzer.rank(samples.clone(), &Options { level, ..Options::default() });
        let sum: f64 = found.variables.iter().map(|variable| variable.share).sum();
        let sum = sum + found.unattributed.values().sum::<f64>();
        assert!((sum - 1.0).abs() < 1e-6, "shares sum to {sum}");
    }
}

/// A range of addresses with the file mapped as in the undamaged headers.
struct Mapped {
    base: *mut c_void,
    len: usize,
}

impl Mapped {
    fn new(path: &Path, seed: &Seed) -> Option<Mapped> {
        let file = File::open(path).ok()?;
        let len = 1 << 16;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new range, at a place that the kernel chooses.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let mapped = Mapped { base, len };
        for at in &seed.segments {
            let field = |offset, width| word(&seed.bytes, at + offset, width);
            let (flags, offset, start, size) = (field(4, 4), field(8, 8), field(16, 8), field(40, 8));
            let skip = start % 4096;
            let (from, bytes) = (start - skip, size + skip);
            if from + bytes > len {
                continue;
            }
            let access = if flags & 1 == 1 { libc::PROT_READ | libc::PROT_EXEC } else { libc::PROT_READ };
            let kind = libc::MAP_PRIVATE | libc::MAP_FIXED;
            // SAFETY: pages within the range that was just reserved.
            unsafe {
                libc::mmap(
                    base.add(from),
                    bytes,
                    access,
                    kind,
                    file.as_raw_fd(),
                    (offset - skip) as libc::off_t,
                )
            };
        }
        Some(mapped)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the reserved range, without remaining references.
        unsafe { libc::munmap(self.base, self.len) };
    }
}

fn objects(path: &Path, seed: &Seed, random: &mut Rng) {
    const STACK: u64 = 0x7000_0000;
    let Some(mapped) = Mapped::new(path, seed) else { return };
    let base = mapped.base as u64;
    let (processes, pid) = (Processes::new(), std::process::id());
    let (Ok(mut unwinder), Ok(mut resolver)) =
        (Unwinder::for_process(&processes, pid), Resolver::new(&processes, pid))
    else {
        return;
    };
    for _ in 0..4 {
        let ip = base.wrapping_add(address(random));
        let stack: Vec<u8> = (0..64)
            .flat_map(|_| {
                match random.u8(..3) {
                    0 => STACK + random.u64(..512),
                    _ => base.wrapping_add(address(random)),
                }
                .to_le_bytes()
            })
            .collect();
        let registers = Registers { rip: ip, rsp: STACK, rbp: STACK + random.u64(..512) };
        let mut frames = Vec::new();
        unwinder.unwind_frames(registers, &StackSlice { base: STACK, bytes: &stack }, &mut frames);
        let place = Place { ip, frames: &frames, stack: Some((STACK, STACK + 512)), ..Place::default() };
        for _ in 0..4 {
            let inside = base.wrapping_add(address(random));
            let named = resolver.resolve(inside, &place);
            std::hint::black_box(named.full_name());
            let local = resolver.resolve(STACK + random.u64(..512), &place);
            std::hint::black_box(local.full_name());
        }
    }
}
