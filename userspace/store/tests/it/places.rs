//! Where a profile may be created, what happens to what lies there, and a disk that fills up.

use std::fs;
use std::os::unix::fs::symlink;

use crate::common::{put_all, random_profile, write_file};
use locality_model::{Profile, Run};
use locality_profile::{Error, Writer, read};

#[test]
fn an_earlier_profile_becomes_old() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    let old = directory.path().join("x.locality.old");
    for round in 0..3_u64 {
        write_file(&path, &random_profile(round, 4));
        assert_eq!(read(&path).unwrap(), random_profile(round, 4));
        match round.checked_sub(1) {
            Some(earlier) => assert_eq!(read(&old).unwrap(), random_profile(earlier, 4)),
            None => assert!(!old.exists()),
        }
    }
    // The journal of a killed tracer moves with its file.
    let journal = directory.path().join("x.locality-journal");
    fs::write(&journal, "j").unwrap();
    write_file(&path, &random_profile(9, 4));
    assert!(!journal.exists());
    assert_eq!(fs::read(directory.path().join("x.locality.old-journal")).unwrap(), b"j");
}

#[test]
fn foreign_files_are_never_touched() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    let clobbers = |word: &str| match Writer::create(&path, None) {
        Err(Error::WouldClobber { what, .. }) => assert!(what.contains(word), "{what}"),
        other => panic!("{other:?}"),
    };
    fs::write(&path, "precious").unwrap();
    clobbers("a text file");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    fs::remove_file(&path).unwrap();

    let target = directory.path().join("target");
    symlink(&target, &path).unwrap();
    clobbers("a symbolic link");
    assert!(!target.exists());
    fs::remove_file(&path).unwrap();

    fs::create_dir(&path).unwrap();
    clobbers("a directory");
    fs::remove_dir(&path).unwrap();

    // A foreign FILE.old stops the rotation before anything moves.
    write_file(&path, &random_profile(1, 2));
    fs::write(directory.path().join("x.locality.old"), "precious").unwrap();
    match Writer::create(&path, None) {
        Err(Error::WouldClobber { path, .. }) => assert!(path.ends_with("x.locality.old")),
        other => panic!("{other:?}"),
    }
    assert_eq!(read(&path).unwrap(), random_profile(1, 2));

    // An empty file (mktemp) holds nothing that could be lost.
    let empty = directory.path().join("empty");
    fs::write(&empty, "").unwrap();
    write_file(&empty, &random_profile(2, 2));
    assert_eq!(read(&empty).unwrap(), random_profile(2, 2));
    // Nor does it take the place of what was set aside.
    fs::rename(&empty, directory.path().join("empty.old")).unwrap();
    fs::write(&empty, "").unwrap();
    write_file(&empty, &random_profile(3, 2));
    assert_eq!(read(&directory.path().join("empty.old")).unwrap(), random_profile(2, 2));
}

#[test]
fn impossible_places_are_named() {
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(
        Writer::create(&directory.path().join("no/such/x"), None),
        Err(Error::Io { action: "create", .. })
    ));
    assert!(matches!(Writer::create("/".as_ref(), None), Err(Error::Io { action: "create", .. })));
    let Some(_mount) = crate::mount::ReadOnly::bind(directory.path()) else { return };
    match Writer::create(&directory.path().join("x"), None) {
        Err(error @ Error::Io { .. }) => assert!(error.to_string().starts_with("cannot create ")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_renamed_file_stops_the_writer_cleanly() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    let mut first = Writer::create(&path, None).unwrap();
    first.put_run(&Run::default()).unwrap();
    first.commit().unwrap();
    // A second tracer with the same -o FILE is refused.
    assert!(matches!(Writer::create(&path, None), Err(Error::InUse { .. })));
    first.commit().unwrap();
    // Somebody moves the file away.
    std::fs::rename(&path, directory.path().join("moved")).unwrap();
    let mut second = Writer::create(&path, None).unwrap();
    first.put_run(&Run { command: "late".to_owned(), ..Run::default() }).unwrap();
    assert!(matches!(first.commit(), Err(Error::Moved { .. })));
    second.put_run(&Run { command: "second".to_owned(), ..Run::default() }).unwrap();
    second.finish().unwrap();
    assert_eq!(read(&path).unwrap().run.command, "second");
    assert_eq!(read(&directory.path().join("moved")).unwrap().run.command, "");
}

#[test]
fn a_full_disk_is_said_and_what_was_committed_stays() {
    let directory = tempfile::tempdir().unwrap();
    let Some(_mount) = crate::mount::Small::mount(directory.path(), 512) else { return };
    let path = directory.path().join("x.locality");
    let mut writer = Writer::create(&path, None).unwrap();
    let profile = random_profile(1, 40_000);
    writer.put_run(&profile.run).unwrap();
    writer.commit().unwrap();
    match put_all(&mut writer, &profile).and_then(|()| writer.commit()) {
        Err(Error::DiskFull { .. }) => {}
        other => panic!("{other:?}"),
    }
    // It still says so, keeps no more than its bound, and the file reads.
    assert!(matches!(writer.commit(), Err(Error::DiskFull { .. })));
    writer.put_ledger(&profile.ledger).unwrap();
    let back = read(&path).unwrap();
    let recovered = writer.recover().unwrap();
    assert!(recovered.samples.len() > back.samples.len(), "the rows that waited are lost");
    assert_eq!(recovered.ledger, profile.ledger);
    assert!(!recovered.partial, "{:?}", recovered.notices);
    assert!(back.partial);
    // Its length is that of what was kept, if that is longer than what was told last.
    let Run { wall_ns, cpu_ns, .. } = back.run;
    assert_eq!(back.run, Run { wall_ns, cpu_ns, ..profile.run.clone() });
    assert!(wall_ns >= profile.run.wall_ns && cpu_ns >= profile.run.cpu_ns);
    assert!(back.samples.iter().all(|sample| sample.time_ns <= wall_ns));
    assert!(back.samples.len() < profile.samples.len());

    fs::remove_file(&path).unwrap();
    // A child that another test forks at this moment holds the removed file for as long as it takes
    // to become a program.
    let filler = || fs::write(directory.path().join("filler"), vec![0_u8; 512 * 1024 - 8192]).is_ok();
    assert!((0..200).any(|_| filler() || {
        std::thread::sleep(std::time::Duration::from_millis(10));
        false
    }));
    assert!(matches!(Writer::create(&path, None), Err(Error::DiskFull { .. })));
    assert!(!path.exists(), "nothing half-made stays");
}

/// Traces of which nothing came, however many, leave the last profile that has samples.
#[test]
fn an_empty_profile_does_not_displace_one_with_samples() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    let (whole, empty) = (random_profile(9, 30), Profile::default());
    write_file(&path, &whole);
    let old = locality_profile::earlier(&path);
    for _ in 0..3 {
        write_file(&path, &empty);
        assert_eq!(read(&old).unwrap(), whole);
        assert!(read(&path).unwrap().samples.is_empty());
    }
    // A new profile with samples follows: the empty one goes, the good one stays until the next.
    let newer = random_profile(10, 30);
    write_file(&path, &newer);
    assert_eq!(read(&old).unwrap(), whole);
    write_file(&path, &whole);
    assert_eq!(read(&old).unwrap(), newer);
}
