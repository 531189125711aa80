//! Names for instructions of ended processes: from the mapped files.
//!
//! The report's frames: function, file, line, module, address (in the module), inlined, unknown.
//! Code outside files is generated code, named by the process's perf map if left in `/tmp`.

use std::{collections::HashMap, fs, path::Path, sync::Arc};

use locality_report::schema::place;
use locality_symbols::{Isolation, ModuleInfo, Processes, Symbolizer, Unknown};
use object::{Object as _, ObjectSection as _, ObjectSegment as _};

use super::image::Image;

/// A frame of the report, shared by the references.
pub type Frame = Arc<place::Frame>;

/// Finds names; answers are cached.
pub struct Names {
    symbolizer: Symbolizer,
    files: HashMap<String, Option<File>>,
    places: HashMap<(String, u64), Arc<[Frame]>>,
    by_start: bool,
}

/// Data to compute a file's addresses.
struct File {
    info: ModuleInfo,
    /// Offset in the file, size in the file, address.
    segments: Vec<(u64, u64, u64)>,
    /// Offsets in the file of the stubs of procedure linkage tables: first, and first after.
    linkage: Vec<(u64, u64)>,
}

impl Names {
    /// For several images. `by_start`: functions without a symbol are named by the start address.
    pub fn new(by_start: bool) -> Self {
        let symbolizer = Symbolizer::new(Processes::isolated(Isolation::default()));
        Self { symbolizer, files: HashMap::new(), places: HashMap::new(), by_start }
    }

    /// The source frames of an instruction, innermost first; more than one if calls were inlined.
    pub fn frames(&mut self, image: &Image, instruction: u32) -> Arc<[Frame]> {
        let Some(record) = image.records.get(instruction as usize) else { return Arc::new([]) };
        let Some(mapping) = image.mapping(instruction) else {
            let key = (format!("[jit] {}", image.pid), record.address);
            return Arc::clone(
                self.places.entry(key).or_insert_with(|| Arc::new([generated(record.address)])),
            );
        };
        let offset = record.address - mapping.start + mapping.offset;
        let key = (mapping.path.clone(), offset);
        if let Some(frames) = self.places.get(&key) {
            return Arc::clone(frames);
        }
        let frames: Arc<[Frame]> = self.look_up(&mapping.path, offset, record.address).into();
        self.places.insert(key, Arc::clone(&frames));
        frames
    }

    /// Looks up many instructions at once: single requests
    /// to the symboliser process would take longer.
    pub fn ahead(&mut self, image: &Image, instructions: impl IntoIterator<Item = u32>) {
        let mut wanted: HashMap<&str, Vec<u64>> = HashMap::new();
        for instruction in instructions {
            if let Some(record) = image.records.get(instruction as usize)
                && let Some(mapping) = image.mapping(instruction)
            {
                wanted
                    .entry(&mapping.path)
                    .or_default()
                    .push(record.address - mapping.start + mapping.offset);
            }
        }
        for (path, offsets) in wanted {
            let Some(file) = self.file(path) else { continue };
            let (info, inside) = (file.info.clone(), offsets.iter().filter_map(|at| file.address(*at)));
            let inside = inside.collect();
            self.symbolizer.prepare_in_file(&info, inside);
        }
    }

    /// Path and build id of an instruction's file, and the address in the file.
    pub fn in_file(&mut self, image: &Image, instruction: u32) -> Option<(String, String, u64)> {
        let record = image.records.get(instruction as usize)?;
        let mapping = image.mapping(instruction)?;
        let offset = record.address - mapping.start + mapping.offset;
        let file = self.file(&mapping.path)?;
        Some((mapping.path.clone(), file.info.build_id.clone(), file.address(offset)?))
    }

    /// Whether an instruction is a stub of a procedure linkage table.
    pub fn is_linkage(&mut self, image: &Image, instruction: u32) -> bool {
        let Some(record) = image.records.get(instruction as usize) else { return false };
        let Some(mapping) = image.mapping(instruction) else { return false };
        let offset = record.address - mapping.start + mapping.offset;
        let file = self.file(&mapping.path);
        file.is_some_and(|file| file.linkage.iter().any(|(start, end)| (*start..*end).contains(&offset)))
    }

    fn file(&mut self, path: &str) -> Option<&File> {
        if !self.files.contains_key(path) {
            self.files.insert(path.to_owned(), File::open(Path::new(path)));
        }
        self.files.get(path).and_then(Option::as_ref)
    }

    fn look_up(&mut self, path: &str, offset: u64, address: u64) -> Vec<Frame> {
        let found = self.file(path).and_then(|file| Some((file.info.clone(), file.address(offset)?)));
        let Some((info, inside)) = found else {
            return vec![unnamed(path, address, "file gone or not an ELF file")];
        };
        let frames = self.symbolizer.symbolize_in_file(&info, inside);
        frames
            .iter()
            .map(|frame| {
                let is_named = self.by_start || frame.unknown != Some(Unknown::OnlyStart);
                let unknown = if is_named { frame.unknown } else { Some(Unknown::NoSymbols) };
                Arc::new(place::Frame {
                    address: Some(inside),
                    file: frame.file.clone(),
                    function: frame.function.clone().filter(|_| is_named),
                    inlined: frame.inlined,
                    line: frame.line,
                    module: Some(path.to_owned()),
                    unknown: unknown.map(|unknown| unknown.as_str().to_owned()),
                })
            })
            .collect()
    }
}

fn generated(address: u64) -> Frame {
    unnamed("[jit]", address, "generated code")
}

fn unnamed(module: &str, address: u64, why: &str) -> Frame {
    Arc::new(place::Frame {
        address: Some(address),
        module: Some(module.to_owned()),
        unknown: Some(why.to_owned()),
        ..place::Frame::default()
    })
}

impl File {
    /// The address of a file's offset.
    fn address(&self, offset: u64) -> Option<u64> {
        let (start, _, virtual_address) =
            self.segments.iter().find(|(start, size, _)| (*start..start + size).contains(&offset))?;
        Some(offset - start + virtual_address)
    }

    fn open(path: &Path) -> Option<Self> {
        // Opening a pipe in the file's place might block for ever.
        let bytes = fs::metadata(path).ok()?.is_file().then(|| fs::read(path))?.ok()?;
        let elf = object::File::parse(&*bytes).ok()?;
        let build_id = elf.build_id().ok().flatten().unwrap_or_default();
        let build_id = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let segments = elf.segments().map(|segment| {
            let (offset, size) = segment.file_range();
            (offset, size, segment.address())
        });
        let linkage = elf
            .sections()
            .filter(|section| section.name().is_ok_and(|name| name == ".plt" || name.starts_with(".plt.")))
            .filter_map(|section| section.file_range().map(|(start, size)| (start, start + size)));
        Some(Self {
            linkage: linkage.collect(),
            segments: segments.collect(),
            info: ModuleInfo { path: path.to_string_lossy().into_owned(), build_id },
        })
    }
}
