//! Advice: titles with their gain, evidence, and obstacles.

use locality_units::wrap::wrap;

use super::{LEAST_LOADED, Line, Paint, Screen, names, numbers::Between};
use crate::schema::advice::Advice;

/// Advice on the screen.
const MOST: usize = 5;
/// Less of a cache's loads is not said.
const FEW_MISSES: f64 = 0.05;

impl Screen<'_> {
    pub(super) fn advice(&self) -> Vec<Line> {
        let report = self.report;
        let advice = report.advice.as_deref().unwrap_or_default();
        if advice.is_empty() {
            let text = match &report.advice_none {
                Some(why) => why.as_str(),
                None if report.advice.is_some() => "No change would save much.",
                None => {
                    "Not known: this profile has no loops. It is of an earlier version, or no window was \
                     taken: `locality-bpf doctor -p PID` names a missing right."
                }
            };
            return self.labelled("What to do", text, Paint::Bold);
        }
        let heading = "What to do";
        let remark = "the whole program then runs";
        let room = self.columns.saturating_sub(heading.len());
        let mut lines = vec![Line::starting(Paint::Bold, heading.len(), format!("{heading}{remark:>room$}"))];
        for (index, advice) in advice.iter().take(MOST).enumerate() {
            self.one(index, advice, &mut lines);
        }
        lines
    }

    fn one(&self, index: usize, advice: &Advice, lines: &mut Vec<Line>) {
        const INDENT: usize = 4;
        let gain = Between::estimate(&advice.gain.speedup);
        let gain = gain.map(|gain| format!("{} times as fast", gain.factor(self.is_narrow())));
        let gain = gain.unwrap_or_else(|| "gain not known".to_owned());
        let mut title = advice.title.trim_end_matches('.').to_owned();
        let missing = |title: &str, location: &Option<String>| {
            location.as_ref().is_some_and(|location| !title.contains(location.as_str()))
        };
        let here = names::location(&advice.place);
        if missing(&title, &here) {
            title.push_str(&format!(" ({})", here.unwrap_or_default()));
        }
        let other = advice.other.as_ref().and_then(names::location);
        if missing(&title, &other) {
            title.push_str(&format!(" with {}", other.unwrap_or_default()));
        }
        // The gain stands at the end of the first line, so all lines end before it.
        let room = self.columns.saturating_sub(INDENT + gain.chars().count() + 2);
        for (row, part) in wrap(&title, room).into_iter().enumerate() {
            let text = match row {
                0 => format!("{:>2}  {:<room$}  {gain}", index + 1, names::cut(&part, room)),
                _ => format!("{:INDENT$}{part}", ""),
            };
            lines.push(Line::painted(Paint::Bold, text));
        }
        let mut saved = advice.gain.misses.iter().flatten().filter_map(|(cache, share)| {
            Some((cache, Between::estimate(share).filter(|share| share.value >= FEW_MISSES)?))
        });
        let saved = saved.rfind(|(cache, _)| self.has_loads(cache)).map(|(cache, share)| {
            // Some gains are calculated without an interval.
            let interval = share.interval.filter(|(low, high)| low < high);
            let share = Between { interval, ..share };
            format!("Saves {} of the lines loaded into {cache}.", share.share(self.is_narrow()))
        });
        let evidence: Vec<String> = advice.evidence.iter().cloned().chain(saved).collect();
        self.sentences("", &evidence, self.rows.evidence, lines);
        let mut in_the_way = advice.in_the_way.clone();
        if let Some(first) = in_the_way.first_mut() {
            *first = names::uncapitalised(first);
        }
        self.sentences("Check first: ", &in_the_way, self.rows.in_the_way, lines);
    }

    /// Whether a cache loads lines, as far as known: a share of next to nothing is no gain.
    fn has_loads(&self, cache: &str) -> bool {
        let levels = self.report.cache_use.iter().flat_map(|cache_use| &cache_use.levels);
        let name = if cache == "LLC" { "LL" } else { cache };
        let known =
            levels.filter(|level| level.level == name).find_map(|level| self.loaded_per_second(level));
        known.is_none_or(|bytes| bytes >= LEAST_LOADED)
    }

    /// As many whole sentences as fit in so many lines; the first one at least in part.
    fn sentences(&self, label: &str, sentences: &[String], most: usize, lines: &mut Vec<Line>) {
        const INDENT: usize = 4;
        let columns = self.columns - INDENT;
        let Some((first, rest)) = sentences.split_first() else { return };
        let mut text = format!("{label}{first}");
        for sentence in rest {
            let longer = format!("{text} {sentence}");
            if wrap(&longer, columns).len() > most {
                break;
            }
            text = longer;
        }
        let wrapped = wrap(&text, columns);
        let is_cut = wrapped.len() > most;
        for (row, part) in wrapped.into_iter().take(most).enumerate() {
            let part =
                if is_cut && row + 1 == most { names::cut(&format!("{part} …"), columns) } else { part };
            lines.push(Line::plain(format!("{:INDENT$}{part}", "")));
        }
    }
}
