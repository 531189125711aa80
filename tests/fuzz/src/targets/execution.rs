//! The execution model: texts of skeletons edited by users, and functions of programs by strangers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context as _, Result};
use fastrand::Rng;
use locality_execution::{bounds, code::Function, graph::Graph, parse, tree, values};

use super::Target;
use crate::random;

/// A text with every statement.
const TEXT: &str = r#"skeleton 1
file "a" "00ff"
fn "main" @ "a":10 calls 1 {
  input `n` = { 100: 0.5, 7: 0.5 } "told"
  input `[arg0 + 32]:4` = -3 "told"
  var it20 = `0` step `1` in L20
  b10: comp int 2 fp64 x4 3; lib "memcpy" x 1; sys -> b20:1
  loop L20 bound `ceil(n - 2*it20, 4) + 1` test b40 seen 5 +- 2 exits 1 vector 4 unroll 2 {
    b20: ld 8 x 2; st 4 x 1; call "a":80 x 1 arg0 = `times(it20, n)` -> b30:1
    loop L30 bound `min(it20, n) + and(n, -4)` test b30 exits 1 parallel 2 {
      b30: -> b30:0.5 b40:0.5
    }
    b40: comp branch 1 -> b20:0.9 b50:0.1
  }
  b50:
}
fn "f" @ "a":80 calls 0 {
  b80: call "a":80 x 0.3 -> b90:1
  b90:
}
"#;

/// Texts of skeletons: an accepted text is printed and read
/// back to an equal skeleton, and evaluated or refused.
pub struct Skeletons;

impl Target for Skeletons {
    fn make(&mut self, random: &mut Rng) -> Vec<u8> {
        let mut text = TEXT.as_bytes().to_vec();
        random::mutate(&mut text, random);
        text
    }

    fn run(&mut self, input: &[u8]) {
        let text = String::from_utf8_lossy(input);
        let _ = parse::expression(&text);
        let Ok(skeleton) = parse::parse(&text) else { return };
        let printed = skeleton.print();
        assert_eq!(parse::parse(&printed).as_ref(), Ok(&skeleton), "{printed}");
        if let Ok(expected) = tree::evaluate(&skeleton) {
            assert!(expected.blocks.values().all(|count| *count >= 0.0), "{printed}");
        }
    }
}

/// Functions: graphs, loops, values and bounds of real and of torn code.
pub struct Functions(Vec<u8>);

impl Functions {
    /// Code of this program.
    pub fn open() -> Result<Self> {
        Ok(Self(fs::read("/proc/self/exe").context("cannot read this program")?))
    }
}

impl Target for Functions {
    fn make(&mut self, random: &mut Rng) -> Vec<u8> {
        let len = 1 + random.usize(..1500);
        let at = self.0.len() / 8 + random.usize(..self.0.len() / 2);
        let mut piece = self.0.get(at..at + len).unwrap_or_default().to_vec();
        if random.bool() {
            random::mutate(&mut piece, random);
        }
        piece
    }

    fn run(&mut self, input: &[u8]) {
        let start = 0x1000;
        let arrivals: BTreeMap<u64, BTreeSet<u64>> = (0..input.len() as u64)
            .step_by(7)
            .map(|at| (start + at, BTreeSet::from([start + at * 3 % (input.len() as u64 + 5)])))
            .collect();
        let Some(function) = Function::read(start, start, input, &arrivals) else { return };
        let graph = Graph::of(&function);
        for found in &graph.loops {
            assert!(found.has(found.header) && found.latches.iter().all(|latch| found.has(*latch)));
        }
        let values = values::follow(&function, &graph);
        for bound in bounds::find(&function, &graph, &values) {
            let text = bound.trips.to_string();
            assert_eq!(parse::expression(&text).ok().as_ref(), Some(&bound.trips), "{text}");
        }
    }
}
