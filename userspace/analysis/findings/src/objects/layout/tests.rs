//! Lines counted byte by byte, packings against all orders, and a structure whose advice is known.

use locality_estimate::interval_estimate::Estimate;
use locality_model::{Field, FieldId};
use proptest::prelude::*;

use super::*;

fn member(path: &str, offset: u64, bytes: u64) -> Member {
    Member {
        path: path.to_owned(),
        type_name: None,
        offset,
        bytes,
        align: (1 << bytes.trailing_zeros()).min(8),
    }
}

/// Every byte of 64 elements marked by its line.
fn by_bytes(bytes: u64, hot: &[(u64, u64)]) -> (f64, f64) {
    let mut all = std::collections::BTreeSet::new();
    let mut visits = 0;
    for element in 0..64 {
        let own: std::collections::BTreeSet<u64> = hot
            .iter()
            .flat_map(|(offset, len)| (0..*len).map(move |byte| (element * bytes + offset + byte) / 64))
            .collect();
        visits += own.len();
        all.extend(own);
    }
    (visits as f64 / 64.0, all.len() as f64 / 64.0)
}

/// What C makes of members in an order.
fn size_in_order(members: &[&Member]) -> u64 {
    let mut end = 0_u64;
    for member in members {
        end = end.next_multiple_of(alignment(member)) + member.bytes;
    }
    end.next_multiple_of(members.iter().map(|member| alignment(member)).max().unwrap_or(1))
}

fn orders<'a>(members: &[&'a Member]) -> Vec<Vec<&'a Member>> {
    if members.is_empty() {
        return vec![Vec::new()];
    }
    let with = |index: usize| {
        let mut rest = members.to_vec();
        let first = rest.remove(index);
        orders(&rest).into_iter().map(move |tail| [vec![first], tail].concat())
    };
    (0..members.len()).flat_map(with).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn lines_are_those_of_the_bytes(
        bytes in 1..300_u64,
        parts in proptest::collection::vec((0.0..1.0_f64, 1..40_u64), 1..5)
    ) {
        let hot: Vec<(u64, u64)> = parts
            .iter()
            .map(|(at, len)| {
                let len = (*len).min(bytes);
                (((bytes - len) as f64 * at) as u64, len)
            })
            .collect();
        let (found, truth) = (lines(bytes, &hot), by_bytes(bytes, &hot));
        prop_assert!((found.0 - truth.0).abs() < 1e-9 && (found.1 - truth.1).abs() < 1e-9, "{found:?} {truth:?}");
    }

    #[test]
    fn a_packing_is_as_small_as_any_order(sizes in proptest::collection::vec(0..5_u32, 1..6)) {
        let mut end = 0_u64;
        let members: Vec<Member> = sizes
            .iter()
            .map(|log| {
                let bytes = 1_u64 << log;
                let offset = end.next_multiple_of(bytes);
                end = offset + bytes;
                member("m", offset, bytes)
            })
            .collect();
        let members: Vec<&Member> = members.iter().collect();
        let (bytes, placed) = pack(&[&members]);
        prop_assert_eq!(Some(bytes), orders(&members).iter().map(|order| size_in_order(order)).min());
        for (index, (from, len)) in placed.iter().enumerate() {
            for (other, rest) in placed.iter().skip(index + 1) {
                prop_assert!(from + len <= *other || other + rest <= *from);
            }
        }
    }
}

/// 96 bytes of which 8 are hot at the start and 4 at the end, with 4 + 7 bytes of padding.
fn particle() -> Profile {
    let members = vec![
        member("x", 0, 8),
        member("flag", 8, 1),
        Member { align: 1, ..member("name[]", 16, 64) },
        member("id", 80, 8),
        member("hits", 88, 4),
    ];
    let record = Record { name: "particle".to_owned(), bytes: 96, members };
    let field = |at: u64| Field { record: Some(RecordId(0)), record_offset: at, ..Field::default() };
    Profile { records: vec![record], fields: [0, 8, 16, 80, 88].map(field).to_vec(), ..Profile::default() }
}

fn used(shares: &[(u32, f64, u64)]) -> Vec<FieldUse> {
    let field = |&(id, share, n): &(u32, f64, u64)| FieldUse {
        field: FieldId(id),
        record: Some(RecordId(0)),
        access_share: Estimate { value: share, low: 0.0, high: 1.0, n },
        miss_share: Vec::new(),
        hot: false,
    };
    shares.iter().map(field).collect()
}

#[test]
fn a_split_and_a_reorder_of_a_known_structure() {
    let profile = particle();
    let found = of(&profile, RecordId(0), &used(&[(0, 0.6, 600), (4, 0.39, 390), (3, 0.01, 10)])).unwrap();
    assert_eq!((found.hot, found.cold), (vec![0, 4], vec![1, 2, 3]));
    assert_eq!((found.hot_bytes, found.hot_span, found.padding), (12, 92, 11));
    // 8 + 4 bytes, aligned to 8: four in each line.
    assert_eq!(found.split.bytes, (96, 16));
    assert_eq!(found.split.visit_lines, (2.0, 1.0));
    assert_eq!(found.split.sweep_lines, (1.5, 0.25));
    // x, hits, then the rest by alignment: 8 + 4 (+ 4) + 8 + 1 + 64 (+ 7).
    assert_eq!(found.reorder.bytes, (96, 96));
    assert_eq!(found.reorder.visit_lines.1, 1.0);
}

#[test]
fn little_is_said_of_little() {
    let profile = particle();
    assert_eq!(of(&profile, RecordId(0), &used(&[(0, 1.0, 63)])), None);
    assert_eq!(of(&profile, RecordId(1), &used(&[(0, 1.0, 630)])), None);
    assert_eq!(of(&profile, RecordId(0), &[]), None);
}

#[test]
fn the_hot_fields_are_the_fewest_that_take_the_share() {
    let mut fields = used(&[(0, 0.5, 1), (1, 0.45, 1), (2, 0.03, 1), (3, 0.02, 1)]);
    mark_hot(&mut fields);
    assert_eq!(fields.iter().map(|field| field.hot).collect::<Vec<_>>(), [true, true, false, false]);
}

/// Both members of a union lie at one place.
#[test]
fn unions_are_placed_once() {
    let (a, b) = (member("a", 0, 8), member("b", 0, 4));
    assert_eq!(pack(&[&[&a, &b]]), (8, vec![(0, 8)]));
    let record = Record { name: "u".to_owned(), bytes: 16, members: vec![a, b] };
    let pieces = pieces(&record, |member| if member.path == "b" { 0.25 } else { 0.0 });
    let told: Vec<_> = pieces.iter().map(|it| (it.member, it.offset, it.bytes, it.access_share)).collect();
    assert_eq!(told, [(Some(0), 0, 8, 0.0), (Some(1), 0, 4, 0.25), (None, 8, 8, 0.0)]);
}
