//! What goes into a profile comes out of it; and how fast.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Instant;

use crate::common::{put_all, random_profile, write_file};
use locality_findings::Findings;
use locality_model::*;
use locality_profile::{Error, Owner, Writer, read};
use locality_report::{Options, json, text};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_profile_reads_as_it_was_written(seed: u64, samples in 0..60_usize) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.locality");
        let profile = random_profile(seed, samples);
        write_file(&path, &profile);
        prop_assert_eq!(read(&path).unwrap(), profile);
        let names: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        prop_assert_eq!(names, ["x.locality"]);
    }
}

#[test]
fn an_unfinished_profile_is_partial_and_later_rows_replace_earlier_ones() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    let mut writer = Writer::create(&path, None).unwrap();
    writer.put_run(&Run { command: "first".to_owned(), ..Run::default() }).unwrap();
    writer.put_frame(FrameId(0), &Frame { address: 16, ..Frame::default() }).unwrap();
    writer.commit().unwrap();
    // Readable while the writer is alive.
    let profile = read(&path).unwrap();
    assert_eq!((profile.run.command.as_str(), profile.partial), ("first", true));
    assert!(profile.notices[0].contains("at most its last second"));

    let frame = Frame { address: 16, function: Some("main".to_owned()), ..Frame::default() };
    writer.put_frame(FrameId(0), &frame).unwrap();
    writer.put_run(&Run { command: "second".to_owned(), ..Run::default() }).unwrap();
    writer.put_notices(&["old".to_owned()]).unwrap();
    writer.put_notices(&["new".to_owned()]).unwrap();
    writer.finish().unwrap();
    let profile = read(&path).unwrap();
    assert_eq!((profile.run.command.as_str(), profile.partial), ("second", false));
    assert_eq!((profile.frames, profile.notices), (vec![frame], vec!["new".to_owned()]));
}

/// Another program that holds the database delays rows, it does not lose them.
#[test]
fn a_locked_file_is_written_later() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    let mut writer = Writer::create(&path, None).unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    writer.put_run(&Run { command: "patient".to_owned(), ..Run::default() }).unwrap();
    assert!(matches!(writer.commit(), Err(Error::Busy { .. })));
    std::thread::sleep(std::time::Duration::from_millis(1_050));
    writer.put_notices(&["waited".to_owned()]).unwrap();
    other.execute_batch("ROLLBACK").unwrap();
    writer.finish().unwrap();
    let profile = read(&path).unwrap();
    assert_eq!((profile.run.command.as_str(), profile.notices[0].as_str()), ("patient", "waited"));
}

#[test]
fn gaps_and_dangling_ids_are_mended_and_said() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    let source = random_profile(3, 8);
    let mut writer = Writer::create(&path, None).unwrap();
    let sample = Sample { thread: ThreadId(7), stack: StackId(2), ..source.samples[0].clone() };
    for id in [1, 4] {
        writer.put_sample(SampleId(id), &sample).unwrap();
    }
    let stack = Stack { frames: vec![FrameId(900)], cut: None };
    writer.put_stack(StackId(2), &stack).unwrap();
    for id in [4, 5] {
        let watch = Watch {
            sample: SampleId(id),
            use_touch: None,
            outcome: Outcome::Gone,
            ..source.watches[0].clone()
        };
        writer.append_watch(&watch).unwrap();
    }
    let object = Object { module: Some(ModuleId(3)), site: Some(StackId(70)), ..Object::default() };
    writer.put_object(ObjectId(0), &object).unwrap();
    for (of, object) in [
        (Accessed::Sample(SampleId(4)), 0),
        (Accessed::WatchReuse(WatchId(0)), 0),
        // Its sample is missing.
        (Accessed::WatchReuse(WatchId(1)), 0),
        (Accessed::Sample(SampleId(2)), 0),
        (Accessed::Sample(SampleId(1)), 1),
    ] {
        let field = Some(FieldId(0));
        writer.append_located(Located { of, object: ObjectId(object), offset: None, field }).unwrap();
    }
    writer.finish().unwrap();
    let profile = read(&path).unwrap();
    assert!(profile.partial);
    let located = |of| Located { of, object: ObjectId(0), offset: None, field: None };
    let whole = [Accessed::Sample(SampleId(1)), Accessed::WatchReuse(WatchId(0))].map(located);
    assert_eq!(profile.located, whole);
    assert_eq!((profile.objects[0].module, profile.objects[0].site), (None, Some(StackId(3))));
    assert_eq!(profile.samples.len(), 2);
    assert_eq!(profile.watches.len(), 1);
    assert_eq!(profile.watches[0].sample, SampleId(1));
    assert_eq!(profile.threads[profile.samples[0].thread.0 as usize].name, "unknown");
    assert_eq!(profile.stacks[2].frames, [FrameId(0)]);
    assert!(profile.frames[0].unknown.is_some());
    assert!(profile.notices[0].starts_with("1 watchpoints without their sample"), "{:?}", profile.notices);
}

#[test]
fn mode_is_private_and_the_owner_is_the_given_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    let own = directory.path().metadata().unwrap();
    // Root may give files away, others only to themselves.
    let owner = if own.uid() == 0 {
        Owner { uid: 12345, gid: 54321 }
    } else {
        Owner { uid: own.uid(), gid: own.gid() }
    };
    Writer::create(&path, Some(owner)).unwrap().finish().unwrap();
    let metadata = path.metadata().unwrap();
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
    assert_eq!((metadata.uid(), metadata.gid()), (owner.uid, owner.gid));
}

/// A trace of 6 s: 1,000 samples, 500 watches, 20,000 frames, stacks of 20. The bound is loose, because
/// tests run in debug builds on busy machines; `cargo xtask bench footprint` measures a minute.
#[test]
fn a_long_trace_reads_as_written_and_quickly() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    let mut profile = random_profile(1, 1_000);
    profile.frames = (0..20_000)
        .map(|n| Frame {
            address: 0x5555_0000_0000 + n,
            module: Some(ModuleId(0)),
            module_address: Some(n),
            function: Some(format!("namespace::type_{n}::method")),
            file: Some(format!("/home/user/project/src/part_{}.cpp", n % 100)),
            line: Some(n as u32 % 1000),
            ..Frame::default()
        })
        .collect();
    profile.stacks = (0..5_000)
        .map(|n| Stack {
            frames: (0..20).map(|depth| FrameId((n * 7 + depth * 13) % 20_000)).collect(),
            cut: None,
        })
        .collect();
    let started = Instant::now();
    let mut writer = Writer::create(&path, None).unwrap();
    put_all(&mut writer, &profile).unwrap();
    writer.finish().unwrap();
    let written = started.elapsed();
    let started = Instant::now();
    assert_eq!(read(&path).unwrap(), profile);
    let taken = started.elapsed();
    let started = Instant::now();
    let findings = Findings::of(&profile);
    let report =
        json::print(&profile, &findings).len() + text::print(&profile, &findings, Options::default()).len();
    let reported = started.elapsed();
    let bytes = path.metadata().unwrap().len();
    println!("written in {written:?}, read and compared in {taken:?}, {} KiB", bytes / 1024);
    println!("analysed and printed in {reported:?}, {} KiB", report / 1024);
    assert!(taken.as_secs() < 5, "{taken:?}");
}
