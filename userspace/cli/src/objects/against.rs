//! Direct and approximate rankings of data objects from the samples
//! of a profile (`locality_approximate`: without addresses).
//!
//! Both have equal weights: predicted misses of the ranking's level, or accesses without a
//! level. Variables are matched by name, without the marks of elements (`rows[]` is
//! `rows`); variables of equal name are one. A pointer's target has many names (`block` or
//! `s->arr2`), so a pointer's name stands for the object hit by most accesses seen through
//! the pointer; the shares of the approximate side come from no address. Memory without a
//! variable (saved registers, constants, unknown memory) is left out on both sides.
//!
//! Not here: the two attributions. Limits: a pointer through several objects stands
//! for one object; the approximate side reads the program's files at the traced
//! paths; files with a build id other than the traced id are left out and named.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
};

use locality_approximate as approximate;
use locality_findings::objects::{Objects, StackWeight};
use locality_model::{Accessed, FrameId, Module, ModuleId, ObjectId, Profile, StackId};
use locality_report::schema::{
    Number,
    object_list::{
        Against as Page, MadeBy, Rank, Ranked, RankedApproximate, ReadAt, Skid, SourceLine, Unread, Variable,
    },
};

/// Limit of lines of code in the text for each object.
const LINES: usize = 3;

/// Settings of the approximate ranking.
#[derive(Debug, Clone, Default)]
pub struct Against {
    /// How to attribute.
    pub options: approximate::Options,
    /// Skid to displace samples by, before the attribution.
    pub displace: Option<approximate::Gaussian>,
}

/// The two rankings.
pub(super) struct Both<'a> {
    against: &'a Against,
    found: approximate::Attribution,
    ranks: approximate::RankComparison<String>,
    /// Names of objects on the approximate side, if different.
    known_as: BTreeMap<String, BTreeSet<String>>,
    /// Files not read, with the reason.
    unread: BTreeMap<String, approximate::Unreadable>,
}

/// Weight of uses: misses of the ranking's level, or accesses without a level.
fn weight(objects: &Objects, stack: &StackWeight) -> f64 {
    let misses = objects.ranked_by.and_then(|level| stack.misses.get(level));
    misses.copied().unwrap_or(stack.accesses)
}

/// Compares the two rankings.
pub(super) fn compare<'a>(profile: &Profile, objects: &Objects, against: &'a Against) -> Both<'a> {
    let (analyzer, modules, unread) = (approximate::Analyzer::new(), HashMap::new(), BTreeMap::new());
    let mut paths = Paths { profile, analyzer, modules, unread };
    let mut samples: Vec<approximate::Sample> = objects
        .stacks
        .iter()
        .map(|stack| approximate::Sample { frames: paths.of(stack.stack), weight: weight(objects, stack) })
        .collect();
    let names = paths.names(&against.options);
    if let Some(skid) = &against.displace {
        let level = against.options.level;
        let displaced = |sample: &approximate::Sample| paths.analyzer.displaced(sample, level, skid);
        samples = samples.iter().flat_map(displaced).collect();
    }
    let found = paths.analyzer.rank(samples, &against.options);
    let direct = objects.rows.iter().filter_map(|row| {
        let misses = objects.ranked_by.and_then(|level| row.miss_share.get(level));
        Some((variable(profile, row.object?)?, misses.unwrap_or(&row.access_share).value))
    });
    let mut known_as: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut other = Vec::new();
    for found in &found.variables {
        let own = plain(&found.name);
        let pointed_at = (found.kind == approximate::Kind::Pointee).then(|| names.get(&Pointer::of(found)));
        let key = pointed_at.flatten().unwrap_or(&own).clone();
        if key != own {
            known_as.entry(key.clone()).or_default().insert(own);
        }
        other.push((key, found.share));
    }
    let ranks = approximate::compare(worth_it(direct), worth_it(other));
    Both { against, found, ranks, known_as, unread: paths.unread }
}

/// Sums by name, without shares below a thousandth: noise, but of full weight in Kendall's τ.
fn worth_it(side: impl IntoIterator<Item = (String, f64)>) -> Vec<(String, f64)> {
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    for (name, share) in side {
        *sums.entry(name).or_default() += share;
    }
    sums.into_iter().filter(|(_, share)| *share >= 0.001).collect()
}

/// Name of a variable or of a block of the heap.
fn variable(profile: &Profile, object: ObjectId) -> Option<String> {
    let object = profile.objects.get(object.0 as usize)?;
    object.unknown.is_none().then(|| plain(&object.name))
}

/// A pointer of the program.
#[derive(PartialEq, Eq, Hash)]
struct Pointer {
    name: String,
    function: Option<String>,
    declared: Option<approximate::SourceLine>,
}

impl Pointer {
    fn of(variable: &approximate::VariableShare) -> Self {
        let approximate::VariableShare { name, function, declared, .. } = variable;
        Self { name: name.clone(), function: function.clone(), declared: declared.clone() }
    }
}

/// The profile's call paths as addresses in files.
struct Paths<'a> {
    profile: &'a Profile,
    analyzer: approximate::Analyzer,
    modules: HashMap<ModuleId, Option<approximate::ModuleId>>,
    unread: BTreeMap<String, approximate::Unreadable>,
}

impl Paths<'_> {
    fn of(&mut self, stack: StackId) -> Vec<Option<approximate::Frame>> {
        let Self { profile, analyzer, modules, unread } = self;
        let stack = profile.stacks.get(stack.0 as usize);
        let frame = |id: &FrameId| {
            let frame = profile.frames.get(id.0 as usize)?;
            let module = frame.module?;
            let opened = *modules.entry(module).or_insert_with(|| {
                let Module { path, build_id } = profile.modules.get(module.0 as usize)?;
                // Relative paths are mappings with a name in brackets.
                let file = Path::new(path).is_absolute().then_some(path)?;
                let opened = match build_id.as_str() {
                    "" => analyzer.open(Path::new(file)),
                    traced => analyzer.open_traced(Path::new(file), traced),
                };
                opened.map_err(|why| unread.insert(file.clone(), why)).ok()
            });
            Some(approximate::Frame { module: opened?, address: frame.module_address? })
        };
        stack.map_or(&[][..], |stack| stack.frames.as_slice()).iter().map(frame).collect()
    }

    /// Targets of pointers, by the direct side's names: the
    /// object hit most by accesses through the pointer alone.
    fn names(&mut self, options: &approximate::Options) -> HashMap<Pointer, String> {
        let profile = self.profile;
        let mut hits: BTreeMap<StackId, BTreeMap<String, u64>> = BTreeMap::new();
        for located in &profile.located {
            let stack = match located.of {
                Accessed::Sample(sample) => profile.samples.get(sample.0 as usize).map(|sample| sample.stack),
                Accessed::Use(used) => profile.uses.get(used.0 as usize).map(|used| used.stack),
                _ => None,
            };
            if let (Some(stack), Some(name)) = (stack, variable(profile, located.object)) {
                *hits.entry(stack).or_default().entry(name).or_default() += 1;
            }
        }
        let options = approximate::Options {
            level: approximate::Level::Instruction,
            loop_compensation: false,
            skid: None,
            ..options.clone()
        };
        let mut votes: HashMap<Pointer, BTreeMap<String, u64>> = HashMap::new();
        for (stack, hits) in hits {
            let sample = approximate::Sample { frames: self.of(stack), weight: 1.0 };
            let found = self.analyzer.rank([sample], &options);
            let [only] = found.variables.as_slice() else { continue };
            if only.kind == approximate::Kind::Pointee && found.unattributed.is_empty() {
                let votes = votes.entry(Pointer::of(only)).or_default();
                hits.into_iter().for_each(|(name, count)| *votes.entry(name).or_default() += count);
            }
        }
        let most = |votes: BTreeMap<String, u64>| votes.into_iter().max_by_key(|(_, count)| *count);
        let named = votes.into_iter().filter_map(|(pointer, votes)| Some((pointer, most(votes)?.0)));
        named.collect()
    }
}

/// A variable's name without marks of elements and indirection.
fn plain(name: &str) -> String {
    name.trim_start_matches('*').trim_end_matches("[]").to_owned()
}

impl Both<'_> {
    /// The field for programs.
    pub(super) fn value(&self, objects: &Objects) -> Page {
        let rows = self.ranks.rows.iter().map(|row| Ranked {
            approximate: RankedApproximate {
                names: self.known_as.get(&row.key).cloned(),
                rank: row.right_rank.map(|rank| rank as u64),
                share: row.right_share.into(),
            },
            direct: Rank { rank: row.left_rank.map(|rank| rank as u64), share: row.left_share.into() },
            name: row.key.clone(),
        });
        let reasons = self.found.unattributed.iter();
        let unread =
            self.unread.iter().map(|(path, why)| Unread { file: path.clone(), why: why.to_string() });
        let options = &self.against.options;
        let skid = |skid: &Option<approximate::Gaussian>| {
            skid.map(|skid| Skid { mean: skid.mean.into(), variance: skid.variance.into() })
        };
        let level = match options.level {
            approximate::Level::Line => "line",
            approximate::Level::Instruction => "instruction",
        };
        let ranked_by = objects.ranked_by.and_then(|level| objects.levels.get(level));
        Page {
            ignored_lines: options.ignore.iter().map(ToString::to_string).collect(),
            kendall_tau_b: self.ranks.tau_b.map(Number::from),
            kendall_tau_b_top: self.ranks.tau_b_top.map(Number::from),
            level: level.to_owned(),
            loop_compensation: options.loop_compensation,
            method: "approximate".to_owned(),
            ranked_by: ranked_by.map(|level| format!("L{}", level.level)),
            rows: rows.collect(),
            samples: self.found.samples.into(),
            simulated_skid: skid(&self.against.displace),
            skid: skid(&options.skid),
            top_overlap: self.ranks.top_overlap as u64,
            top_possible: self.ranks.top_possible as u64,
            unattributed: reasons.map(|(reason, share)| (reason.to_string(), (*share).into())).collect(),
            unread: unread.collect(),
            variables: self.found.variables.iter().map(of_variable).collect(),
        }
    }

    /// The heaviest lines of reads of an object on the approximate side.
    fn lines_of(&self, key: &str) -> String {
        let is_it =
            |name: &String| name == key || self.known_as.get(key).is_some_and(|names| names.contains(name));
        let mut lines: BTreeMap<String, f64> = BTreeMap::new();
        for variable in self.found.variables.iter().filter(|variable| is_it(&plain(&variable.name))) {
            for (line, share) in &variable.read_at {
                let file = line.file.rsplit('/').next().unwrap_or_default();
                *lines.entry(format!("{file}:{}", line.line)).or_default() += share;
            }
        }
        let mut lines: Vec<(String, f64)> = lines.into_iter().filter(|(_, share)| *share >= 0.005).collect();
        lines.sort_by(|a, b| b.1.total_cmp(&a.1));
        let told = lines.iter().take(LINES).map(|(line, share)| format!("{line} {:.1} %", share * 100.0));
        let told = told.collect::<Vec<_>>().join(", ");
        if told.is_empty() {
            told
        } else {
            format!("                                         read at {told}\n")
        }
    }

    pub(super) fn text(&self, objects: &Objects, top: usize) -> String {
        let what = match objects.ranked_by.and_then(|level| objects.levels.get(level)) {
            Some(level) => format!("L{} misses", level.level),
            None => "accesses".to_owned(),
        };
        let mut page = format!(
            "\nDirect and approximate  (ranked by {what}; approximate: from code addresses and call paths alone)\n     \
             direct           approximate      object\n"
        );
        let side = |rank: Option<usize>, share: f64| match rank {
            Some(rank) => format!("{rank:>3}. {:>6.1} %", share * 100.0),
            None => "  –         ".to_owned(),
        };
        for row in self.ranks.rows.iter().take(top) {
            let (left, right) = (side(row.left_rank, row.left_share), side(row.right_rank, row.right_share));
            let known_as = self.known_as.get(&row.key).map_or(String::new(), |names| {
                format!("  (there {})", names.iter().take(3).cloned().collect::<Vec<_>>().join(", "))
            });
            page.push_str(&format!("     {left:<16} {right:<16} {}{known_as}\n", row.key));
            page.push_str(&self.lines_of(&row.key));
        }
        let tau = |tau: Option<f64>| tau.map_or("not defined".to_owned(), |tau| format!("{tau:.2}"));
        page.push_str(&format!(
            "Kendall's tau-b {} over {} variables, {} over the first ten of the direct ranking; {} of the first {} are \
             the same.\n",
            tau(self.ranks.tau_b),
            self.ranks.rows.len(),
            tau(self.ranks.tau_b_top),
            self.ranks.top_overlap,
            self.ranks.top_possible,
        ));
        for (path, why) in &self.unread {
            page.push_str(&format!(
                "{path} was left out by the approximate method: {why}. Run it where the traced file is.\n"
            ));
        }
        for (reason, share) in self.found.unattributed.iter().filter(|(_, share)| **share >= 0.005) {
            page.push_str(&format!(
                "Not attributed by the approximate method: {:.1} %, {reason}.\n",
                share * 100.0
            ));
        }
        page
    }
}

fn of_variable(variable: &approximate::VariableShare) -> Variable {
    let at = |line: &approximate::SourceLine| SourceLine { file: line.file.clone(), line: line.line.into() };
    let read_at = |(line, share): &(approximate::SourceLine, f64)| ReadAt {
        file: line.file.clone(),
        line: line.line.into(),
        share: (*share).into(),
    };
    let made_by =
        |(function, call): &(String, String)| MadeBy { call: call.clone(), function: function.clone() };
    Variable {
        aliases: variable.aliases.clone(),
        declared: variable.declared.as_ref().map(at),
        function: variable.function.clone(),
        kind: variable.kind.to_string(),
        made_by: variable.made_by.as_ref().map(made_by),
        name: variable.name.clone(),
        read_at: variable.read_at.iter().map(read_at).collect(),
        share: variable.share.into(),
        type_name: variable.type_name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_elements_are_names_of_objects() {
        assert_eq!(["rows[]", "*p", "grid->cells"].map(plain), ["rows", "p", "grid->cells"]);
    }
}
