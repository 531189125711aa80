//! From time distances to stack distances and miss ratios.
//!
//! A time distance (accesses from a use to the reuse, the reuse included, so 1 for the
//! very next access) is cheap to measure; the stack distance (other granules touched in
//! between, from 0) decides whether a cache still has the data. All methods rest on one
//! mean: a window of r accesses touches fp(r) = τ · Σ_{j<r} P(T > j) distinct granules on
//! average (Denning & Schwartz 1972, CACM 15(3)), so a reuse at time distance r has
//! fp(r) − 1 others in between. τ is touches per access: one access that spans k granules
//! is k touches. First touches have no distance; the mass of first touches stays in P.
//!
//! | module | method | input beyond the histogram |
//! |---|---|---|
//! | `mean` | StatStack, AET: fp(r) − 1 for every reuse of length r | none |
//! | `shen` | Shen et al., RDX eq. 3–4: binomial around the mean | number of distinct granules |
//! | `hotl` | higher-order theory: miss ratio as the slope of the finite trace's footprint | n; first and last touches if known |
//! | `phases` | the mean along the phases spanned by the reuse | one histogram per phase |
//!
//! `phases` is the default where phases are known (docs/method/conversion.md has the figures), `mean`
//! elsewhere.
//!
//! Sources of error: the footprint of windows between a use and the reuse is taken for the
//! footprint of every window of the length (HOTL's reuse-window hypothesis; wrong for
//! different loops alternating within a phase). Methods other than `shen` give one stack
//! distance to the reuses of one length. Wide input bins hide the position of a reuse in the
//! bin (uniform is assumed, unless the mean of a bin is known: `Distances::with_means`).

pub mod distances;
pub mod scale;

pub mod survival;

pub mod hotl;
pub mod mean;
pub mod phases;
pub mod shen;

#[cfg(test)]
pub(crate) mod oracle;
#[cfg(test)]
mod tests;
