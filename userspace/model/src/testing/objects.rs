//! Two objects whose accesses and misses are known in closed form.

use crate::{
    Access, AccessKind, Accessed, Located, Object, ObjectId, ObjectKind, Outcome, Rate, Seen, Touch, Use,
    UseId, Watch, Window,
};

use super::{Maker, PERIOD_NS};

/// Accesses in a window.
const WINDOW: u64 = 10_000;
/// Lines of the large object: more than the second level has (16,384).
const FAR: u64 = 100_000;

/// One line of code touches a small object of 100 lines and a large one of [`FAR`] in turn: of `of`
/// uses in a window `far` are the large one's.
pub fn two_objects(samples: u32, far: u64, of: u64) -> Maker {
    let mut make = Maker::new();
    make.profile.run.distance_resolution_ns = 0;
    let object = |name: &str| Object {
        kind: ObjectKind::Static,
        name: name.to_owned(),
        type_name: Some("double [8]".to_owned()),
        declared: Some(("src/demo.c".to_owned(), Some(7))),
        bytes: Some(6400),
        ..Object::default()
    };
    make.profile.objects = vec![object("small"), object("large"), object("small")];
    for n in 0..samples {
        let sample = make.sample("work src/demo.c:31 < main src/demo.c:60", AccessKind::Load);
        let stack = make.stack("work src/demo.c:31 < main src/demo.c:60");
        make.profile.windows.push(Window {
            sample,
            instructions: 2 * WINDOW,
            accesses: WINDOW,
            end: "whole".to_owned(),
            touches: vec![(8, WINDOW), (64, WINDOW)],
            rate: Some(Rate { value: 1.0, low: 0.98, high: 1.02, source: "test".to_owned() }),
        });
        for number in 0..of {
            let is_far = number < far;
            let id = UseId(make.profile.uses.len() as u32);
            let address = 0x10_0000 + 64 * u64::from(id.0);
            let access = Access { ip: 1, address, size: 8, kind: AccessKind::Load };
            let seen = if is_far {
                Seen::Open { accesses: WINDOW - 100 }
            } else {
                Seen::Reused { distance: 200, access, stack }
            };
            let seen = vec![(8, seen), (64, seen)];
            make.profile.uses.push(Use { sample, skip: 0, access, address, stack, seen });
            // The small object has two rows in the table that mean the same.
            let object = ObjectId(if is_far { 1 } else { 2 * (number as u32 % 2) });
            let located = |of| Located { of, object, offset: Some(0), field: None };
            make.profile.located.push(located(Accessed::Use(id)));
            if number == 0 {
                make.profile.located.push(located(Accessed::Sample(sample)));
                let time_ns = u64::from(n) * PERIOD_NS;
                let touch = Touch {
                    time_ns: time_ns + 2 * FAR,
                    ..make.touch("work src/demo.c:31 < main src/demo.c:60", AccessKind::Load)
                };
                make.profile.watches.push(Watch {
                    sample,
                    of_use: Some(id),
                    address,
                    bytes: 8,
                    armed_ns: time_ns,
                    ended_ns: touch.time_ns,
                    use_touch: None,
                    use_confirmed: true,
                    outcome: Outcome::Reused { touch, distance_ns: 2 * FAR, accesses: None },
                    p_arm: 1.0 / far as f64,
                    p_survive: 1.0,
                    threads_armed: 1,
                    threads_alive: 1,
                });
            }
        }
    }
    make
}
