//! Sums of rows: of one group in several segments, or of several groups.
//!
//! Times, counts and bytes add up. Miss ratios are means, weighed by touches of lines.
//! Errors of sampling are independent, and add by squares. The remaining width of an
//! interval (the conversion from time to stack distances) is common to the rows, and stays
//! at the mean. Footprints overlap and do not add up: the footprint of rows is their median, a
//! typical segment's, between the medians of the ends. Those ends hold if errors are common, too,
//! so the interval does not narrow with more rows. Groups of different memory have no median.

use crate::OTHER;
use crate::row::{Point, Row, top};

/// The sum of rows under one name; `None` without rows. The order matters only for rounding.
pub fn merged<'a>(name: &str, rows: impl IntoIterator<Item = &'a Row>) -> Option<Row> {
    let rows: Vec<&Row> = rows.into_iter().collect();
    let mut sum = Row { group: name.to_owned(), who: rows.first()?.who.clone(), ..Row::default() };
    for row in &rows {
        sum.who.agree(&row.who);
        sum.samples += row.samples;
        sum.windows += row.windows;
        sum.cpu_ns.windows += row.cpu_ns.windows;
        sum.cpu_ns.registers += row.cpu_ns.registers;
        sum.cpu_ns.none += row.cpu_ns.none;
        sum.accesses = add(sum.accesses, row.accesses);
        sum.touches = add(sum.touches, row.touches);
    }
    sum.footprint_bytes = footprint(rows.iter().filter_map(|row| row.footprint_bytes));
    let with_curves: Vec<&&Row> =
        rows.iter().filter(|row| !row.curve.is_empty() && row.touches.is_some_and(|n| n > 0.0)).collect();
    if let Some(first) = with_curves.first() {
        // Sizes common to the rows; machines may have different caches.
        let sizes = first.curve.iter().map(|point| point.bytes);
        sum.curve = sizes.filter_map(|bytes| point(bytes, &with_curves)).collect();
        sum.curve_windows = with_curves.iter().map(|row| row.curve_windows).sum();
    }
    let places = rows.iter().flat_map(|row| row.places.iter().cloned());
    sum.places = top(places);
    sum.objects = top(rows.iter().flat_map(|row| row.objects.iter().cloned()));
    Some(sum)
}

fn add(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}

/// Medians of the values, of the lower and of the upper ends, in bytes.
fn footprint(rows: impl Iterator<Item = (f64, f64, f64)>) -> Option<(f64, f64, f64)> {
    let (mut values, (mut lows, mut highs)): (Vec<f64>, (Vec<f64>, Vec<f64>)) =
        rows.map(|(value, low, high)| (value, (low, high))).unzip();
    Some((median(&mut values)?, median(&mut lows)?, median(&mut highs)?))
}

/// The median; of two in the middle the geometric mean, because footprints scatter by factors.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    match values.len() % 2 {
        1 => Some(upper),
        _ => values.get(values.len() / 2 - 1).map(|lower| (lower * upper).sqrt()),
    }
}

fn point(bytes: u64, rows: &[&&Row]) -> Option<Point> {
    let (mut all, mut ratio) = (0.0, 0.0);
    // Below and above: squares of the sampling error, and sums of the rest.
    let (mut squares, mut common) = ([0.0; 2], [0.0; 2]);
    for row in rows {
        let point = row.curve.iter().find(|point| point.bytes == bytes)?;
        let weight = row.touches.unwrap_or(0.0);
        all += weight;
        ratio += weight * point.ratio;
        let sides = [
            (point.ratio - point.low, point.ratio - point.sampling_low),
            (point.high - point.ratio, point.sampling_high - point.ratio),
        ];
        for ((whole, sampling), (square, common)) in
            sides.into_iter().zip(squares.iter_mut().zip(&mut common))
        {
            let (whole, sampling) = (whole.max(0.0), sampling.max(0.0));
            *square += (weight * sampling).powi(2);
            *common += weight * (whole.powi(2) - sampling.powi(2)).max(0.0).sqrt();
        }
    }
    let ratio = ratio / all;
    let sampling = squares.map(|square| square.sqrt() / all);
    let whole = [0, 1].map(|side: usize| {
        let (sampling, common) = (sampling.get(side)?, common.get(side)?);
        Some(sampling.hypot(common / all))
    });
    let [below, above] = whole;
    Some(Point {
        bytes,
        ratio,
        low: (ratio - below?).max(0.0),
        high: (ratio + above?).min(1.0),
        sampling_low: (ratio - sampling[0]).max(0.0),
        sampling_high: (ratio + sampling[1]).min(1.0),
    })
}

/// The rows that are `named`, and the sum of the rest
/// under [`OTHER`], without a footprint; curves of few windows are left out.
pub fn without_small(rows: &[Row], named: impl Fn(&str) -> bool) -> Vec<Row> {
    let (mut kept, others): (Vec<Row>, Vec<Row>) = rows.iter().cloned().partition(|row| named(&row.group));
    let rest = merged(OTHER, &others);
    kept.extend(rest.map(|rest| Row { footprint_bytes: None, ..rest }));
    for row in &mut kept {
        if !row.is_known() {
            row.curve.clear();
        }
    }
    kept
}
