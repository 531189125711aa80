//! What a run is asked for: windows, predictors, views, latencies.

use std::{fmt, str::FromStr};

use locality_stream::LatencyClass;

/// Windows times predictors at most.
pub const LANES: usize = 8;
/// Largest window of finite size, in instructions.
pub const LARGEST_WINDOW: u32 = 1 << 16;
/// Cycles of a load in [`Latency::Machine`], whether the word was stored just before or not.
pub const LOAD: u8 = 5;

/// Dependences that are not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct View {
    /// Pushes, pops, calls and returns move the stack pointer without a dependence.
    pub stack: bool,
    /// Addresses, comparisons and branches have the value of an induction variable at once.
    pub induction: bool,
    /// Copies between registers and memory take no time.
    pub copies: bool,
    /// Accumulators of sums, products, minima, maxima and bit operations pass on no order: an instruction
    /// does not wait for its own last result if no other instruction took that result. The result is there
    /// when all operands up to now are.
    pub reductions: bool,
}

impl View {
    /// No dependence is ignored: the machine code's view.
    pub const MACHINE: View = View { stack: false, induction: false, copies: false, reductions: false };
    /// The first three: dependences of values alone.
    pub const VALUES: View = View { stack: true, induction: true, copies: true, reductions: false };

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            View::MACHINE => "machine",
            View::VALUES => "values",
            _ => "custom",
        }
    }

    /// Names of what is ignored, in the order of the option.
    pub fn ignored(self) -> Vec<&'static str> {
        let parts = [
            (self.stack, "stack"),
            (self.induction, "induction"),
            (self.copies, "copies"),
            (self.reductions, "reductions"),
        ];
        parts.into_iter().filter(|(is_on, _)| *is_on).map(|(_, name)| name).collect()
    }
}

/// How long instructions take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Latency {
    /// One cycle each.
    #[default]
    Unit,
    /// As on server processors of the early 2020s: the default machine of the timing model.
    Machine,
}

impl Latency {
    /// Its name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Latency::Unit => "unit",
            Latency::Machine => "machine",
        }
    }

    /// Cycles from the operands of an instruction, its loads done, to its results.
    pub(crate) fn cycles(self, class: LatencyClass, is_free: bool) -> u8 {
        use LatencyClass as C;
        match (self, class) {
            (Latency::Unit, _) => u8::from(!is_free),
            (_, C::Nothing | C::Copy | C::Load | C::Store) => 0,
            (_, C::Integer | C::VectorInteger | C::Branch | C::String | C::Call | C::Return | C::System) => 1,
            (_, C::IntegerMultiply | C::Transfer | C::FpAdd) => 3,
            (_, C::VectorMultiply | C::FpOther | C::FpSum | C::Convert) => 4,
            (_, C::FpMultiply | C::FpMultiplyAdd) => 4,
            (_, C::IntegerDivide) => 14,
            (_, C::FpDivide) => 13,
            (_, C::FpFunction) => 60,
            (_, C::Atomic) => 18,
        }
    }
}

/// Which branches are foreseen. Returns always are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Predict {
    /// All kinds.
    #[default]
    Perfect,
    /// Two-bit counters by address and so many outcomes before, 1 to 20; jumps to computed addresses
    /// as the last time.
    Gshare(u32),
    /// Tagged tables of several lengths of history ([`locality_stream::Predictor`]).
    Tage,
    /// Conditional branches are taken where they go back; jumps to computed addresses never foreseen.
    Static,
    /// No conditional branch, and no jump to a computed address.
    None,
}

impl fmt::Display for Predict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Predict::Perfect => f.write_str("perfect"),
            Predict::Gshare(bits) => write!(f, "gshare:{bits}"),
            Predict::Tage => f.write_str("tage"),
            Predict::Static => f.write_str("static"),
            Predict::None => f.write_str("none"),
        }
    }
}

impl FromStr for Predict {
    type Err = BadSetup;

    fn from_str(text: &str) -> Result<Self, BadSetup> {
        match text {
            "perfect" => Ok(Predict::Perfect),
            "tage" => Ok(Predict::Tage),
            "static" => Ok(Predict::Static),
            "none" => Ok(Predict::None),
            _ => {
                let bits = text.strip_prefix("gshare:").and_then(|bits| bits.parse().ok());
                bits.filter(|bits| (1..=20).contains(bits)).map(Predict::Gshare).ok_or_else(|| {
                    BadSetup(format!(
                        "`{text}` is no predictor: perfect, gshare:BITS (1 to 20), tage, static, none"
                    ))
                })
            }
        }
    }
}

/// One of the machines that run side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lane {
    /// Instructions in flight at most; `None`: no limit.
    pub window: Option<u32>,
    /// Its predictor.
    pub predict: Predict,
}

/// A size of a window: `64`, `inf`.
///
/// # Errors
/// A sentence about what is allowed.
pub fn window(text: &str) -> Result<Option<u32>, BadSetup> {
    if text == "inf" {
        return Ok(None);
    }
    text.parse().ok().filter(|size| (1..=LARGEST_WINDOW).contains(size)).map(Some).ok_or_else(|| {
        BadSetup(format!(
            "`{text}` is no window: a number of instructions from 1 to {LARGEST_WINDOW}, or inf"
        ))
    })
}

/// What is wrong with a setup, in a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadSetup(String);

impl BadSetup {
    pub(crate) fn of(sentence: String) -> Self {
        Self(sentence)
    }
}

/// The whole setup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Setup {
    /// What is ignored.
    pub view: View,
    /// How long instructions take.
    pub latency: Latency,
    /// The machines, [`LANES`] at most.
    pub lanes: Vec<Lane>,
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ignored: String = self.view.ignored().iter().filter_map(|name| name.chars().next()).collect();
        write!(f, "{ignored}/{}", self.latency.name())?;
        for lane in &self.lanes {
            let window = lane.window.map_or("inf".to_owned(), |window| window.to_string());
            write!(f, "+{window}/{}", lane.predict)?;
        }
        Ok(())
    }
}

impl FromStr for Setup {
    type Err = BadSetup;

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Self, BadSetup> {
        let bad = || BadSetup(format!("`{text}` describes no machines"));
        let mut parts = text.split('+');
        let (ignored, latency) = parts.next().and_then(|first| first.split_once('/')).ok_or_else(bad)?;
        let latency = match latency {
            "unit" => Latency::Unit,
            "machine" => Latency::Machine,
            _ => return Err(bad()),
        };
        let has = |letter| ignored.contains(letter);
        let view = View { stack: has('s'), induction: has('i'), copies: has('c'), reductions: has('r') };
        let lane = |part: &str| {
            let (size, predict) = part.split_once('/').ok_or_else(bad)?;
            Ok(Lane { window: window(size)?, predict: predict.parse()? })
        };
        let lanes: Vec<Lane> = parts.map(lane).collect::<Result<_, _>>()?;
        if lanes.is_empty() || lanes.len() > LANES { Err(bad()) } else { Ok(Setup { view, latency, lanes }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setups_survive_their_text() {
        for text in [
            "/unit+64/perfect",
            "sic/machine+1/gshare:16+inf/tage+65536/static+inf/none",
            "s/unit+inf/perfect",
            "sicr/unit+inf/perfect",
        ] {
            assert_eq!(text.parse::<Setup>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "x",
            "/unit",
            "/other+64/perfect",
            "/unit+0/perfect",
            "/unit+65537/perfect",
            "/unit+64/gshare:0",
            "/unit+64",
        ] {
            assert!(text.parse::<Setup>().is_err(), "{text}");
        }
        let many = format!("/unit{}", "+inf/perfect".repeat(LANES + 1));
        assert!(many.parse::<Setup>().is_err());
    }

    #[test]
    fn views_have_names() {
        assert_eq!((View::MACHINE.name(), View::VALUES.name()), ("machine", "values"));
        let view = View { copies: false, ..View::VALUES };
        assert_eq!((view.name(), view.ignored()), ("custom", vec!["stack", "induction"]));
    }
}
