//! Input of advice from findings: the caches missed by first touches, the
//! object touched by an instruction, and reuses beyond the reach of windows.
//!
//! Not here: the advice (`locality_advice`).

use std::collections::{BTreeMap, HashMap};

use locality_advice::{Advised, FarReuse, Known};
use locality_estimate::access_rates::Rates;
use locality_estimate::calling_context::Contexts;
use locality_model::{Accessed, FieldId, FrameId, ObjectId, ObjectKind, Outcome, Profile, StackId};

use crate::cache_use::CacheUse;
use crate::objects::Rows;

/// Loops and advice; `None` if the profile has no loops.
pub(crate) fn of(
    profile: &Profile,
    contexts: &Contexts,
    rates: &Rates,
    cache_use: Option<&CacheUse>,
) -> Option<Advised> {
    if profile.loops.is_empty() {
        return None;
    }
    let (objects, neighbours) = (objects(profile, contexts), neighbours(profile));
    let mut known = Known { objects, neighbours, ..Known::default() };
    let levels = cache_use.map_or(&[][..], |cache_use| &cache_use.levels);
    for (at, level) in levels.iter().enumerate().take(3) {
        let (mut lines, mut firsts) = (0.0, 0.0);
        for (key, (loaded, touched, n)) in &level.by_instruction {
            let (misses, count) = known.misses.entry(*key).or_default();
            if let Some(share) = misses.get_mut(at).filter(|_| *touched > 0.0) {
                *share = (loaded / touched).clamp(0.0, 1.0);
            }
            *count = *n;
            (lines, firsts) = (lines + loaded, firsts + touched);
        }
        if let Some(share) = known.all.get_mut(at).filter(|_| firsts > 0.0) {
            *share = (lines / firsts).clamp(0.0, 1.0);
        }
    }
    if levels.is_empty() {
        // The content of caches is unknown: every line may come from memory.
        known.all = [1.0; 3];
    }
    Advised::of(profile, contexts, rates, &known, &far(profile))
}

/// By instruction, the object and the field touched most.
fn objects(profile: &Profile, contexts: &Contexts) -> HashMap<u64, (ObjectId, Option<FieldId>)> {
    let rows = Rows::of(profile, contexts);
    let mut counts: BTreeMap<(u64, ObjectId, Option<FieldId>), u64> = BTreeMap::new();
    for located in &profile.located {
        let ip = match located.of {
            Accessed::Use(id) => profile.uses.get(id.0 as usize).map(|of_use| of_use.access.ip),
            Accessed::Load(id) => profile.loads.get(id.0 as usize).map(|load| load.access.ip),
            Accessed::Sample(id) => {
                profile.samples.get(id.0 as usize).and_then(|it| Some(it.access.as_ref().ok()?.ip))
            }
            _ => None,
        };
        let object = rows.row(located.object).and_then(|row| rows.object(row)).unwrap_or(located.object);
        let is_known =
            profile.objects.get(object.0 as usize).is_some_and(|it| it.kind != ObjectKind::Unknown);
        if let Some(ip) = ip.filter(|_| is_known) {
            *counts.entry((ip, object, located.field)).or_default() += 1;
        }
    }
    let mut most: HashMap<u64, ((ObjectId, Option<FieldId>), u64)> = HashMap::new();
    for ((ip, object, field), n) in counts {
        let entry = most.entry(ip).or_insert(((object, field), 0));
        if n > entry.1 {
            *entry = ((object, field), n);
        }
    }
    most.into_iter().map(|(ip, (object, _))| (ip, object)).collect()
}

/// By instruction: neighbours of used words, touched next by the instruction.
fn neighbours(profile: &Profile) -> HashMap<u64, (u64, u64, u64)> {
    let mut found: HashMap<u64, (u64, u64, u64)> = HashMap::new();
    for watch in &profile.watches {
        let Outcome::Reused { touch, .. } = &watch.outcome else { continue };
        let Some(used) = watch.of_use.and_then(|id| profile.uses.get(id.0 as usize)) else { continue };
        let Some(ip) = instruction(profile, touch.stack) else { continue };
        let (up, down, others) = found.entry(used.access.ip).or_default();
        match watch.address.wrapping_sub(used.address & !7) as i64 {
            0 => {}
            _ if ip != used.access.ip => *others += 1,
            8 => *up += 1,
            -8 => *down += 1,
            _ => {}
        }
    }
    found
}

/// Address of the innermost instruction of a stack.
fn instruction(profile: &Profile, stack: StackId) -> Option<u64> {
    let frame: Option<&FrameId> = profile.stacks.get(stack.0 as usize)?.frames.first();
    Some(profile.frames.get(frame?.0 as usize)?.address)
}

/// Reuses seen by watches, by the instructions at both ends.
fn far(profile: &Profile) -> Vec<FarReuse> {
    let reuse = |watch: &locality_model::Watch| {
        let Outcome::Reused { touch, .. } = &watch.outcome else { return None };
        let used = profile.uses.get(watch.of_use?.0 as usize)?;
        Some(FarReuse { from: used.access.ip, to: instruction(profile, touch.stack)? })
    };
    profile.watches.iter().filter_map(reuse).collect()
}
