//! First touches and reuses of a profile by place, and sums over the first touches at a level.

use std::collections::{BTreeMap, HashMap};

use locality_estimate::access_rates::Rates;
use locality_estimate::calling_context::{ContextId, Contexts, function_name};
use locality_estimate::censored_uses::Subject;
use locality_estimate::estimator::Estimator;
use locality_estimate::reuse::Case;
use locality_model::{
    AccessKind, Accessed, FieldId, FrameId, Load, LoadId, Located, ModuleId, ObjectId, ObjectKind, Profile,
};

use crate::objects::{Locations, Rows, reuse_kind};

use super::arrivals::{Arrival, Arrivals, Gaps, Reach, new_data, rearrange};
use super::line_lifetimes::{
    End, Fates, LINE, Later, Shown, Spell, State, follow, is_ordered, mean_reciprocal,
};

/// Rounding error between two orders of summation, as a share of the whole.
const ROUNDING: f64 = 1e-9;
/// First touches of a place with separate curves.
const BUSY: usize = 12;

/// Result of a first touch at a level.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Cost {
    pub lines: f64,
    pub lost: f64,
    /// Bytes with unknown fate, lost or used.
    pub unsure: f64,
    /// Σ 1/accesses.
    pub reciprocal: f64,
    /// Loading first touches.
    pub n: u64,
    /// Samples of the sums: first touches of a sample at a place count once.
    pub samples: f64,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.lines += other.lines;
        self.lost += other.lost;
        self.unsure += other.unsure;
        self.reciprocal += other.reciprocal;
        self.n += other.n;
        self.samples += other.samples;
    }
}

/// A first touch.
pub(super) struct First<'a> {
    pub id: LoadId,
    pub load: &'a Load,
    pub path: usize,
    /// Index of the path.
    pub place: usize,
    /// Index of the place and kind of memory: arrivals and used bytes are counted by spot.
    pub spot: usize,
    pub object: usize,
    pub stretch: usize,
    pub weight: f64,
    /// Reciprocal of the sample's first touches at the place.
    pub share_of_sample: f64,
}

/// First touches of a call path, by loads or by stores.
#[derive(Clone)]
pub(super) struct Path {
    /// `None` if the profile lacks the stack.
    pub context: Option<ContextId>,
    pub place: usize,
    /// Functions on the path, innermost first, each once.
    functions: Vec<usize>,
    /// The outermost function.
    root: usize,
}

pub(super) struct Study<'a> {
    pub firsts: Vec<First<'a>>,
    pub paths: Vec<Path>,
    /// Representative of each data object; `None` for first touches without a known object.
    pub objects: Vec<Option<ObjectId>>,
    /// Objects and fields of first touches.
    pub located: HashMap<LoadId, (ObjectId, Option<FieldId>)>,
    /// Reuses by the spot of arrival, and by the spot of the use.
    pub arrivals: Vec<Arrivals>,
    pub departures: Vec<Arrivals>,
    pub all: Arrivals,
    /// Weight of uses without a reuse, by spot.
    pub never: Vec<f64>,
    /// Reuses of words by the spot of arrival.
    pub words: Vec<Arrivals>,
    /// Words never reused, per line never reused: the used words of a new line.
    pub words_of_new: f64,
    pub reach: Reach,
    /// Stretch of the run of each sample.
    stretches: Vec<usize>,
    /// CPU time of the run per nanosecond represented by
    /// samples: missing samples are taken as typical.
    pub missed: f64,
    /// Innermost frame of each place, and whether the place stores.
    pub places: Vec<(Option<FrameId>, bool)>,
    /// Function and kind of memory of each spot.
    groups: Vec<usize>,
    /// Places with enough first touches for separate curves.
    pub busy: Vec<usize>,
    /// A frame of each function; `None` for the stand-in for missing callers of cut paths.
    pub functions: Vec<Option<FrameId>>,
    /// First touches without a possible weight or course, from a damaged file.
    pub left_out: u64,
}

/// Numbers distinct keys.
struct Numbers<K, V> {
    of: HashMap<K, usize>,
    values: Vec<V>,
}

impl<K: std::hash::Hash + Eq, V> Numbers<K, V> {
    fn new() -> Self {
        Self { of: HashMap::new(), values: Vec::new() }
    }

    fn number(&mut self, key: K, value: V) -> usize {
        self.number_with(key, || value)
    }

    fn number_with(&mut self, key: K, value: impl FnOnce() -> V) -> usize {
        let next = self.values.len();
        let number = *self.of.entry(key).or_insert(next);
        if number == next {
            self.values.push(value());
        }
        number
    }
}

/// Sums of costs.
pub(super) struct Sums {
    pub whole: Cost,
    pub paths: Vec<Cost>,
    pub places: Vec<Cost>,
    pub objects: Vec<Cost>,
    /// By function, of lines loaded by the function's own code.
    pub own: Vec<Cost>,
    /// By function, with called functions.
    pub functions: Vec<Cost>,
}

/// Identity of a frame's function.
fn function(profile: &Profile, frame: FrameId) -> Option<(String, Option<ModuleId>)> {
    let frame = profile.frames.get(frame.0 as usize)?;
    Some((function_name(profile, frame), frame.module))
}

/// Bytes of the lines loaded by a place.
#[derive(Debug, Clone, Copy, Default)]
struct Room {
    /// Bytes known to be used.
    used: f64,
    /// Bytes with unknown fate.
    open: f64,
}

/// Used shares of each place's open bytes, if `arriving` bytes are used
/// at each place: the place's own bytes first, the surplus in lines of
/// the place's function (`groups`). The rest has the common share.
fn shares(rooms: &[Room], arriving: &[f64], groups: &[usize], prior: f64) -> Vec<f64> {
    let mut taken: Vec<f64> =
        rooms.iter().zip(arriving).map(|(room, bytes)| (bytes - room.used).min(room.open).max(0.0)).collect();
    // By function: surplus bytes, taken bytes and open bytes.
    let mut functions: HashMap<usize, [f64; 3]> = HashMap::new();
    for (((room, bytes), taken), group) in rooms.iter().zip(arriving).zip(&taken).zip(groups) {
        let [over, own, open] = functions.entry(*group).or_default();
        *over += bytes - room.used - taken;
        *own += taken;
        *open += room.open;
    }
    for ((taken, room), group) in taken.iter_mut().zip(rooms).zip(groups) {
        let [over, own, open] = functions.get(group).copied().unwrap_or_default();
        // Bytes seen used without arriving at the place arrived at
        // another place: the other's surplus is smaller by as much.
        if over > 0.0 && open > own {
            *taken += (room.open - *taken) * (over / (open - own)).min(1.0);
        } else if over < 0.0 && own > 0.0 {
            *taken *= 1.0 - (-over / own).min(1.0);
        }
    }
    let sum = |of: fn(&Room) -> f64| rooms.iter().map(of).sum::<f64>();
    let open = sum(|room| room.open);
    let over = arriving.iter().sum::<f64>() - sum(|room| room.used);
    let common = if open > 0.0 { (over / open).clamp(0.0, 1.0) } else { 0.5 };
    let share = |(room, taken): (&Room, f64)| {
        let share = (taken + prior * common) / (room.open + prior);
        if share.is_finite() { share } else { common }
    };
    rooms.iter().zip(taken).map(share).collect()
}

impl<'a> Study<'a> {
    pub fn of(
        profile: &'a Profile,
        contexts: &Contexts,
        rates: &Rates,
        [words, lines]: [&Case<'_>; 2],
        estimator: Estimator,
    ) -> Self {
        let beyond = |case: &Case<'_>| case.masses(estimator).iter().map(|mass| mass.beyond).sum::<f64>();
        let mut places = Numbers::new();
        let frames = |context: Option<ContextId>| context.map_or(&[][..], |context| contexts.frames(context));
        let mut place_of = |context: Option<ContextId>, kind: AccessKind| {
            let place = (frames(context).first().copied(), kind == AccessKind::Store);
            places.number(place, place)
        };
        let mut spots = Numbers::new();
        let mut spot_of = |place: usize, kind: Option<ObjectKind>| spots.number((place, kind), (place, kind));
        let mut functions = Numbers::new();
        let mut path_of = |context: Option<ContextId>, place: usize| {
            let known =
                frames(context).iter().filter_map(|id| Some((Some(function(profile, *id)?), Some(*id))));
            let whole = context.is_some_and(|context| contexts.cut(context).is_none());
            let unknown = (!whole || frames(context).is_empty()).then_some((None, None));
            let (mut on_path, mut root) = (Vec::new(), 0);
            for (function, frame) in known.chain(unknown) {
                root = functions.number(function, frame);
                if !on_path.contains(&root) {
                    on_path.push(root);
                }
            }
            Path { context, place, functions: on_path, root }
        };
        let here = |sample: u32| {
            let period = profile.samples.get(sample as usize).map_or(0, |sample| sample.period_ns);
            rates.at(sample as usize).value * period as f64
        };
        let stretch_of = |sample: u32| {
            let known = lines.stretches().of_sample.get(sample as usize).copied();
            known.filter(|stretch| *stretch != usize::MAX)
        };
        let of_load = |located: &Located| match located.of {
            Accessed::Load(id) => Some((id, (located.object, located.field))),
            _ => None,
        };
        let located: HashMap<LoadId, (ObjectId, Option<FieldId>)> =
            profile.located.iter().filter_map(of_load).collect();
        let (rows, mut objects, mut paths) = (Rows::of(profile, contexts), Numbers::new(), Numbers::new());
        let locations = Locations::of(profile, &rows);
        let kind_of = |row: Option<usize>| {
            let object = profile.objects.get(rows.object(row?)?.0 as usize)?;
            Some(object.kind)
        };
        let mut firsts = Vec::with_capacity(profile.loads.len());
        for (id, load) in (0..).map(LoadId).zip(&profile.loads) {
            let weight = here(load.sample.0) * load.stands_for;
            let possible = weight > 0.0 && weight.is_finite() && is_ordered(load);
            let Some(stretch) = stretch_of(load.sample.0).filter(|_| possible) else { continue };
            let context = contexts.of(load.stack);
            let place = place_of(context, load.access.kind);
            let path = paths.number_with((context, place), || path_of(context, place));
            let row = located.get(&id).and_then(|(object, _)| rows.row(*object));
            let object = objects.number(row, row.and_then(|row| rows.object(row)));
            let spot = spot_of(place, kind_of(row));
            firsts.push(First { id, load, path, place, spot, object, stretch, weight, share_of_sample: 1.0 });
        }
        let mut alike: HashMap<(u32, usize), f64> = HashMap::new();
        firsts.iter().for_each(|first| *alike.entry((first.load.sample.0, first.place)).or_default() += 1.0);
        for first in &mut firsts {
            first.share_of_sample = alike.get(&(first.load.sample.0, first.place)).map_or(1.0, |n| 1.0 / n);
        }
        let mut reuses_of = |case: &Case<'_>| -> Vec<_> {
            let weights = case.weights(estimator);
            let reuse = |(subject, weight): (&Subject, f64)| {
                let reused = subject.reuse_context.filter(|_| subject.reused());
                // Index of the use with the line.
                let row = locations.of_subject(subject).map(|at| at.row);
                let mut spot_of = |context, kind| spot_of(place_of(Some(context), kind), kind_of(row));
                let arrives = reused.map(|context| spot_of(context, reuse_kind(profile, subject)));
                let arrival = Arrival { distance: subject.distance(), sample: subject.rests_on, weight };
                let of_use = subject.used.and_then(|row| profile.uses.get(row as usize));
                let kind = of_use.map(|of_use| of_use.access.kind).unwrap_or_default();
                (spot_of(subject.context, kind), subject.weight, arrives, arrival)
            };
            case.subjects().iter().zip(weights).map(reuse).collect()
        };
        let (of_lines, of_words) = (reuses_of(lines), reuses_of(words));
        let (places, spots) = (places.values, spots.values);
        let mut groups = Numbers::new();
        let group_of = |(place, kind): &(usize, Option<ObjectKind>)| {
            let frame = places.get(*place).and_then(|place| place.0);
            groups.number((frame.and_then(|frame| function(profile, frame)), *kind), ())
        };
        let groups = spots.iter().map(group_of).collect();
        let mut arrivals = vec![Arrivals::default(); spots.len()];
        let (mut departures, mut word_arrivals) = (arrivals.clone(), arrivals.clone());
        let mut all = Arrivals::default();
        let mut never: Vec<f64> = vec![0.0; spots.len()];
        for (used, weight, arrives, arrival) in of_lines {
            never[used] += weight;
            if let Some(place) = arrives {
                never[used] -= arrival.weight;
                departures[used].push(arrival);
                arrivals[place].push(arrival);
                all.push(arrival);
            }
        }
        for (.., arrives, arrival) in of_words {
            if let Some(place) = arrives {
                word_arrivals[place].push(arrival);
            }
        }
        let every = arrivals.iter_mut().chain(&mut departures).chain(&mut word_arrivals);
        every.chain([&mut all]).for_each(Arrivals::sort);
        // The sum equals the estimate's, made with curves of calling contexts.
        never.iter_mut().for_each(|never| *never = never.max(0.0));
        let lines_never = beyond(lines);
        let factor = lines_never / never.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        never.iter_mut().for_each(|never| *never *= factor);
        let windows: Vec<(u64, f64)> =
            profile.windows.iter().map(|window| (window.accesses, here(window.sample.0))).collect();
        Self {
            located,
            paths: paths.values,
            objects: objects.values,
            arrivals,
            departures,
            all,
            never,
            words: word_arrivals,
            words_of_new: if lines_never > 0.0 { beyond(words) / lines_never } else { 0.0 },
            reach: Reach::of(&windows),
            stretches: lines.stretches().of_sample.clone(),
            missed: missed(profile),
            busy: busy(&firsts),
            left_out: (profile.loads.len() - firsts.len()) as u64,
            firsts,
            places,
            groups,
            functions: functions.values,
        }
    }

    /// Costs of the first touches, with each sample counted `times`.
    pub fn costs(&self, fills: &[u64], times: &dyn Fn(u32) -> f64) -> Vec<Cost> {
        let fill = |stretch: usize| fills.get(stretch).copied().unwrap_or(u64::MAX);
        let fill_at =
            |sample: u32| self.stretches.get(sample as usize).map_or(u64::MAX, |stretch| fill(*stretch));
        let draw = |of: &Arrivals| of.drawn(times, fill_at);
        let drawn = |of: &[Arrivals]| of.iter().map(draw).collect::<Vec<_>>();
        let (all, never) = (draw(&self.all), self.never.iter().sum());
        let mut arrivals = drawn(&self.arrivals);
        let mut shown = vec![0.0; self.groups.len()];
        for first in self.firsts.iter().filter(|first| first.load.gap.is_none()) {
            shown[first.spot] += first.weight * times(first.load.sample.0);
        }
        rearrange(&mut arrivals, &shown, &self.groups, &self.reach, never);
        let new = new_data(&arrivals, &shown, &self.reach, never);
        let before = Gaps::new(arrivals, new, &all);
        let after = Gaps::new(drawn(&self.departures), self.never.clone(), &all);

        let mut all = Fates::default();
        let mut own: HashMap<usize, Fates> =
            self.busy.iter().map(|place| (*place, Fates::default())).collect();
        let mut add = |place: usize, spell: Spell| {
            all.add(&spell);
            if let Some(own) = own.get_mut(&place) {
                own.add(&spell);
            }
        };
        let mut lines = Vec::with_capacity(self.firsts.len());
        for first in &self.firsts {
            let fill = fill(first.stretch);
            let loads = match first.load.gap {
                Some(gap) => f64::from(u8::from(gap >= fill)),
                None => before.lasts(first.spot, first.load.skip, fill),
            };
            let weight = first.weight * times(first.load.sample.0) * loads;
            let mut spell = |until, end, bytes: f64| {
                add(first.place, Spell { until, end, weight: weight * bytes });
            };
            let seen = follow(first.load, fill, |age, bytes| {
                // Bytes used in the first burst are never at risk.
                if age > 0 {
                    spell(age, End::Used, bytes);
                }
            });
            let unused = LINE - seen.used;
            match seen.state {
                State::Evicted(age) => spell(age, End::Evicted, unused),
                State::Open { age, .. } => spell(age, End::Unknown, unused),
            }
            lines.push((weight, seen));
        }
        all.finish(None);
        own.values_mut().for_each(|own| own.finish(Some(&all)));
        let mut known = Vec::with_capacity(lines.len());
        for (first, (weight, seen)) in self.firsts.iter().zip(lines) {
            let later = match seen.state {
                State::Evicted(_) => Later { used: 0.0, open: 0.0 },
                State::Open { age, .. } => own.get(&first.place).unwrap_or(&all).later(age),
            };
            let unused = LINE - seen.used;
            known.push((weight, seen, seen.used + unused * later.used, unused * later.open));
        }
        let words: Vec<f64> = self.words.iter().map(|place| place.far(times, fill_at)).collect();
        let shares = self.shares_used_later(&words, &before, &known);
        let cost = |(first, (weight, seen, used, open)): (&First<'_>, (f64, Shown, f64, f64))| {
            let share = shares[first.spot];
            let reciprocal = match seen.state {
                State::Evicted(_) => 1.0,
                State::Open { idle, .. } => {
                    mean_reciprocal(after.lasts(first.spot, idle, fill(first.stretch)))
                }
            };
            let weight = weight * self.missed;
            Cost {
                lines: weight,
                lost: weight * (LINE - used - share * open).max(0.0),
                unsure: weight * share.min(1.0 - share) * open,
                reciprocal: weight * reciprocal / seen.touches,
                n: u64::from(weight > 0.0),
                samples: if weight > 0.0 { first.share_of_sample } else { 0.0 },
            }
        };
        self.firsts.iter().zip(known).map(cost).collect()
    }

    /// Used share of the bytes with unknown fate, by place. A word touched again after
    /// the eviction of the line is used once per load of the line. Lines then have as
    /// many used words as far reuses of words per load: in total, and at a place with
    /// lines unused elsewhere. Arrivals beyond the room of a place's own loads are uses
    /// of the function's other lines ([`shares`]). `words` has the far reuses of words
    /// by place; `known` has weight, seen bytes, used bytes and bytes with unknown fate.
    fn shares_used_later(
        &self,
        words: &[f64],
        gaps: &Gaps<'_>,
        known: &[(f64, Shown, f64, f64)],
    ) -> Vec<f64> {
        // Used bytes of a used word.
        let sum = |of: fn(&(f64, Shown, f64, f64)) -> f64| known.iter().map(of).sum::<f64>();
        let bytes =
            sum(|(weight, seen, ..)| weight * seen.used) / sum(|(weight, seen, ..)| weight * seen.words);
        let bytes = if bytes.is_finite() { bytes } else { 0.0 };
        let mut rooms = vec![Room::default(); self.groups.len()];
        for (first, (weight, _, used, open)) in self.firsts.iter().zip(known) {
            let room = &mut rooms[first.spot];
            room.used += weight * used;
            room.open += weight * open;
        }
        let words = gaps.words(words, sum(|(weight, ..)| *weight), self.words_of_new);
        let arriving: Vec<f64> = words.iter().map(|words| words * bytes).collect();
        shares(&rooms, &arriving, &self.groups, gaps.prior() * LINE)
    }

    /// Sums over the first touches of each sample.
    pub fn by_sample(&self, costs: &[Cost]) -> Vec<Cost> {
        let mut sums: BTreeMap<u32, Cost> = BTreeMap::new();
        for (first, cost) in self.firsts.iter().zip(costs) {
            *sums.entry(first.load.sample.0).or_default() += *cost;
        }
        sums.into_values().collect()
    }

    /// Sums of costs.
    pub fn sums(&self, costs: &[Cost]) -> Sums {
        let none = |n: usize| vec![Cost::default(); n];
        let mut sums = Sums {
            whole: Cost::default(),
            paths: none(self.paths.len()),
            places: none(self.places.len()),
            objects: none(self.objects.len()),
            own: none(self.functions.len()),
            functions: none(self.functions.len()),
        };
        for (first, cost) in self.firsts.iter().zip(costs).filter(|(_, cost)| cost.lines > 0.0) {
            sums.paths[first.path] += *cost;
            sums.objects[first.object] += *cost;
        }
        for (path, cost) in self.paths.iter().zip(&sums.paths) {
            sums.whole += *cost;
            sums.places[path.place] += *cost;
            for (depth, function) in path.functions.iter().enumerate() {
                sums.functions[*function] += *cost;
                if depth == 0 {
                    sums.own[*function] += *cost;
                }
            }
        }
        sums
    }

    /// Whether the own losses of functions, lines of code and data
    /// objects, and the losses below the outermost functions, sum to
    /// the whole, and no function loses less than the function's parts.
    pub fn balances(&self, costs: &[Cost], sums: &Sums) -> bool {
        let mut below = vec![0.0; self.functions.len()];
        for (path, cost) in self.paths.iter().zip(&sums.paths) {
            below[path.root] += cost.lost;
        }
        let whole: f64 = costs.iter().map(|cost| cost.lost).sum();
        let rounding = ROUNDING * whole;
        let is_whole = |sum: f64| (sum - whole).abs() <= rounding;
        let lost = |costs: &[Cost]| costs.iter().map(|cost| cost.lost).sum::<f64>();
        let parts = sums.own.iter().zip(&below).zip(&sums.functions);
        is_whole(sums.whole.lost)
            && is_whole(below.iter().sum())
            && [&sums.own, &sums.places, &sums.objects].into_iter().all(|costs| is_whole(lost(costs)))
            && parts.into_iter().all(|((own, below), inclusive)| {
                own.lost.max(*below) <= inclusive.lost + rounding && inclusive.lost <= whole + rounding
            })
    }
}

fn missed(profile: &Profile) -> f64 {
    let sampled_ns = profile.samples.iter().fold(0, |sum, sample| u64::saturating_add(sum, sample.period_ns));
    let missed = profile.run.cpu_ns as f64 / sampled_ns as f64;
    if missed.is_finite() && missed > 0.0 { missed } else { 1.0 }
}

fn busy(firsts: &[First<'_>]) -> Vec<usize> {
    let mut counts: HashMap<usize, usize> = HashMap::new();
    firsts.iter().for_each(|first| *counts.entry(first.place).or_default() += 1);
    counts.into_iter().filter(|(_, n)| *n >= BUSY).map(|(place, _)| place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rooms(of: &[[f64; 2]]) -> Vec<Room> {
        of.iter().map(|[used, open]| Room { used: *used, open: *open }).collect()
    }

    #[test]
    fn bytes_beyond_a_places_room_are_of_other_lines_of_its_function() {
        let rooms = rooms(&[[8.0, 56.0], [8.0, 56.0], [8.0, 56.0]]);
        // The second place has 28 bytes more than room; the third is of another function.
        assert_eq!(shares(&rooms, &[8.0, 92.0, 8.0], &[0, 0, 1], 0.0), [0.5, 1.0, 0.0]);
    }

    #[test]
    fn bytes_used_without_arriving_are_taken_from_those_that_did() {
        let rooms = rooms(&[[36.0, 28.0], [8.0, 56.0]]);
        assert_eq!(shares(&rooms, &[8.0, 64.0], &[0, 0], 0.0), [0.0, 0.5]);
        assert_eq!(shares(&rooms, &[8.0, 64.0], &[0, 1], 0.0), [0.0, 1.0]);
    }

    #[test]
    fn places_of_few_bytes_have_the_share_of_all() {
        let rooms = rooms(&[[8.0, 560.0], [0.0, 0.0], [1.0, 5.0]]);
        let found = shares(&rooms, &[288.0, 0.0, 1.0], &[0, 1, 2], 5.0);
        let common = 280.0 / 565.0;
        let expected = [(280.0 + 5.0 * common) / 565.0, common, common / 2.0];
        found.iter().zip(expected).for_each(|(found, expected)| assert!((found - expected).abs() < 1e-12));
        assert_eq!(shares(&[Room::default()], &[0.0], &[0], 0.0), [0.5]);
    }
}
