//! The model again, as plainly as possible: sets are vectors, every resident copy of a line learns
//! of every access at once, and each copy remembers the whole call path that loaded it (the paper's
//! method 1).

use std::collections::{BTreeMap, BTreeSet};

use locality_stream::Placement;

use crate::{COLUMNS, Column, Config, Costs, Level, ObjectUse, Prefetch};

/// A step of a call path: a root, or a call. Functions by their entry, sites by their instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Root { function: u64, signal: Option<u32> },
    Call { caller: u64, site: u32, callee: u64 },
}

/// Who causes a cost: path, function and instruction.
#[derive(Debug, Clone)]
pub(super) struct Who {
    pub(super) path: Vec<Step>,
    pub(super) function: u64,
    pub(super) instruction: u32,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) own: BTreeMap<(u64, u32), Costs>,
    pub(super) functions: BTreeMap<u64, Costs>,
    pub(super) arcs: BTreeMap<(u64, u32, u64), Costs>,
    pub(super) roots: BTreeMap<(u64, Option<u32>), Costs>,
    pub(super) objects: BTreeMap<u32, ObjectUse>,
}

impl Sums {
    pub(super) fn add(&mut self, who: &Who, column: Column, count: u64) {
        if count == 0 {
            return;
        }
        self.own.entry((who.function, who.instruction)).or_default()[column] += count;
        let steps: BTreeSet<Step> = who.path.iter().copied().collect();
        let mut functions = BTreeSet::new();
        for step in steps {
            match step {
                Step::Root { function, signal } => {
                    self.roots.entry((function, signal)).or_default()[column] += count;
                    functions.insert(function);
                }
                Step::Call { caller, site, callee } => {
                    self.arcs.entry((caller, site, callee)).or_default()[column] += count;
                    functions.insert(callee);
                }
            }
        }
        for function in functions {
            self.functions.entry(function).or_default()[column] += count;
        }
    }
}

#[derive(Debug, Clone)]
struct Copy {
    line: u64,
    life: u64,
    who: Who,
    object: u32,
    count: u64,
    used: BTreeSet<u64>,
    /// Lives of the copies behind.
    behind: [Option<u64>; 2],
    /// Callgrind: the place of the copy behind.
    place: (usize, usize),
}

/// Sets, the copy used last in front; in Callgrind's model places are told by `way`.
#[derive(Debug, Clone, Default)]
struct Cache {
    sets: Vec<Vec<Copy>>,
    /// Which way each copy of a set has, in the same order.
    ways: Vec<Vec<usize>>,
    most: usize,
}

impl Cache {
    fn new(level: &Level) -> Cache {
        let sets = level.sets() as usize;
        Cache { sets: vec![Vec::new(); sets], ways: vec![Vec::new(); sets], most: level.ways as usize }
    }
    fn set(&self, line: u64) -> usize {
        line as usize % self.sets.len()
    }
    fn find(&self, line: u64) -> Option<usize> {
        self.sets[self.set(line)].iter().position(|copy| copy.line == line)
    }
    fn move_to_front(&mut self, line: u64) -> Option<usize> {
        let (set, at) = (self.set(line), self.find(line)?);
        let copy = self.sets[set].remove(at);
        self.sets[set].insert(0, copy);
        let way = self.ways[set].remove(at);
        self.ways[set].insert(0, way);
        Some(way)
    }
    /// Puts a copy in front; the one that had to go, and the way.
    fn load(&mut self, copy: Copy) -> (Option<Copy>, usize) {
        let set = self.set(copy.line);
        let full = self.sets[set].len() == self.most;
        let old = if full { self.sets[set].pop() } else { None };
        // As ways are taken: the one of who left, else the last free one.
        let way = if full { self.ways[set].pop().unwrap() } else { self.most - 1 - self.sets[set].len() };
        self.sets[set].insert(0, copy);
        self.ways[set].insert(0, way);
        (old, way)
    }
    fn of_life(&mut self, line: u64, life: u64) -> Option<&mut Copy> {
        let set = self.set(line);
        self.sets[set].iter_mut().find(|copy| copy.life == life)
    }
    fn at_way(&mut self, set: usize, way: usize) -> Option<&mut Copy> {
        let at = self.ways[set].iter().position(|held| *held == way)?;
        self.sets[set].get_mut(at)
    }
    fn drain(&mut self) -> Vec<Copy> {
        self.ways.iter_mut().for_each(Vec::clear);
        self.sets.iter_mut().flat_map(std::mem::take).collect()
    }
}

#[derive(Debug, Clone)]
struct Private {
    /// Instructions, data, second level.
    caches: [Cache; 3],
    strides: BTreeMap<u32, (u32, u64, u64)>,
}

pub(super) struct Oracle {
    config: Config,
    pub(super) sums: Sums,
    pub(super) placed: Vec<Placement>,
    threads: BTreeMap<u64, Private>,
    last: Cache,
    lives: u64,
}

impl Oracle {
    pub(super) fn new(config: &Config) -> Oracle {
        let last = config.levels.last().filter(|_| config.levels.len() > 1);
        Oracle {
            config: config.clone(),
            sums: Sums::default(),
            placed: Vec::new(),
            threads: BTreeMap::new(),
            last: last.map_or_else(Cache::default, Cache::new),
            lives: 0,
        }
    }

    fn key(&self, thread: u64) -> u64 {
        if self.config.compatible_callgrind { 0 } else { thread }
    }

    fn private(&mut self, thread: u64) -> &mut Private {
        let config = &self.config;
        let key = if config.compatible_callgrind { 0 } else { thread };
        self.threads.entry(key).or_insert_with(|| Private {
            caches: [
                config.instruction_fetch.as_ref().map_or_else(Cache::default, Cache::new),
                Cache::new(&config.levels[0]),
                if config.levels.len() > 2 { Cache::new(&config.levels[1]) } else { Cache::default() },
            ],
            strides: BTreeMap::new(),
        })
    }

    fn line(&self) -> u64 {
        self.config.levels[0].line
    }

    /// Bytes (in Callgrind's model parts of a line) from one to another.
    fn parts(&self, first: u64, last: u64) -> BTreeSet<u64> {
        let line = self.line();
        if self.config.compatible_callgrind {
            // 32 parts: several bytes of one, or several parts of a byte.
            return (first * 32 / line..=(last * 32 + 31) / line)
                .filter(|part| part * line / 32 <= last && (part + 1) * line > first * 32)
                .collect();
        }
        // Of longer lines 64 parts.
        let bytes = (line / 64).max(1);
        (first / bytes..=last / bytes).collect()
    }

    fn charge(&mut self, copy: &Copy, level: usize) {
        let callgrind = self.config.compatible_callgrind;
        if callgrind && copy.count == 0 {
            return;
        }
        let (unit, line) = if callgrind { (1000, self.line()) } else { (1_000_000, self.line()) };
        let parts = if callgrind { 32 } else { line.min(64) };
        let loss = (parts - copy.used.len() as u64) * line / parts;
        let columns = [
            (Column::AcCost1, Column::SpLoss1),
            (Column::AcCost2, Column::SpLoss2),
            (Column::AcCostL, Column::SpLossL),
        ][level];
        let object = &mut self.sums.objects.entry(copy.object).or_default().levels[level];
        object.access_cost += unit / copy.count.max(1);
        object.spatial_loss += loss;
        self.sums.add(&copy.who, columns.0, unit / copy.count.max(1));
        self.sums.add(&copy.who, columns.1, loss);
    }

    /// One line: how many levels miss.
    fn touch(
        &mut self,
        thread: u64,
        cache: usize,
        line: u64,
        used: &BTreeSet<u64>,
        count: u64,
        who: &Who,
    ) -> u32 {
        self.private(thread);
        let key = self.key(thread);
        let mut missed = 0;
        if self.threads.get_mut(&key).unwrap().caches[cache].move_to_front(line).is_none() {
            missed = self.load(thread, cache, line, who, used.first().copied());
        }
        let private = self.threads.get_mut(&key).unwrap();
        let copy = &mut private.caches[cache].sets;
        let set = line as usize % copy.len();
        let copy = &mut copy[set][0];
        copy.count += count;
        copy.used.extend(used);
        let behind = copy.behind;
        if !self.config.compatible_callgrind {
            let second = behind[0].and_then(|life| private.caches[2].of_life(line, life));
            let last = behind[1].and_then(|life| self.last.of_life(line, life));
            for copy in second.into_iter().chain(last) {
                copy.count += count;
                copy.used.extend(used);
            }
        }
        missed
    }

    /// What was placed last around the first part that is used.
    fn object(&self, line: u64, part: Option<u64>) -> u32 {
        let parts = if self.config.compatible_callgrind { 32 } else { self.line().min(64) };
        let address = line * self.line() + part.unwrap_or(0) * self.line() / parts;
        let mut newest = self.placed.iter().rev();
        newest.find(|range| (range.start..range.end).contains(&address)).map_or(0, |range| range.object)
    }

    /// A copy that a level loads now.
    fn fresh(&mut self, level: usize, line: u64, who: &Who, object: u32) -> Copy {
        self.lives += 1;
        let lines = [Column::Lines1, Column::Lines2, Column::LinesL][level];
        self.sums.add(who, lines, 1);
        self.sums.objects.entry(object).or_default().levels[level].lines += 1;
        Copy {
            line,
            life: self.lives,
            who: who.clone(),
            object,
            count: 0,
            used: BTreeSet::new(),
            behind: [None; 2],
            place: (0, 0),
        }
    }

    fn load(&mut self, thread: u64, cache: usize, line: u64, who: &Who, part: Option<u64>) -> u32 {
        let key = self.key(thread);
        let levels = self.config.levels.len();
        let object = self.object(line, part);
        let copy = self.fresh(0, line, who, object);
        let (old, _) = self.threads.get_mut(&key).unwrap().caches[cache].load(copy);
        if let Some(old) = old {
            self.charge(&old, 0);
            if self.config.compatible_callgrind
                && let Some(behind) = self.last.at_way(old.place.0, old.place.1)
            {
                behind.count += old.count;
                behind.used.extend(old.used);
            }
        }
        let (mut missed, mut behind, mut place) = (1, [None; 2], (0, 0));
        if levels > 2 {
            let second = &mut self.threads.get_mut(&key).unwrap().caches[2];
            if second.move_to_front(line).is_none() {
                missed += 1;
                let copy = self.fresh(1, line, who, object);
                let second = &mut self.threads.get_mut(&key).unwrap().caches[2];
                let (old, _) = second.load(copy);
                if let Some(old) = old {
                    self.charge(&old, 1);
                }
                let (more, life, _) = self.load_last(line, who, object);
                missed += more;
                let second = &mut self.threads.get_mut(&key).unwrap().caches[2];
                let set = second.set(line);
                second.sets[set][0].behind = [None, Some(life)];
            }
            let second = &self.threads[&key].caches[2];
            let copy = &second.sets[second.set(line)][0];
            behind = [Some(copy.life), copy.behind[1]];
        } else if levels == 2 {
            let (more, life, at) = self.load_last(line, who, object);
            missed += more;
            (behind, place) = ([None, Some(life)], at);
        }
        let first = &mut self.threads.get_mut(&key).unwrap().caches[cache];
        let set = first.set(line);
        (first.sets[set][0].behind, first.sets[set][0].place) = (behind, place);
        missed
    }

    fn load_last(&mut self, line: u64, who: &Who, object: u32) -> (u32, u64, (usize, usize)) {
        let set = self.last.set(line);
        if let Some(way) = self.last.move_to_front(line) {
            return (0, self.last.sets[set][0].life, (set, way));
        }
        let copy = self.fresh(2, line, who, object);
        let life = copy.life;
        let (old, way) = self.last.load(copy);
        if let Some(old) = old {
            self.charge(&old, 2);
        }
        (1, life, (set, way))
    }

    fn count_misses(&mut self, who: &Who, missed: u32, [first, second, last]: [Column; 3]) {
        let levels = self.config.levels.len() as u32;
        self.sums.add(who, first, u64::from(missed >= 1));
        self.sums.add(who, second, u64::from(levels == 3 && missed >= 2));
        self.sums.add(who, last, u64::from(levels > 1 && missed >= levels));
    }

    pub(super) fn access(
        &mut self,
        thread: u64,
        address: u64,
        size: u64,
        is_store: bool,
        real: u32,
        who: &Who,
    ) {
        self.sums.add(who, if is_store { Column::Dw } else { Column::Dr }, 1);
        let line = self.line();
        let last = address + size.max(1) - 1;
        let last = if self.config.compatible_callgrind { last.min(address + line - 1) } else { last };
        let mut missed = 0;
        for number in address / line..=last / line {
            let first = address.max(number * line) % line;
            let end = last.min(number * line + line - 1) % line;
            let used = self.parts(first, end);
            missed = self.touch(thread, 1, number, &used, 1, who).max(missed);
        }
        let columns = if is_store {
            [Column::D1mw, Column::D2mw, Column::DLmw]
        } else {
            [Column::D1mr, Column::D2mr, Column::DLmr]
        };
        self.count_misses(who, missed, columns);
        let next = match self.config.prefetch {
            Prefetch::None => None,
            Prefetch::NextLine => (missed > 0).then_some(address / line + 1),
            Prefetch::Stride => {
                // Instructions that are 256 apart share an entry; here there are fewer.
                let entry = self.private(thread).strides.entry(real % 256).or_insert((u32::MAX, 0, 0));
                let (instruction, before, stride) = *entry;
                let now = address.wrapping_sub(before);
                let known = instruction == real;
                *entry = (real, address, if known { now } else { 0 });
                (known && now == stride && now != 0)
                    .then(|| address.wrapping_add(now) / line)
                    .filter(|number| *number != address / line)
            }
        };
        if let Some(number) = next {
            let key = self.key(thread);
            if self.threads[&key].caches[1].find(number).is_none() {
                self.sums.add(who, Column::Pf1, 1);
                self.load(thread, 1, number, who, None);
            }
        }
    }

    /// Instructions of a block that lie in one line (its number, first and last byte,
    /// instructions), fetched with the first of them; two lines where that one goes over a line's
    /// end.
    pub(super) fn fetch(&mut self, thread: u64, lines: &[(u64, u64, u64, u64)], who: &Who) {
        let mut missed = 0;
        for (number, first, last, count) in lines {
            let used = self.parts(*first, *last);
            missed = self.touch(thread, 0, *number, &used, *count, who).max(missed);
        }
        self.count_misses(who, missed, [Column::I1mr, Column::D2mr, Column::ILmr]);
    }

    pub(super) fn end_of(&mut self, thread: u64) {
        if !self.config.compatible_callgrind
            && let Some(mut private) = self.threads.remove(&thread)
        {
            self.end(&mut private);
        }
    }

    fn end(&mut self, private: &mut Private) {
        for (cache, level) in [(0, 0), (1, 0), (2, 1)] {
            for copy in private.caches[cache].drain() {
                self.charge(&copy, level);
                if self.config.compatible_callgrind
                    && let Some(behind) = self.last.at_way(copy.place.0, copy.place.1)
                {
                    behind.count += copy.count;
                    behind.used.extend(copy.used);
                }
            }
        }
    }

    pub(super) fn finish(mut self) -> Sums {
        for (_, mut private) in std::mem::take(&mut self.threads) {
            self.end(&mut private);
        }
        for copy in self.last.drain() {
            self.charge(&copy, 2);
        }
        assert!(self.sums.own.values().all(|costs| costs.0.len() == COLUMNS));
        self.sums
    }
}
