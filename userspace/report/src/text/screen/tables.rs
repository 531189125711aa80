//! Tables of one screen: data objects with their lines of code, loops or hot lines, and far reuses.

use locality_units::print::{bytes, count};

use super::{
    Line, Paint, Screen, names,
    numbers::{Between, large, percent, short},
};
use crate::schema::{
    hot::HotLine,
    loops::{Loop, Trips},
    objects::{Object, ObjectLine},
    pairs::Pair,
    place::Place,
    reuse::Distance,
};

/// Rows with a smaller share are left out.
const SMALL: f64 = 0.005;
/// Pairs seen this often or less are marked.
const WEAK: u64 = 3;
/// A smaller weight of a pair is printed as such.
const LEAST_WEIGHT: f64 = 0.0005;

impl Screen<'_> {
    pub(super) fn objects(&self) -> Vec<Line> {
        let Some(objects) = self.report.objects.as_ref().filter(|objects| !objects.is_empty()) else {
            return Vec::new();
        };
        let summary = self.report.objects_summary.as_ref();
        let ranked_by = summary.and_then(|summary| summary.ranked_by.as_deref());
        let used = ranked_by.map(|level| self.used_of_line(level)).unwrap_or_default();
        let with_used = self.columns >= 88 && !used.is_empty();
        let share_columns = self.share_columns();
        let type_columns = if self.is_wide() { 24 } else { 0 };
        let used_columns = if with_used { 10 } else { 0 };
        let shares = if ranked_by.is_some() { 2 } else { 1 };
        let right = shares * (share_columns + 2) + 6 + used_columns + type_columns;
        let room = self.columns.saturating_sub(3 + right);
        let misses = ranked_by.map_or(String::new(), |level| {
            format!("  {:<share_columns$}", format!("{} misses", self.level_name(level)))
        });
        let title = if ranked_by.is_some() { "Where the misses are" } else { "Where the accesses are" };
        let type_heading = if self.is_wide() { format!("{:<type_columns$}", "type") } else { String::new() };
        let used_heading = if with_used { " used/line" } else { "" };
        let head = format!(
            "{title:<width$}{type_heading}{misses}  {:<share_columns$}{:>6}{used_heading}",
            "accesses",
            "CPU",
            width = room + 3,
        );
        let mut lines = vec![Self::heading(head.trim_end())];
        let weight = |object: &Object| {
            let misses = ranked_by.and_then(|level| object.miss_share.get(level)).copied();
            misses.unwrap_or(object.access_share).finite().unwrap_or(0.0)
        };
        let is_shown = |object: &&Object| {
            weight(object) >= SMALL || object.access_share.finite().is_some_and(|share| share >= 2.0 * SMALL)
        };
        let rows: Vec<&Object> = objects.iter().filter(is_shown).collect();
        let cells =
            |misses: Option<Between>, accesses: Option<Between>, cpu: Option<f64>, used: Option<f64>| {
                let misses =
                    ranked_by.map_or(String::new(), |_| format!("  {:<share_columns$}", self.share(misses)));
                let used = match used.filter(|_| with_used) {
                    Some(used) => format!("{:>4} of 64", short(used)),
                    None => String::new(),
                };
                let cpu = cpu.map_or(String::new(), percent);
                format!("{misses}  {:<share_columns$}{cpu:>6}{used}", self.share(accesses))
            };
        for (index, object) in rows.iter().take(self.rows.objects).enumerate() {
            let misses = ranked_by.and_then(|level| {
                Between::of(*object.miss_share.get(level)?, object.miss_share_ci95.get(level).copied())
            });
            let of_type = match (&object.type_name, self.is_wide()) {
                (Some(of_type), true) => format!("{:<type_columns$}", names::name(of_type, type_columns - 2)),
                _ => " ".repeat(type_columns),
            };
            let cells = cells(
                misses,
                Between::of(object.access_share, Some(object.access_share_ci95)),
                object.cpu_share.finite(),
                used.get(object.name.as_str()).copied(),
            );
            let name = self.object_name(object, room);
            lines.push(Line::plain(format!("{:>2} {name:<room$}{of_type}{cells}", index + 1)));
            let code = if index == 0 { self.rows.code } else { self.rows.code.min(1) };
            for line in self.code_of(object, ranked_by).into_iter().take(code) {
                let share = |of: Option<Between>| of.map(|of| Between { interval: None, ..of });
                let misses = ranked_by.and_then(|level| Between::of(*line.miss_share.get(level)?, None));
                let cells = self::Cells { ranked_by: ranked_by.is_some(), share_columns }
                    .of(share(misses), Between::of(line.access_share, None));
                let place = names::place(&place_of(line), room.saturating_sub(3));
                lines.push(Line::plain(format!(
                    "      {place:<width$}{:type_columns$}{cells}",
                    "",
                    width = room - 3
                )));
            }
        }
        let shown = rows.len().min(self.rows.objects);
        let rest = objects.len() - shown;
        if rest > 0 {
            let of_shown: f64 = rows.iter().take(shown).map(|object| weight(object)).sum();
            let sum = (objects.iter().map(weight).sum::<f64>() - of_shown).max(0.0);
            let noun = if rest == 1 { "object" } else { "objects" };
            let text = format!("   {rest} more {noun}");
            lines.push(Line::plain(format!(
                "{text:<width$}{:type_columns$}  {}",
                "",
                percent(sum),
                width = room + 3
            )));
        }
        let unknown =
            summary.and_then(|summary| Between::of(summary.unknown_share, Some(summary.unknown_share_ci95)));
        if let Some(unknown) = unknown.filter(|unknown| unknown.value >= 2.0 * SMALL) {
            let empty = if ranked_by.is_some() { share_columns + 2 } else { 0 };
            let text = format!("   not named{:width$}", "", width = room - 9 + type_columns + empty);
            lines.push(Line::plain(format!("{text}  {}", self.share(Some(unknown)))));
        }
        lines
    }

    /// "w.particles  heap, 55 MiB"
    fn object_name(&self, object: &Object, room: usize) -> String {
        let size = object.bytes.filter(|size| *size > 0).map(|size| match self.has_several_blocks(object) {
            true => format!("blocks ≤ {}", bytes(size)),
            false => bytes(size),
        });
        let about: Vec<String> = [Some(object.kind.clone()), size].into_iter().flatten().collect();
        let about = about.join(", ");
        let left = room.saturating_sub(about.chars().count() + 2);
        let least = object.name.chars().count().min(14);
        match left >= least {
            true => format!("{}  {about}", names::name(&object.name, left)),
            false => names::name(&object.name, room),
        }
    }

    /// Whether several blocks of one allocating call path are the object, as far as recorded.
    fn has_several_blocks(&self, object: &Object) -> bool {
        let Some(stack) = object.site.as_ref().and_then(|site| site.stack) else { return false };
        let heap = self.report.objects_summary.as_ref().and_then(|summary| summary.heap.as_ref());
        let of_site = heap.iter().flat_map(|heap| &heap.sites).filter(|site| site.stack == Some(stack));
        of_site.map(|site| site.allocations).sum::<u64>() > 1
    }

    /// Lines of code that access an object, the most misses first.
    fn code_of<'a>(&self, object: &'a Object, ranked_by: Option<&str>) -> Vec<&'a ObjectLine> {
        let weight = |line: &ObjectLine| {
            let misses = ranked_by.and_then(|level| line.miss_share.get(level)).copied();
            misses.unwrap_or(line.access_share).finite().unwrap_or(0.0)
        };
        let mut lines: Vec<&ObjectLine> = object.lines.iter().filter(|line| weight(line) >= SMALL).collect();
        lines.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        lines
    }

    /// Loops, or where the profile knows none, lines of code.
    pub(super) fn places(&self) -> Vec<Line> {
        match self.report.loops.as_deref() {
            Some([]) | None => self.hot_lines(),
            Some(loops) => self.loops(loops),
        }
    }

    fn loops(&self, loops: &[Loop]) -> Vec<Line> {
        /// Least share of the CPU time outside of loops for a row.
        const OUTSIDE: f64 = 0.05;
        let share_columns = self.share_columns();
        let with_trips = self.columns >= 88;
        let trips_columns = if with_trips { 9 } else { 0 };
        let object_columns = if self.is_wide() { 24 } else { 0 };
        let cycles_columns = if self.is_narrow() { 7 } else { 14 };
        const BOUND: usize = 18;
        let right = share_columns + cycles_columns + BOUND + trips_columns + object_columns + 6;
        let room = self.columns.saturating_sub(3 + right);
        let head = format!(
            "{:<width$}  {:<share_columns$}  {:<cycles_columns$}  {:<BOUND$}{:>trips_columns$}{}",
            "Where the time is: loops",
            "CPU time",
            if self.is_narrow() { "cycles" } else { "cycles (core)" },
            "bound by",
            if with_trips { "trips" } else { "" },
            if self.is_wide() { "  object" } else { "" },
            width = room + 3,
        );
        let mut lines = vec![Self::heading(head.trim_end())];
        let is_shown = |one: &&Loop| one.share.value.finite().is_some_and(|share| share >= SMALL);
        let shown: Vec<&Loop> = loops.iter().filter(is_shown).collect();
        if shown.is_empty() {
            return self.hot_lines();
        }
        for (index, one) in shown.iter().take(self.rows.loops).enumerate() {
            let cycles = |of: &Option<crate::schema::Estimate>| of.as_ref().and_then(few_or_range);
            let cycles = match (cycles(&one.cycles), cycles(&one.core_cycles)) {
                (Some(all), _) if self.is_narrow() => all,
                (Some(all), Some(core)) => format!("{all} ({core})"),
                (Some(all), None) => all,
                (None, Some(core)) => format!("? ({core})"),
                (None, None) => "?".to_owned(),
            };
            let bound = one.bound_by.as_deref().map_or("not known", bound_by);
            let object = one.accesses.iter().find_map(|access| access.object.as_deref());
            let object = match object.filter(|_| self.is_wide()) {
                Some(object) => format!("  {}", names::name(object, object_columns - 2)),
                None => String::new(),
            };
            lines.push(Line::plain(format!(
                "{:>2} {:<room$}  {:<share_columns$}  {cycles:<cycles_columns$}  {bound:<BOUND$}{:>trips_columns$}{object}",
                index + 1,
                names::place(&one.place, room),
                self.share(Between::estimate(&one.share)),
                if with_trips { trips(&one.trips) } else { String::new() },
            )));
        }
        if let Some(rest) = shown.get(self.rows.loops..).filter(|rest| !rest.is_empty()) {
            let sum: f64 = rest.iter().filter_map(|one| one.share.value.finite()).sum();
            let noun = if rest.len() == 1 { "loop" } else { "loops" };
            let text = format!("   {} more {noun}", rest.len());
            lines.push(Line::plain(format!("{text:<width$}  {}", percent(sum), width = room + 3)));
        }
        let outside = 1.0 - loops.iter().filter_map(|one| one.share.value.finite()).sum::<f64>();
        if outside >= OUTSIDE {
            let text = "   outside of loops";
            lines.push(Line::plain(format!("{text:<width$}  {}", percent(outside), width = room + 3)));
        }
        lines
    }

    fn hot_lines(&self) -> Vec<Line> {
        let Some(hot) = &self.report.hot else { return Vec::new() };
        let is_shown = |line: &&HotLine| line.share.finite().is_some_and(|share| share >= SMALL);
        let shown: Vec<&HotLine> = hot.by_line.iter().filter(is_shown).collect();
        if shown.is_empty() {
            return Vec::new();
        }
        let share_columns = self.share_columns();
        let room = self.columns.saturating_sub(3 + share_columns + 2 + 18);
        let head = format!(
            "{:<width$}  {:<share_columns$}  {:>7} {:>7}",
            "Where the time is: lines",
            "CPU time",
            "loads",
            "stores",
            width = room + 3
        );
        let mut lines = vec![Self::heading(head.trim_end())];
        let shown = shown.iter().take(self.rows.loops.min(3).max(self.options.top.unwrap_or(0)));
        for (index, line) in shown.enumerate() {
            let place = Place {
                file: line.file.clone(),
                function: line.function.clone(),
                line: line.line,
                via: line.via.clone(),
                ..Place::default()
            };
            let part = |of: crate::schema::Number| of.finite().map_or(String::new(), percent);
            lines.push(Line::plain(format!(
                "{:>2} {:<room$}  {:<share_columns$}  {:>7} {:>7}",
                index + 1,
                names::place(&place, room),
                self.share(Between::of(line.share, Some(line.ci95))),
                part(line.loads),
                part(line.stores),
            )));
        }
        lines
    }

    pub(super) fn pairs(&self) -> Vec<Line> {
        let all = &self.report.pairs;
        if all.is_empty() {
            return Vec::new();
        }
        let far = all.iter().enumerate().filter(|(_, pair)| pair.far == Some(true));
        let mut far: Vec<(usize, &Pair)> = far.collect();
        let far_weight =
            |pair: &Pair| pair.far_weight.or(Some(pair.weight)).and_then(|weight| weight.finite());
        far.sort_by(|(_, a), (_, b)| far_weight(b).unwrap_or(0.0).total_cmp(&far_weight(a).unwrap_or(0.0)));
        if far.is_empty() {
            return self.labelled(
                "Far reuses",
                "No pair has far reuses to speak of; --pairs lists all pairs.",
                Paint::Bold,
            );
        }
        let share_columns = self.share_columns();
        let object_columns = match self.columns {
            columns if columns < WITH_INTERVALS => 0,
            columns if columns < WITH_OBJECTS => 12,
            _ if !self.is_wide() => 18,
            _ => 30,
        };
        const WITH_INTERVALS: usize = 80;
        const WITH_OBJECTS: usize = 96;
        const BETWEEN: usize = 8;
        const SEEN: usize = 6;
        let gap = if object_columns > 0 { 2 } else { 0 };
        let room = self.columns.saturating_sub(3 + share_columns + BETWEEN + SEEN + object_columns + gap + 6);
        let first = far.first().and_then(|(_, pair)| far_distance(pair));
        let is_time = first.is_some_and(|time| time.unit == "cpu_ns");
        let between = if is_time { "apart" } else { "accesses" };
        let head = format!(
            "{:<width$}  {:<share_columns$}  {between:>BETWEEN$}  {:>SEEN$}{:gap$}{}",
            "Far reuses",
            "of reuses",
            "n",
            "",
            if object_columns > 0 { "data object" } else { "" },
            width = room + 3
        );
        let mut lines = vec![Self::heading(head.trim_end())];
        for (index, (_, pair)) in far.iter().take(self.rows.pairs).enumerate() {
            let distance = far_distance(pair).and_then(|time| time.value.finite());
            let distance = match (distance, is_time) {
                (Some(ns), true) => locality_units::print::duration(ns),
                (Some(n), false) => large(n),
                (None, _) => String::new(),
            };
            let object = pair.object.as_ref().filter(|_| object_columns > 0);
            let object = object.map_or(String::new(), |object| names::name(&object.name, object_columns));
            let weak = if pair.n <= WEAK { "!" } else { "" };
            lines.push(Line::plain(format!(
                "{:>2} {:<room$}  {:<share_columns$}  {distance:>BETWEEN$}  {:>SEEN$}{:gap$}{object}",
                index + 1,
                ends(pair, room),
                match (far_weight(pair), pair.far_weight) {
                    (Some(weight), _) if weight > 0.0 && weight < LEAST_WEIGHT => "< 0.1 %".to_owned(),
                    (_, Some(weight)) => self.share(Between::of(weight, pair.far_weight_ci95)),
                    _ => self.share(Between::of(pair.weight, pair.weight_ci95)),
                },
                format!("{weak}{}", count(pair.n)),
                "",
            )));
        }
        let is_any_weak = far.iter().take(self.rows.pairs).any(|(_, pair)| pair.n <= WEAK);
        let (more, rest) = (far.len().saturating_sub(self.rows.pairs), all.len() - far.len());
        let mut remarks = Vec::new();
        if more > 0 {
            remarks.push(format!("{more} more far pairs"));
        }
        if rest > 0 {
            remarks.push(format!("{} nearer ones", count(rest as u64)));
        }
        let mut remark = match remarks.is_empty() {
            true => String::new(),
            false => format!("{}: --pairs.", remarks.join(", ")),
        };
        if is_any_weak {
            remark.push_str(" An ! marks pairs seen three times or less.");
        }
        if !remark.is_empty() {
            lines.push(Line::plain(format!("   {}", remark.trim_start())));
        }
        lines
    }
}

/// The median distance of a pair's far reuses; of a report without that, of all of the pair's reuses.
fn far_distance(pair: &Pair) -> Option<&Distance> {
    pair.far_median.as_ref().or(pair.time_median.as_ref())
}

/// Cells of a line of code of an object: shares without intervals.
struct Cells {
    ranked_by: bool,
    share_columns: usize,
}

impl Cells {
    fn of(&self, misses: Option<Between>, accesses: Option<Between>) -> String {
        let columns = self.share_columns;
        let share = |of: Option<Between>| of.map_or(String::new(), |of| percent(of.value));
        let misses = if self.ranked_by { format!("  {:<columns$}", share(misses)) } else { String::new() };
        format!("{misses}  {:<columns$}", share(accesses))
    }
}

fn place_of(line: &ObjectLine) -> Place {
    Place {
        file: line.file.clone(),
        function: line.function.clone(),
        line: line.line,
        via: line.via.clone(),
        ..Place::default()
    }
}

/// "integrate particles.cpp:31 → energy :51": the file of the reuse only if different.
fn ends(pair: &Pair, room: usize) -> String {
    let of = |place: &Option<Place>| place.clone().unwrap_or_default();
    let (used, mut reused) = (of(&pair.used.place), of(&pair.reuse.place));
    if used.file.is_some() && used.file == reused.file && used.line.is_some() && reused.line.is_some() {
        if used == reused {
            return format!("{} → itself", names::place(&used, room.saturating_sub(9)));
        }
        let line = reused.line.map(|line| format!(" :{line}")).unwrap_or_default();
        reused.file = None;
        reused.line = None;
        let left = room.saturating_sub(3 + line.chars().count());
        let (first, second) = halves(left, &names::place(&used, room), &names::place(&reused, room));
        let second = names::place(&reused, second);
        return format!("{} → {second}{line}", names::place(&used, first));
    }
    let left = room.saturating_sub(3);
    let (first, second) = halves(left, &names::place(&used, room), &names::place(&reused, room));
    format!("{} → {}", names::place(&used, first), names::place(&reused, second))
}

/// Room for two texts: half for each, and the rest of the shorter one.
fn halves(room: usize, first: &str, second: &str) -> (usize, usize) {
    let (a, b) = (first.chars().count(), second.chars().count());
    let half = room / 2;
    match (a <= half, b <= half) {
        (true, _) => (a, room - a),
        (_, true) => (room - b, b),
        _ => (room - half, half),
    }
}

/// "33", or "17–52" where the interval's ends differ by half or more.
pub(in crate::text) fn few_or_range(cycles: &crate::schema::Estimate) -> Option<String> {
    const WIDE: f64 = 1.5;
    let value = cycles.value.finite()?;
    let range = Between::estimate(cycles)
        .and_then(|cycles| cycles.interval)
        .filter(|(low, high)| *high >= WIDE * *low)
        .map(|(low, high)| (short(low), short(high)));
    Some(
        range
            .filter(|(low, high)| low != high)
            .map_or_else(|| short(value), |(low, high)| format!("{low}–{high}")),
    )
}

/// "4,096", or "512+" where no run was seen whole; "1.2 M" where there is no room for all digits.
pub(in crate::text) fn trips(of: &Trips) -> String {
    let number = |n: u64| if n < 1_000_000 { count(n) } else { large(n as f64) };
    match (of.median, of.at_least) {
        (Some(median), _) => number(median),
        (None, Some(least)) => format!("{}+", number(least)),
        (None, None) => String::new(),
    }
}

/// What limits a loop, in words.
pub fn bound_by(bound: &str) -> &str {
    match bound {
        "integer_chain" => "chain of integers",
        "fp_add_chain" => "chain of additions",
        "fp_multiply_chain" => "chain of products",
        "divide_chain" => "chain of divisions",
        "load_chain" => "chain of loads",
        "pointer_chase" => "pointer chase",
        "store_forwarding" => "store forwarding",
        "mispredictions" => "mispredictions",
        "l1_misses" => "L1 misses",
        "deeper_misses" => "misses beyond L2",
        "page_faults" => "page faults",
        "width" => "instruction width",
        "loads" => "load units",
        "stores" => "store units",
        "int_units" => "integer units",
        "fp_units" => "floating point",
        "divider" => "divider",
        "window" => "reorder window",
        other => other,
    }
}
