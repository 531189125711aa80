//! Which branches the machines foresee.

use std::collections::HashMap;

use locality_stream::{Branch, Predictor};

use crate::setup::Predict;

/// The state of one predictor. Not in the arena: after a kill it begins anew.
pub(crate) enum State {
    Static,
    None,
    Gshare { counters: Vec<u8>, history: u32, targets: HashMap<u64, u64> },
    Tage(Box<Predictor>),
}

impl State {
    /// `None` for the perfect predictor.
    pub fn new(predict: Predict) -> Option<State> {
        match predict {
            Predict::Perfect => None,
            Predict::Static => Some(State::Static),
            Predict::None => Some(State::None),
            // Weakly not taken.
            Predict::Gshare(bits) => {
                Some(State::Gshare { counters: vec![1; 1 << bits], history: 0, targets: HashMap::new() })
            }
            Predict::Tage => Some(State::Tage(Box::default())),
        }
    }

    /// Whether a branch at `address` with `static_target`, if any, was foreseen; learns.
    pub fn foresees(&mut self, address: u64, static_target: u64, branch: Branch) -> bool {
        let taken = branch.target != branch.next;
        match self {
            State::None => false,
            State::Static => branch.is_conditional && taken == (static_target < branch.next),
            State::Gshare { counters, history, targets } => {
                if !branch.is_conditional {
                    return targets.insert(address, branch.target) == Some(branch.target);
                }
                let mask = counters.len() as u64 - 1;
                let at = ((address ^ u64::from(*history)) & mask) as usize;
                let Some(counter) = counters.get_mut(at) else { return false };
                let foreseen = (*counter >= 2) == taken;
                *counter = if taken { (*counter + 1).min(3) } else { counter.saturating_sub(1) };
                *history = *history << 1 | u32::from(taken);
                foreseen
            }
            State::Tage(predictor) => predictor.outcome(branch).0,
        }
    }
}
