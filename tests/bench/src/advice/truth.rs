//! The truth about the corpus: the right kinds of advice for each kernel, and the places to change.
//!
//! Places are looked up in the sources: from a comment `flaw: KERNEL` to the next brace in the first column.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// A change that helps.
#[derive(Debug, Clone, Copy)]
pub struct Fix {
    /// The way in which the program does the kernel's work after the change.
    pub way: &'static str,
    /// Kinds of advice for this change.
    pub kinds: &'static [&'static str],
}

/// A kernel of the corpus.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    /// Name; the program knows the kernel by this name.
    pub name: &'static str,
    /// File name of the source, in the folder of the corpus.
    pub source: &'static str,
    /// The flaw in the words of the advice, or `sound`.
    pub class: &'static str,
    /// Changes that help, the class' own first. Of a sound kernel: changes that look right and do not help.
    pub fixes: &'static [Fix],
    /// How many threads work.
    pub threads: usize,
}

/// Lines of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// File name without folders.
    pub file: String,
    /// First line.
    pub first: u64,
    /// Last line.
    pub last: u64,
}

const SOUND: &str = "sound";
/// Advice on layout has two names: a field is moved away, or each field has an array.
const SPLIT: &[&str] = &["split", "soa"];

const fn fix(way: &'static str, kinds: &'static [&'static str]) -> Fix {
    Fix { way, kinds }
}

const fn one(source: &'static str, name: &'static str, class: &'static str, fixes: &'static [Fix]) -> Kernel {
    Kernel { name, source, class, fixes, threads: 1 }
}

const fn two(source: &'static str, name: &'static str, class: &'static str, fixes: &'static [Fix]) -> Kernel {
    Kernel { threads: 2, ..one(source, name, class, fixes) }
}

/// The corpus: kernels with a flaw, then sound ones.
pub const KERNELS: &[Kernel] = &[
    one("interchange.c", "reflect", "interchange", &[fix("mended", &["interchange"])]),
    one("interchange.c", "transposed_product", "interchange", &[fix("mended", &["interchange"])]),
    one(
        "interchange.c",
        "combine",
        "interchange",
        &[fix("mended", &["interchange"]), fix("tiled", &["tile"])],
    ),
    one("columns.rs", "skyline", "interchange", &[fix("mended", &["interchange"])]),
    one("tile.c", "transpose", "tile", &[fix("mended", &["tile"])]),
    one("tile.c", "range_queries", "tile", &[fix("mended", &["tile"]), fix("split", SPLIT)]),
    one(
        "tile.c",
        "matrix_product",
        "tile",
        &[fix("mended", &["tile"]), fix("interchanged", &["interchange"])],
    ),
    one("fuse.c", "bills", "fuse", &[fix("mended", &["fuse"])]),
    one("fuse.c", "photo", "fuse", &[fix("mended", &["fuse"])]),
    one("layout.c", "orders", "split", &[fix("mended", SPLIT)]),
    one("layout.c", "members", "split", &[fix("mended", SPLIT)]),
    one("layout.c", "particles", "soa", &[fix("mended", SPLIT)]),
    one("layout.c", "stations", "soa", &[fix("mended", SPLIT)]),
    one("columns.rs", "fares", "soa", &[fix("mended", SPLIT)]),
    one("layout.c", "accounts", "reorder", &[fix("mended", &["reorder"]), fix("split", SPLIT)]),
    one("layout.c", "cells", "reorder", &[fix("mended", &["reorder"]), fix("split", SPLIT)]),
    one("shrink.c", "codes", "shrink", &[fix("mended", &["shrink"])]),
    one("shrink.c", "sparse_product", "shrink", &[fix("mended", &["shrink"])]),
    one("buffers.cc", "peaks", "keep_buffer", &[fix("mended", &["keep_buffer"])]),
    one("buffers.cc", "forces", "keep_buffer", &[fix("mended", &["keep_buffer"])]),
    one(
        "conflicts.c",
        "vertical_blur",
        "pad",
        &[fix("mended", &["pad"]), fix("interchanged", &["interchange"])],
    ),
    one("conflicts.c", "free_blocks", "pad", &[fix("mended", &["pad"]), fix("split", SPLIT)]),
    two("sharing.c", "counters", "sharing", &[fix("mended", &["sharing"])]),
    two("sharing.c", "monitor", "sharing", &[fix("mended", &["sharing"])]),
    one("irregular.c", "sales", "prefetch", &[fix("mended", &["prefetch", "batch"])]),
    one("irregular.c", "open_addressing", "prefetch", &[fix("mended", &["prefetch", "batch"])]),
    one("irregular.c", "binary_search", "batch", &[fix("mended", &["batch"])]),
    one("irregular.c", "lists", "batch", &[fix("mended", &["batch"])]),
    one("irregular.c", "random_updates", "huge_pages", &[fix("mended", &["huge_pages"])]),
    one("irregular.c", "permutation", "huge_pages", &[fix("mended", &["huge_pages"])]),
    one("compute.c", "chained_sum", "accumulators", &[fix("mended", &["accumulators"])]),
    one("compute.c", "dot_product", "accumulators", &[fix("mended", &["accumulators"])]),
    one("compute.c", "mix", "vectorise", &[fix("mended", &["vectorise"])]),
    one("compute.c", "stereo", "vectorise", &[fix("mended", &["vectorise", "soa", "split"])]),
    one("compute.c", "filter", "branch", &[fix("mended", &["branch"])]),
    one("compute.c", "partition", "branch", &[fix("mended", &["branch"])]),
    one("sound.c", "triad", SOUND, &[fix("mended", &["prefetch"])]),
    one("sound.c", "rare_columns", SOUND, &[fix("mended", &["interchange"])]),
    one("sound.c", "digest", SOUND, &[]),
    one("sound.c", "tiled_product", SOUND, &[]),
    one("sound.c", "radix_sort", SOUND, &[]),
    one("sound.c", "sieve", SOUND, &[]),
    one("sound.c", "relaxation", SOUND, &[]),
    one("sound.c", "substitution", SOUND, &[]),
    one("sound.c", "automaton", SOUND, &[]),
    two("sound.c", "own_lines", SOUND, &[]),
    one("sound.c", "vertices", SOUND, &[]),
];

impl Kernel {
    /// Whether the kernel is sound.
    pub fn is_sound(&self) -> bool {
        self.class == SOUND
    }

    /// The ways in which the program does the work, the flawed one first.
    pub fn ways(&self) -> impl Iterator<Item = &'static str> + '_ {
        std::iter::once("flawed").chain(self.fixes.iter().map(|fix| fix.way))
    }

    /// The places to change.
    ///
    /// # Errors
    /// A source that cannot be read, or that marks no place of a kernel with a flaw.
    pub fn places(&self) -> Result<Vec<Place>> {
        let path = folder().join(self.source);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let places = marked(&text, self.source, self.name);
        if places.is_empty() && !self.is_sound() {
            bail!("{} has no comment `flaw: {}`", path.display(), self.name);
        }
        Ok(places)
    }
}

/// The folder of the corpus.
pub fn folder() -> PathBuf {
    locality_shell::root().join("tests/programs/advice")
}

/// The places that a source marks with a name.
pub fn marked(text: &str, source: &str, name: &str) -> Vec<Place> {
    let file = Path::new(source).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mark = format!("flaw: {name}");
    let lines: Vec<&str> = text.lines().collect();
    let is_mark = |line: &str| {
        let comment = line.trim().trim_start_matches("/*").trim_start_matches("//").trim_end_matches("*/");
        comment.trim() == mark && line.trim() != mark
    };
    let marks = lines.iter().enumerate().filter(|(_, line)| is_mark(line));
    marks
        .map(|(at, _)| {
            let closing = lines.iter().skip(at).position(|line| line.starts_with('}'));
            let last = closing.map_or(lines.len(), |after| at + after + 1);
            Place { file: file.clone(), first: at as u64 + 1, last: last as u64 }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_ends_at_the_next_brace_in_the_first_column() {
        let text = "int f(void) {\n    /* flaw: walk */\n    for (;;) {\n    }\n}\n// flaw: walk\nstruct s {\n};\n/* flaw: walker */\n}\n";
        let place = |first, last| Place { file: "a.c".to_owned(), first, last };
        assert_eq!(marked(text, "x/a.c", "walk"), [place(2, 5), place(6, 8)]);
    }

    #[test]
    fn every_kernel_has_its_places_and_its_ways_in_its_source() {
        for kernel in KERNELS {
            assert_eq!(kernel.is_sound(), kernel.places().unwrap().is_empty(), "{}", kernel.name);
            let text = std::fs::read_to_string(folder().join(kernel.source)).unwrap();
            for way in kernel.ways() {
                assert!(text.contains(&format!("\"{way}\"")), "{} {way}", kernel.name);
            }
            assert!(text.contains(&format!("\"{}\"", kernel.name)), "{}", kernel.name);
        }
    }

    #[test]
    fn every_mark_belongs_to_a_kernel_and_names_are_not_shared() {
        for entry in std::fs::read_dir(folder()).unwrap() {
            let path = entry.unwrap().path();
            let source = path.file_name().unwrap().to_str().unwrap();
            for line in std::fs::read_to_string(&path).unwrap().lines().filter(|_| source != "advice.h") {
                let Some((_, rest)) = line.split_once("flaw: ") else { continue };
                let name = rest.trim_end_matches(" */").trim();
                let known = |kernel: &&Kernel| kernel.name == name && kernel.source == source;
                assert_eq!(KERNELS.iter().filter(known).count(), 1, "{source}: {line}");
            }
        }
    }

    #[test]
    fn there_are_two_kernels_of_every_class_and_ten_sound_ones() {
        let of = |class: &str| KERNELS.iter().filter(|kernel| kernel.class == class).count();
        for kernel in KERNELS {
            assert!(of(kernel.class) >= 2, "{}", kernel.class);
        }
        assert!(of(SOUND) >= 10);
        assert!(KERNELS.len() - of(SOUND) >= 24);
    }
}
