//! Chooses uses in a shadow window and finds the reuses in the window.
//!
//! Pure. A timer lands on the access after a slow one; the random skip from the stop
//! to the use takes the bias away. Sources of error: in a window shorter than the
//! skip range, uses are drawn from the window's accesses; a path of calls is followed
//! by return addresses, and a `longjmp` inside the window leaves frames too many.

use locality_model::{Access, AccessKind, Burst};
use locality_stream::{Code, Event, Kind};

use super::line_fills::{self, Firsts};

mod completed;

/// Accesses from the stop within which a use lies; a
/// use lies also within the first half of the window.
pub const SKIP_RANGE: usize = 1000;

/// Sizes of granules that are followed.
pub const GRANULES: [u64; 2] = [8, 64];

/// Bytes that a watchpoint covers.
pub(super) const WORD: u64 = 8;

/// Bytes of a line.
pub(super) const LINE: u64 = 64;

/// Words of a line that may be watched beside the used word.
pub const COMPANIONS: usize = 3;

/// The part of a window that is needed here.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Events in order.
    pub events: &'a [Event],
    /// The value moved by each access.
    pub values: &'a [u64],
    /// The code that events refer to.
    pub code: Code<'a>,
}

/// How the call stack differs from that at the stop.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Path {
    /// Frames of the stop that were returned from.
    pub returned: usize,
    /// Return addresses of the calls since, outermost first.
    pub called: Vec<u64>,
    /// Their positions on the stack.
    pub slots: Vec<u64>,
}

/// An access, and the path to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    /// The access.
    pub access: Access,
    /// The path.
    pub path: Path,
}

/// What the window shows of a granule after the use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Touched again, after so many accesses.
    Reused(u64, Point),
    /// Not touched by so many accesses.
    Open(u64),
}

/// A use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// Accesses between the stop and the use.
    pub skip: u64,
    /// The use.
    pub point: Point,
    /// Byte whose granules are followed.
    pub address: u64,
    /// For each of [`GRANULES`].
    pub seen: [Seen; GRANULES.len()],
}

impl Chosen {
    /// Whether the window shows no reuse of the word.
    pub fn is_open(&self) -> bool {
        matches!(self.seen[0], Seen::Open(_))
    }
}

/// A use as drawn in the stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Draft {
    /// Its position among the events.
    event: usize,
    /// Its position among the accesses.
    at: usize,
    /// The byte that stands for the granule.
    address: u64,
}

impl Draft {
    /// First byte of its granule.
    fn granule(&self, bytes: u64) -> u64 {
        self.address & !(bytes - 1)
    }
}

/// The use that a watchpoint shall follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Which of the uses.
    pub index: usize,
    /// Its word.
    pub word: u64,
    /// Executed instructions that touch the word before the use.
    pub earlier: u32,
    /// The use's own instruction is among them.
    pub repeats: bool,
    /// Words of the line without a touch up to now, if the window does not show the line again: the
    /// one after the access, the one before, a random one; in random order.
    pub companions: [Option<u64>; COMPANIONS],
}

/// Uses drawn in a window. What a stopped thread need not wait for is found later, by [`Choice::finish`].
#[derive(Debug, Clone)]
pub struct Choice {
    drafts: Vec<Draft>,
    /// Most candidates for loads of lines to draw.
    loads: usize,
    /// For what is drawn later.
    random: fastrand::Rng,
}

impl Choice {
    /// Draws at most `most` different uses out of a window of `accesses` accesses, in random order.
    /// `events` begins it.
    pub fn draw(
        events: impl Iterator<Item = Event>,
        accesses: usize,
        most: usize,
        random: &mut fastrand::Rng,
    ) -> Self {
        let range = SKIP_RANGE.min(accesses.div_ceil(2));
        let events = events.enumerate().filter(|(_, event)| event.kind.is_access());
        let first: Vec<(usize, Event)> = events.take(range).collect();
        let mut drafts: Vec<Draft> = Vec::with_capacity(most);
        for _ in 0..if first.is_empty() { 0 } else { most } {
            let at = random.usize(..first.len());
            let Some((position, event)) = first.get(at) else { continue };
            if drafts.iter().any(|draft| draft.at == at) {
                continue;
            }
            // A random word of the access, uniformly.
            let words = last_byte(event) / WORD - event.value / WORD + 1;
            let word = (event.value / WORD + random.u64(..words)) * WORD;
            drafts.push(Draft { event: *position, at, address: word.max(event.value) });
        }
        Self { drafts, loads: most / 2, random: random.fork() }
    }

    /// The first use whose word the window does not show again. `events` returns all events anew at
    /// each call.
    pub fn first_open<I: Iterator<Item = Event>>(
        &self,
        events: impl Fn() -> I,
        random: &mut fastrand::Rng,
    ) -> Option<Candidate> {
        // One pass over the window for every use, while the thread waits.
        let words = self.granules(WORD);
        let mut last = vec![0; words.len()];
        let filter = Filter::of(&words);
        let may_touch = |(_, event): &(usize, Event)| event.kind.is_access() && filter.may_touch(event);
        for (at, event) in events().enumerate().filter(may_touch) {
            touched(&words, WORD, &event).for_each(|word| last[word] = at);
        }
        self.drafts.iter().enumerate().find_map(|(index, draft)| {
            let word = draft.granule(WORD);
            if words.binary_search(&word).is_ok_and(|word| last[word] > draft.event) {
                return None;
            }
            let earlier = touches_before(events().take(draft.event + 1), word);
            let repeats = earlier > 0
                && events()
                    .nth(draft.event)
                    .is_some_and(|used| is_repeated(events().take(draft.event), used, word));
            let mut companions = companions(events(), draft.event, word, random);
            // By chance alone a companion finds a register: the estimators infer the others.
            random.shuffle(&mut companions);
            Some(Candidate { index, word, earlier, repeats, companions })
        })
    }

    /// Granules of the uses, each once, in ascending order.
    fn granules(&self, bytes: u64) -> Vec<u64> {
        let mut granules: Vec<u64> = self.drafts.iter().map(|draft| draft.granule(bytes)).collect();
        granules.sort_unstable();
        granules.dedup();
        granules
    }

    /// For each use, the next touch of each of its granules.
    fn reuses(&self, accesses: &[(Event, u64)]) -> Vec<[Option<usize>; GRANULES.len()]> {
        let mut found = vec![[None; GRANULES.len()]; self.drafts.len()];
        let mut at: Vec<(usize, usize)> =
            self.drafts.iter().enumerate().map(|(index, draft)| (draft.at, index)).collect();
        at.sort_unstable();
        for (of, bytes) in GRANULES.into_iter().enumerate() {
            let granules = self.granules(bytes);
            let mut next = vec![None; granules.len()];
            let mut left = at.as_slice();
            // Backwards, to find the last touch first.
            for (position, (event, _)) in accesses.iter().enumerate().rev() {
                while let Some(((_, index), rest)) = left.split_last().filter(|(last, _)| last.0 == position)
                {
                    let granule = granules.binary_search(&self.drafts[*index].granule(bytes));
                    found[*index][of] = granule.ok().and_then(|granule| next[granule]);
                    left = rest;
                }
                touched(&granules, bytes, event).for_each(|granule| next[granule] = Some(position));
            }
        }
        found
    }

    /// The uses, in the order of [`Candidate::index`], with the reuses in
    /// the window and the paths to both; and accesses that may load a line.
    pub fn finish(&self, view: &View<'_>) -> Found {
        let accesses: Vec<(Event, u64)> = view
            .events
            .iter()
            .filter(|event| event.kind.is_access())
            .zip(view.values.iter().copied().chain(std::iter::repeat(0)))
            .map(|(event, value)| (*event, value))
            .collect();
        let reuses = self.reuses(&accesses);
        let reused = reuses.iter().flatten().copied().flatten();
        let firsts = Firsts::draw(&accesses, self.loads, &mut self.random.clone());
        let uses = self.drafts.iter().map(|draft| draft.at);
        let first = firsts.drawn.iter().map(|draft| draft.at);
        let completed = completed::access(view);
        let mut wanted: Vec<usize> = uses.chain(reused).chain(first).chain(completed).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let paths = paths(&accesses, &wanted);
        let point = |at: usize| {
            let path = wanted.binary_search(&at).ok().and_then(|index| paths.get(index));
            let (event, _) = accesses.get(at)?;
            Some(Point {
                access: access(event, view.address_of(event)),
                path: path.cloned().unwrap_or_default(),
            })
        };
        let chosen = |(draft, reuses): (&Draft, &[Option<usize>; GRANULES.len()])| {
            let seen = reuses.map(|reuse| match reuse.and_then(|at| Some((at, point(at)?))) {
                Some((at, found)) => Seen::Reused((at - draft.at) as u64, found),
                None => Seen::Open((accesses.len() - 1 - draft.at) as u64),
            });
            Some(Chosen { skip: draft.at as u64, point: point(draft.at)?, address: draft.address, seen })
        };
        let load = |(draft, bursts): (&line_fills::Draft, Vec<Burst>)| {
            Some(FirstTouch {
                skip: draft.at as u64,
                gap: draft.gap.map(|gap| gap as u64),
                point: point(draft.at)?,
                line: draft.line,
                stands_for: firsts.stands_for,
                shown: (accesses.len() - 1 - draft.at) as u64,
                bursts,
            })
        };
        Found {
            completed: completed.and_then(point),
            loads: firsts
                .drawn
                .iter()
                .zip(line_fills::bursts(&accesses, &firsts.drawn))
                .filter_map(load)
                .collect(),
            // A use for each draft: the positions were taken from the accesses.
            uses: self.drafts.iter().zip(&reuses).filter_map(chosen).collect(),
            touches: GRANULES.map(|bytes| {
                let touched =
                    accesses.iter().map(|(event, _)| last_byte(event) / bytes - event.value / bytes + 1);
                touched.fold(0, u64::saturating_add)
            }),
        }
    }
}

/// An access to a line that was not touched shortly before.
#[derive(Debug, Clone, PartialEq)]
pub struct FirstTouch {
    /// Accesses between the stop and this access.
    pub skip: u64,
    /// Accesses since the touch of the line before, if the window shows it.
    pub gap: Option<u64>,
    /// The access.
    pub point: Point,
    /// First byte of the line.
    pub line: u64,
    /// Accesses of the same kind represented by the access, per access of the thread.
    pub stands_for: f64,
    /// Accesses of the window after the access.
    pub shown: u64,
    /// Touches of the line, beginning with this access.
    pub bursts: Vec<Burst>,
}

/// The window's view of the uses drawn in it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Found {
    /// An access by the instruction that the thread had completed at the stop, one round later.
    pub completed: Option<Point>,
    /// Accesses that may load a line.
    pub loads: Vec<FirstTouch>,
    /// The uses.
    pub uses: Vec<Chosen>,
    /// Touches of granules by all accesses, for each of [`GRANULES`].
    pub touches: [u64; GRANULES.len()],
}

/// The first access of a window.
pub fn first_access(view: &View<'_>) -> Option<Access> {
    let event = view.events.iter().find(|event| event.kind.is_access())?;
    Some(access(event, view.address_of(event)))
}

impl View<'_> {
    fn address_of(&self, event: &Event) -> u64 {
        self.code.instruction(event.index).map_or(0, |instruction| instruction.address)
    }
}

/// Words of the line of `word` to be watched beside it, from the use at an event on (the next, the
/// previous, a drawn one): none if the line is touched again. The next and the previous word are
/// those of the access: words of the access itself tell nothing of a walk whose steps are as wide.
fn companions(
    events: impl Iterator<Item = Event>,
    used: usize,
    word: u64,
    random: &mut fastrand::Rng,
) -> [Option<u64>; COMPANIONS] {
    let line = word & !(LINE - 1);
    let mut free: Vec<u64> = (0..LINE / WORD).map(|n| line + n * WORD).collect();
    let (mut first, mut last) = (word, word);
    for (at, event) in events.enumerate().filter(|(_, event)| touches(event, line, LINE)) {
        if at > used {
            return [None; COMPANIONS];
        }
        free.retain(|word| !touches(&event, *word, WORD));
        if at == used {
            (first, last) = (event.value / WORD * WORD, last_byte(&event) / WORD * WORD);
        }
    }
    let next = free.iter().copied().find(|free| *free == last + WORD);
    let previous = free.iter().copied().find(|free| *free + WORD == first);
    free.retain(|free| ![next, previous].contains(&Some(*free)));
    [next, previous, random.choice(free)]
}

/// Executed instructions before the last event's
/// instruction that touch the word: each makes a trap.
fn touches_before(until: impl Iterator<Item = Event>, word: u64) -> u32 {
    let mut executions = 0u32;
    let mut before: Option<Event> = None;
    for event in until {
        if touches(&event, word, WORD) {
            executions += u32::from(!completes(before, event));
        }
        before = Some(event);
    }
    executions.saturating_sub(1)
}

/// Whether the instruction of a use touches the word in an earlier execution too.
fn is_repeated(earlier: impl Iterator<Item = Event>, used: Event, word: u64) -> bool {
    let is_by_it = |event: &Event| event.index == used.index && touches(event, word, WORD);
    let mut last = None;
    for event in earlier.filter(is_by_it) {
        if last.replace(event).is_some() {
            return true;
        }
    }
    last.is_some_and(|last| !completes(Some(last), used))
}

/// Whether an access is the store of an instruction that
/// loaded from the same place just before, in one execution.
fn completes(before: Option<Event>, event: Event) -> bool {
    let loaded = |before: Event| {
        before.kind == Kind::LOAD && (before.index, before.value) == (event.index, event.value)
    };
    event.kind == Kind::STORE && before.is_some_and(loaded)
}

/// Recognises most accesses that touch none of the given words, without a search: a set of hashes
/// (Bloom, "Space/time trade-offs in hash coding with allowable errors", 1970, with one hash).
struct Filter([u64; 16]);

impl Filter {
    fn of(words: &[u64]) -> Self {
        let mut bits = [0; 16];
        for word in words {
            let (part, bit) = Self::place(word / WORD);
            bits[part] |= bit;
        }
        Self(bits)
    }

    /// The bit of a word, by its number.
    fn place(word: u64) -> (usize, u64) {
        (word as usize / 64 % 16, 1 << (word % 64))
    }

    fn may_touch(&self, event: &Event) -> bool {
        let has = |word: u64| {
            let (part, bit) = Self::place(word);
            self.0[part] & bit != 0
        };
        let (first, last) = (event.value / WORD, last_byte(event) / WORD);
        has(first) || has(last) || last - first > 1
    }
}

/// Granules, of a list in ascending order, that an access touches.
pub(super) fn touched(granules: &[u64], bytes: u64, event: &Event) -> std::ops::Range<usize> {
    let from = granules.partition_point(|granule| granule.saturating_add(bytes - 1) < event.value);
    let rest = granules.get(from..).unwrap_or_default();
    from..from + rest.iter().take_while(|granule| **granule <= last_byte(event)).count()
}

/// Paths at the given accesses, which ascend.
fn paths(accesses: &[(Event, u64)], wanted: &[usize]) -> Vec<Path> {
    let (mut path, mut paths) = (Path::default(), Vec::with_capacity(wanted.len()));
    let mut wanted = wanted.iter().copied().peekable();
    for (at, (event, value)) in accesses.iter().enumerate() {
        let Some(next) = wanted.peek() else { break };
        // Before the call or the return takes effect, since both are applied at their own position.
        if *next == at {
            paths.push(path.clone());
            wanted.next();
        }
        if event.kind == Kind::CALL {
            path.called.push(*value);
            path.slots.push(event.value);
        } else if event.kind == Kind::RETURN {
            path.slots.pop();
            path.returned += usize::from(path.called.pop().is_none());
        }
    }
    paths
}

pub(super) fn last_byte(event: &Event) -> u64 {
    event.value.saturating_add(u64::from(event.size.max(1)) - 1)
}

pub(super) fn touches(event: &Event, start: u64, bytes: u64) -> bool {
    event.kind.is_access() && event.value <= start.saturating_add(bytes - 1) && last_byte(event) >= start
}

fn access(event: &Event, ip: u64) -> Access {
    Access {
        ip,
        address: event.value,
        size: event.size.into(),
        kind: if event.kind.is_store() { AccessKind::Store } else { AccessKind::Load },
    }
}

#[cfg(test)]
mod tests;
