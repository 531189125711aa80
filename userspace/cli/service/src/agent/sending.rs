//! Segments on their way to a Collector: one at a time, each by a job.
//!
//! A segment that the Collector does not take now is tried again after some time, doubled each time. With
//! more than [`WAITING`] segments the oldest are dropped, and counted. A killed agent forgets the queue.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use locality_kernel::writing::say;

use super::{Agent, Job};
use crate::collector::{Collector, Sent};
use crate::jobs::{self, Settings};

/// Segments that wait at most.
const WAITING: usize = 16;
/// Time for a segment: analysis and request.
const TIME: Duration = Duration::from_secs(600);
/// Wait before the second attempt.
const FIRST_WAIT: Duration = Duration::from_secs(5);
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Fates of segments, as in the metrics.
pub(super) const DROPPED: &str = "dropped";
const ACCEPTED: &str = "accepted";
const REJECTED: &str = "rejected";

/// Counters of fates, from 0 with a Collector.
pub(super) fn fates(has_collector: bool) -> BTreeMap<String, u64> {
    let all = [ACCEPTED, REJECTED, DROPPED].into_iter().filter(|_| has_collector);
    all.map(|fate| (fate.to_owned(), 0)).collect()
}

/// Segments for a Collector.
pub(super) struct Sending {
    to: Collector,
    waiting: VecDeque<PathBuf>,
    running: Option<(Job, PathBuf)>,
    next: Instant,
    wait: Duration,
    /// The last reason reported, which is not repeated.
    said: String,
}

impl Sending {
    pub(super) fn to(to: Collector) -> Self {
        let (waiting, next) = (VecDeque::new(), Instant::now());
        Self { to, waiting, running: None, next, wait: FIRST_WAIT, said: String::new() }
    }

    /// Adds a segment; returns the number of segments dropped for it.
    pub(super) fn add(&mut self, segment: PathBuf) -> u64 {
        self.waiting.push_back(segment);
        let over = self.waiting.len().saturating_sub(WAITING);
        self.waiting.drain(..over);
        over as u64
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_none()
    }

    /// The running job, for its end.
    pub(super) fn end(self) -> Option<Job> {
        self.running.map(|(job, _)| job)
    }

    fn say(&mut self, why: &str) {
        if self.said != why {
            say(&format!("--otlp {}: {why}", self.to));
            why.clone_into(&mut self.said);
        }
    }
}

impl Agent {
    /// Starts the job of the next segment. At the end of the agent no attempt is waited for.
    pub(super) fn send_what_is_due(&mut self) {
        let is_ending = self.is_ending;
        let is_due =
            |sending: &Sending| sending.running.is_none() && (is_ending || Instant::now() >= sending.next);
        let Some(sending) = self.sending.as_mut().filter(|sending| is_due(sending)) else { return };
        // Rollups come first: metrics have no second source.
        if self.rollup.is_some() {
            return;
        }
        let Some(segment) = sending.waiting.pop_front() else { return };
        if !segment.exists() {
            self.count_sent(DROPPED, 1);
            return;
        }
        let collector = Some(sending.to.clone());
        let settings = Settings { collector, ..self.settings(segment.clone()) };
        let started = self.job(jobs::SEND, &settings, TIME);
        let Some(sending) = &mut self.sending else { return };
        match started {
            Ok(job) => sending.running = Some((job, segment)),
            Err(error) => {
                sending.say(&format!("no job starts: {error}"));
                self.count_sent(DROPPED, 1);
            }
        }
    }

    /// Takes the fate of a sent segment.
    pub(super) fn look_after_sending(&mut self) {
        let Some(sending) = &mut self.sending else { return };
        let Some(result) = sending.running.as_mut().and_then(|(job, _)| job.result()) else { return };
        let Some((_, segment)) = sending.running.take() else { return };
        let fate = match result.and_then(|bytes| Ok(serde_json::from_slice::<Sent>(&bytes)?)) {
            Ok(Sent::Accepted) => {
                (sending.wait, sending.next) = (FIRST_WAIT, Instant::now());
                sending.said.clear();
                ACCEPTED
            }
            Ok(Sent::Rejected(why)) => {
                sending.say(&why);
                REJECTED
            }
            Ok(Sent::Later(why)) => {
                sending.say(&format!("{why}; further attempts follow"));
                sending.next = Instant::now() + sending.wait;
                sending.wait = (sending.wait * 2).min(LONGEST_WAIT);
                if !self.is_ending && sending.waiting.len() < WAITING {
                    sending.waiting.push_front(segment);
                    return;
                }
                DROPPED
            }
            Err(error) => {
                sending.say(&format!("{} is not sent: {error:#}", segment.display()));
                DROPPED
            }
        };
        self.count_sent(fate, 1);
        self.show();
    }

    pub(super) fn count_sent(&mut self, fate: &str, n: u64) {
        *self.totals.sent.entry(fate.to_owned()).or_default() += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_segments_make_room() {
        let mut sending = Sending::to("http://127.0.0.1".parse().unwrap());
        assert!(sending.is_idle());
        let dropped: u64 = (0..WAITING + 3).map(|n| sending.add(PathBuf::from(n.to_string()))).sum();
        assert_eq!((dropped, sending.waiting.len()), (3, WAITING));
        assert_eq!(sending.waiting.front(), Some(&PathBuf::from("3")));
        assert!(!sending.is_idle());
        assert!(fates(false).is_empty() && fates(true).len() == 3);
    }
}
