//! Present precision of the estimate: from time to time the profile
//! written so far is read and estimated, in a thread of its own.
//!
//! Sources of error: the width is a few seconds old; between two looks nothing is extrapolated.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use locality_estimate::{
    access_rates::Rates, calling_context::Contexts, convergence::seconds_left, estimator::Estimator,
    reuse::Case,
};

use locality_kernel::lock::lock;
use locality_kernel::sys;

/// Bootstrap draws: enough for a width, not for a report.
const DRAWS: usize = 60;

/// Shortest pause between two looks; a long look is
/// followed by a pause of [`PAUSES`] times the look's time.
const PAUSE: Duration = Duration::from_secs(4);
const PAUSES: u32 = 20;

/// What a look found.
#[derive(Debug, Clone, Copy)]
struct Look {
    width: Option<f64>,
    /// Length of the trace then, in seconds.
    seconds: f64,
    took: Duration,
}

/// Looks now and then.
#[derive(Debug)]
pub struct Precision {
    file: PathBuf,
    estimator: Estimator,
    asked: Option<f64>,
    started: Instant,
    due: Instant,
    /// Empty while a look is under way.
    latest: Arc<Mutex<Option<Look>>>,
    known: Option<(f64, f64)>,
}

impl Precision {
    /// For the profile in `file`; `asked` as on the command line.
    pub fn new(file: PathBuf, estimator: Estimator, asked: Option<f64>) -> Self {
        let now = Instant::now();
        let first = Look { width: None, seconds: 0.0, took: Duration::ZERO };
        let latest = Arc::new(Mutex::new(Some(first)));
        Self { file, estimator, asked, started: now, due: now + PAUSE, latest, known: None }
    }

    /// Begins a look if it is time to. True when the asked precision is reached.
    pub fn turn(&mut self) -> bool {
        let mut latest = lock(&self.latest);
        let Some(look) = *latest else { return false };
        if let Some(width) = look.width {
            self.known = Some((width, look.seconds));
        }
        let now = Instant::now();
        if now >= self.due + PAUSES * look.took {
            self.due = now + PAUSE;
            *latest = None;
            drop(latest);
            self.look();
        }
        self.asked.zip(self.known).is_some_and(|(asked, (width, _))| width <= asked)
    }

    fn look(&self) {
        let (file, estimator, latest) = (self.file.clone(), self.estimator, Arc::clone(&self.latest));
        let (began, seconds) = (Instant::now(), self.started.elapsed().as_secs_f64());
        let looked = std::thread::Builder::new().name("precision".into()).spawn(move || {
            sys::make_thread_modest();
            let width = width(&file, estimator);
            let look = Look { width, seconds, took: began.elapsed() };
            *lock(&latest) = Some(look);
        });
        if let Err(error) = looked {
            tracing::debug!("the precision is not looked at: {error}");
        }
    }

    /// For the line that shows progress; empty before the first look.
    pub fn words(&self) -> String {
        let Some((width, seconds)) = self.known else { return String::new() };
        let left = self.asked.and_then(|asked| seconds_left(width, asked, seconds));
        let to_go = left.map(|left| {
            let since = self.started.elapsed().as_secs_f64() - seconds;
            format!(", asked for within {:.0} s or so", (left - since).max(1.0))
        });
        format!(", shares to ±{:.1} %{}", width * 100.0, to_go.unwrap_or_default())
    }
}

fn width(file: &std::path::Path, estimator: Estimator) -> Option<f64> {
    let profile = locality_profile::read(file).ok()?;
    let (contexts, rates) = (Contexts::new(&profile), Rates::of(&profile));
    Case::new(&profile, &contexts, &rates, 8, None).estimate(estimator, DRAWS).half_width()
}
