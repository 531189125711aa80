//! Whose callers a worker's path goes on with.

use locality_model::testing::Maker;

use crate::calling_context::{Contexts, function_name};

/// Paths of stacks in words, where `REGION` stands for the region of `relax`, with the reasons of cuts.
fn paths(stacks: &[&str]) -> Vec<(String, Option<String>)> {
    let mut make = Maker::new();
    let ids: Vec<_> = stacks.iter().map(|stack| make.stack(stack)).collect();
    for frame in &mut make.profile.frames {
        if frame.function.as_deref() == Some("REGION") {
            frame.function = Some("relax (parallel loop, a.c:5)".into());
        }
    }
    let contexts = Contexts::new(&make.profile);
    let path = |id| {
        let context = contexts.of(id).unwrap();
        let frames = contexts.frames(context).iter().map(|frame| {
            let frame = &make.profile.frames[frame.0 as usize];
            let line = frame.line.map(|line| format!(":{line}")).unwrap_or_default();
            format!("{}{line}", function_name(&make.profile, frame).replace(" (parallel loop, a.c:5)", "*"))
        });
        (frames.collect::<Vec<_>>().join(" < "), contexts.cut(context).map(str::to_owned))
    };
    ids.into_iter().map(path).collect()
}

const MASTER: &str = "REGION a.c:6 < GOMP_parallel@/lib/libgomp.so < relax a.c:5 < main a.c:20";
const WORKER: &str = "REGION a.c:7 < ?@/lib/libgomp.so < start_thread@/lib/libc.so < clone3@/lib/libc.so";

#[test]
fn a_worker_has_the_masters_callers() {
    let deep = format!("inner a.c:2 < {WORKER}");
    let found = paths(&[WORKER, MASTER, &deep]);
    assert_eq!(found[0], ("relax*:7 < GOMP_parallel < relax:5 < main:20".into(), None));
    assert_eq!(found[1], ("relax*:6 < GOMP_parallel < relax:5 < main:20".into(), None));
    assert_eq!(found[2].0, "inner:2 < relax*:7 < GOMP_parallel < relax:5 < main:20");
}

#[test]
fn of_several_places_only_what_they_share_is_told() {
    let other = MASTER.replace("main a.c:20", "main a.c:30");
    let found = paths(&[MASTER, WORKER, &other]);
    assert_eq!(found[1], ("relax*:7 < GOMP_parallel < relax:5".into(), Some(super::SEVERAL.into())));
    assert_eq!((found[0].1.as_deref(), found[2].1.as_deref()), (None, None));
}

#[test]
fn without_a_master_or_a_region_the_path_stays() {
    let plain = WORKER.replace("REGION", "work");
    // A region of another function.
    let found = paths(&[WORKER, &plain, &MASTER.replace("REGION", "other")]);
    assert_eq!(found[0].0, "relax*:7 < libgomp.so+0x1010 < start_thread < clone3");
    assert_eq!(found[1].0, "work:7 < libgomp.so+0x1010 < start_thread < clone3");
    // A master that is a thread of the program's own keeps its callers, and lends them.
    let thread = "REGION a.c:6 < GOMP_parallel@/lib/libgomp.so < body a.c:9 < start_thread@/lib/libc.so < \
                  clone3@/lib/libc.so";
    let found = paths(&[WORKER, thread]);
    assert_eq!(found[0].0, "relax*:7 < GOMP_parallel < body:9 < start_thread < clone3");
    assert_eq!(found[1].0, "relax*:6 < GOMP_parallel < body:9 < start_thread < clone3");
}

#[test]
fn use_and_reuse_of_two_threads_have_a_common_ancestor() {
    let mut make = Maker::new();
    let (master, worker) = (make.stack(MASTER), make.stack(WORKER));
    for frame in &mut make.profile.frames {
        if frame.function.as_deref() == Some("REGION") {
            frame.function = Some("relax (parallel loop, a.c:5)".into());
        }
    }
    let contexts = Contexts::new(&make.profile);
    let (a, b) = (contexts.of(master).unwrap(), contexts.of(worker).unwrap());
    let (depth, ancestor) = contexts.common_ancestor(&make.profile, a, b);
    let ancestor = &make.profile.frames[ancestor.unwrap().0 as usize];
    assert_eq!((depth, ancestor.function.as_deref()), (3, Some("relax (parallel loop, a.c:5)")));
}
