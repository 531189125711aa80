//! The product limit against the naive product, and redistribution against the product.

use proptest::prelude::*;

use super::*;

/// S(t) by definition: for each distance with reuses, everybody looked at again.
fn naive(spells: &[Spell], t: usize) -> f64 {
    let mut survival = 1.0;
    for at in 0..=t {
        let present = |s: &&Spell| s.entry.is_none_or(|entry| entry < at) && s.exit >= at;
        let risk: f64 = spells.iter().filter(present).map(|s| s.weight).sum();
        let events: f64 =
            spells.iter().filter(present).filter(|s| s.reused && s.exit == at).map(|s| s.weight).sum();
        if events > 0.0 {
            survival *= 1.0 - events / risk;
        }
    }
    survival
}

fn spells() -> impl Strategy<Value = Vec<Spell>> {
    let spell = (1..100_u32, proptest::option::of(0..20_usize), 0..40_usize, any::<bool>());
    let spell = spell.prop_map(|(weight, entry, exit, reused)| Spell {
        group: 0,
        weight: f64::from(weight),
        entry,
        exit: entry.map_or(exit, |entry| entry + 1 + exit),
        reused,
    });
    proptest::collection::vec(spell, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_curve_is_the_product(spells in spells()) {
        let curves = Curves::fit(spells.iter(), 1);
        for t in 0..70 {
            let mut to = Vec::new();
            let left = curves.redistribute(0, 1.0, &[], t, &mut to);
            prop_assert!((left - naive(&spells, t)).abs() < 1e-9, "{} {}", left, naive(&spells, t));
            prop_assert!((to.iter().sum::<f64>() + left - 1.0).abs() < 1e-9);
        }
    }

    /// Efron: what was seen, and the censored moved along the curve, is all weight times the curve.
    #[test]
    fn redistribution_gives_the_curve(spells in spells()) {
        let spells: Vec<Spell> = spells.into_iter().map(|s| Spell { entry: None, ..s }).collect();
        let total: f64 = spells.iter().map(|s| s.weight).sum();
        let curves = Curves::fit(spells.iter(), 1);
        let (mut from, mut to) = (vec![0.0; 80], vec![0.0; 80]);
        for spell in &spells {
            if spell.reused { to[spell.exit] += spell.weight } else { from[spell.exit] += spell.weight }
        }
        curves.redistribute(0, 0.0, &from, usize::MAX, &mut to);
        for t in 0..70 {
            let reused: f64 = to[..=t].iter().sum();
            prop_assert!((reused / total - (1.0 - naive(&spells, t))).abs() < 1e-9);
        }
    }
}

#[test]
fn a_group_without_anybody_at_risk_follows_the_pooled_curve() {
    let spell = |group, exit, reused| Spell { group, weight: 1.0, entry: None, exit, reused };
    let spells = [spell(1, 5, false), spell(1, 5, true), spell(2, 9, true), spell(2, 9, false)];
    let curves = Curves::fit(spells.iter(), 3);
    let mut to = Vec::new();
    let left = curves.redistribute(1, 1.0, &[], usize::MAX, &mut to);
    // Half is reused at 5; at 9 the pooled hazard is a half too.
    assert!((to[5] - 0.5).abs() < 1e-12 && (to[9] - 0.25).abs() < 1e-12 && (left - 0.25).abs() < 1e-12);
}
