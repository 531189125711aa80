//! Call paths of an exact report: reuses that miss a cache, by pair of call paths.
//!
//! An exact report keeps the heaviest pairs of call paths of each pair of places.
//! A far reuse is here a miss of a fully associative cache of [`FAR_BYTES`].
//! Reuses without an own call path stand at the place of the pair. Of a run with `--sample-lines`, the
//! reuses seen are multiplied by the number of lines of which one is sampled.

use std::sync::Arc;

use locality_report::schema::{
    Report,
    pairs::Pair,
    place::{Frame as Shown, Path},
};

use crate::table::{Builder, Frame, Labels, Table};
use crate::{End, Metric};

/// Cache size that far reuses miss, one of the keys of `pairs[].misses`.
pub const FAR_BYTES: &str = "32768";

/// All call paths.
pub fn table(report: &Report, end: End) -> Table {
    let mut builder = Builder::default();
    let column = builder.column(Metric::Far, "count", None);
    let scale = f64::from(report.run.sample_lines.unwrap_or(1));
    for pair in &report.pairs {
        let misses = |misses: &Option<std::collections::BTreeMap<String, u64>>| {
            misses.as_ref().and_then(|misses| misses.get(FAR_BYTES)).copied().unwrap_or(0)
        };
        let mut rest = misses(&pair.misses);
        for context in &pair.contexts {
            let own = misses(&context.misses).min(rest);
            rest -= own;
            let (here, other) = ends(&context.used, &context.reuse, end);
            let path = frames(&mut builder, here);
            builder.add(column, path, label(other, end), own as f64 * scale);
        }
        let (here, other) = ends_of_pair(pair, end);
        let innermost = here.frames.iter().flatten().next().cloned();
        let path = innermost.map(|frame| vec![number(&mut builder, &frame)]).unwrap_or_default();
        builder.add(column, path, label(other, end), rest as f64 * scale);
    }
    builder.finish()
}

fn ends<'a>(used: &'a Path, reuse: &'a Path, end: End) -> (&'a Path, &'a Path) {
    match end {
        End::Use => (used, reuse),
        End::Reuse => (reuse, used),
    }
}

fn ends_of_pair(pair: &Pair, end: End) -> (&Path, &Path) {
    ends(&pair.used, &pair.reuse, end)
}

fn label(other: &Path, end: End) -> Labels {
    let key = match end {
        End::Use => "reuse",
        End::Reuse => "use",
    };
    other.frames.iter().flatten().next().map(|shown| (key, frame(shown).label())).into_iter().collect()
}

fn frames(builder: &mut Builder<Arc<Shown>>, path: &Path) -> Vec<u32> {
    path.frames.iter().flatten().rev().map(|frame| number(builder, frame)).collect()
}

fn number(builder: &mut Builder<Arc<Shown>>, shown: &Arc<Shown>) -> u32 {
    builder.frame(Arc::clone(shown), || frame(shown))
}

fn frame(shown: &Shown) -> Frame {
    let module = shown.module.clone().unwrap_or_default();
    let name = shown.function.clone().unwrap_or_else(|| {
        let base = module.rsplit('/').next().unwrap_or_default();
        format!("{base}+{:#x}", shown.address.unwrap_or(0))
    });
    Frame {
        name,
        file: shown.file.clone().unwrap_or_default(),
        line: shown.line.unwrap_or(0),
        module,
        address: shown.address.unwrap_or(0),
        inlined: shown.inlined,
    }
}
