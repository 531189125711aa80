//! Files that are cut, scribbled on, foreign or from the future: a typed error or what can be
//! recovered, never a panic.

use std::fs;

use crate::common::{random_profile, write_file};
use locality_model::*;
use locality_profile::{Error, read};

#[test]
fn a_truncated_file_gives_what_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    let whole = random_profile(5, 3_000);
    write_file(&path, &whole);
    let bytes = fs::read(&path).unwrap();
    let mut recovered = 0;
    let lengths = (0..200).chain((200..bytes.len()).step_by(bytes.len() / 150)).chain([bytes.len() - 1]);
    for length in lengths {
        fs::write(&path, &bytes[..length]).unwrap();
        match read(&path) {
            Ok(profile) => {
                recovered += 1;
                assert!(profile.partial, "{length} of {}", bytes.len());
                assert!(profile.notices[0].contains("damaged"), "{:?}", profile.notices);
                assert!(profile.samples.len() <= whole.samples.len());
                // Rows in the damage are left out, the order stays.
                let mut theirs = whole.samples.iter();
                for mine in &profile.samples {
                    let same =
                        |other: &&Sample| (mine.time_ns, &mine.access) == (other.time_ns, &other.access);
                    assert!(theirs.any(|other| same(&other)), "{mine:?}");
                }
            }
            Err(Error::Damaged { .. } | Error::NotAProfile { .. }) => {}
            Err(error) => panic!("{length}: {error:?}"),
        }
    }
    assert!(recovered > 50, "only {recovered} lengths gave anything");
}

#[test]
fn a_scribbled_file_never_panics() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    write_file(&path, &random_profile(6, 300));
    let bytes = fs::read(&path).unwrap();
    let rng = &mut fastrand::Rng::with_seed(1);
    for _ in 0..150 {
        let mut copy = bytes.clone();
        for _ in 0..rng.usize(1..40) {
            let at = rng.usize(..copy.len());
            copy[at] = rng.u8(..);
        }
        fs::write(&path, &copy).unwrap();
        if let Ok(profile) = read(&path) {
            // Whatever is left refers to what is left.
            for sample in &profile.samples {
                assert!((sample.thread.0 as usize) < profile.threads.len());
                assert!((sample.stack.0 as usize) < profile.stacks.len());
            }
            for watch in &profile.watches {
                assert!((watch.sample.0 as usize) < profile.samples.len());
            }
            for frame in profile.stacks.iter().flat_map(|stack| &stack.frames) {
                assert!((frame.0 as usize) < profile.frames.len());
            }
        }
    }
}

#[test]
fn foreign_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    fs::write(&text, "hello, world\n").unwrap();
    let database = directory.path().join("database");
    rusqlite::Connection::open(&database).unwrap().execute_batch("CREATE TABLE run (id)").unwrap();
    let elf = std::env::current_exe().unwrap();
    for (path, word) in [
        (text.as_path(), "a text file"),
        (&elf, "an ELF program"),
        (&database, "the SQLite database of another program"),
        (directory.path(), "a directory"),
        ("/dev/zero".as_ref(), "device"),
    ] {
        match read(path) {
            Err(Error::NotAProfile { what, .. }) => assert!(what.contains(word), "{what}"),
            other => panic!("{path:?}: {other:?}"),
        }
    }
    assert!(matches!(read(&directory.path().join("none")), Err(Error::NotFound { .. })));
}

#[test]
fn a_newer_format_is_refused_by_number() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    write_file(&path, &random_profile(7, 3));
    let database = rusqlite::Connection::open(&path).unwrap();
    database.pragma_update(None, "user_version", 99).unwrap();
    drop(database);
    assert!(matches!(read(&path), Err(Error::NewerVersion { found: 99, known: 8, .. })));
}

#[test]
fn a_journal_that_cannot_be_played_back_is_said() {
    // Root may write anywhere; a directory mounted read-only is the real case. Without mount rights, say so.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    write_file(&path, &random_profile(8, 3));
    let before = fs::read(&path).unwrap();
    // An open transaction that has spilled to the file: its journal is hot once the process is
    // gone, so copy both.
    let database = rusqlite::Connection::open(&path).unwrap();
    database.pragma_update(None, "cache_size", 1).unwrap();
    database.execute_batch("BEGIN; UPDATE sample SET time_ns = 1; CREATE TABLE filler (x);").unwrap();
    for _ in 0..200 {
        database.execute("INSERT INTO filler VALUES (randomblob(1000))", []).unwrap();
    }
    let journal = directory.path().join("x.locality-journal");
    let (hot, dirty) = (fs::read(&journal).unwrap(), fs::read(&path).unwrap());
    drop(database);
    assert_ne!(before, dirty, "the transaction spilled");
    fs::write(&journal, &hot).unwrap();
    fs::write(&path, &dirty).unwrap();
    let Some(_mount) = crate::mount::ReadOnly::bind(directory.path()) else { return };
    assert!(matches!(read(&path), Err(Error::NeedsRecovery { .. })), "{:?}", read(&path));
    drop(_mount);
    assert_eq!(read(&path).unwrap(), random_profile(8, 3));
    assert!(!journal.exists());
}

#[test]
fn an_empty_database_with_our_id_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    write_file(&path, &Profile::default());
    let database = rusqlite::Connection::open(&path).unwrap();
    database.execute_batch("DELETE FROM run").unwrap();
    drop(database);
    match read(&path) {
        Err(Error::Damaged { detail, .. }) => assert!(detail.contains("before it wrote anything")),
        other => panic!("{other:?}"),
    }
}

/// A file of version 1 has neither windows nor uses; everything else is there.
#[test]
fn version_1_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    let mut profile = random_profile(5, 40);
    write_file(&path, &profile);
    let database = rusqlite::Connection::open(&path).unwrap();
    database.execute_batch(WITHOUT_LOOPS).unwrap();
    without_loops(&mut profile);
    let older =
        "ALTER TABLE watch DROP COLUMN of_use; ALTER TABLE watch DROP COLUMN accesses; DROP TABLE window; DROP TABLE window_use; DROP TABLE seen;
        PRAGMA user_version = 1;";
    database.execute_batch(older).unwrap();
    drop(database);
    profile.windows.clear();
    profile.uses.clear();
    profile.watches.iter_mut().for_each(|watch| watch.of_use = None);
    without_counts(&mut profile);
    without_objects(&mut profile);
    assert_eq!(read(&path).unwrap(), profile);
}

/// A file of version 2 knows no objects.
#[test]
fn version_2_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    let mut profile = random_profile(6, 40);
    write_file(&path, &profile);
    let database = rusqlite::Connection::open(&path).unwrap();
    database.execute_batch(WITHOUT_LOOPS).unwrap();
    without_loops(&mut profile);
    // Added later without a new version.
    database
        .execute_batch("ALTER TABLE run DROP COLUMN user_only; ALTER TABLE run DROP COLUMN source_heap; ALTER TABLE overhead DROP COLUMN heap_ns; ALTER TABLE overhead DROP COLUMN string_ns")
        .unwrap();
    (profile.overhead.heap_ns, profile.overhead.string_ns, profile.run.user_only) = (None, None, false);
    profile.run.sources.heap = None;
    let older = "DROP TABLE object; DROP TABLE record; DROP TABLE member; DROP TABLE field; DROP TABLE located; DROP TABLE heap;
        DROP TABLE allocation_site; ALTER TABLE watch DROP COLUMN accesses; PRAGMA user_version = 2;";
    database.execute_batch(older).unwrap();
    drop(database);
    without_counts(&mut profile);
    without_objects(&mut profile);
    assert_eq!(read(&path).unwrap(), profile);
}

/// A file of version 3 knows no loads of lines and counts no accesses.
#[test]
fn version_3_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    let mut profile = random_profile(7, 40);
    write_file(&path, &profile);
    let database = rusqlite::Connection::open(&path).unwrap();
    database.execute_batch(WITHOUT_LOOPS).unwrap();
    without_loops(&mut profile);
    let older = "DELETE FROM located WHERE of_load IS NOT NULL; ALTER TABLE located DROP COLUMN of_load;
        DROP TABLE line_load; DROP TABLE burst; ALTER TABLE watch DROP COLUMN accesses; PRAGMA user_version = 3;";
    database.execute_batch(older).unwrap();
    // Added later without a new version.
    let later = "ALTER TABLE object DROP COLUMN name_inferred; ALTER TABLE heap DROP COLUMN min_bytes;
        ALTER TABLE heap DROP COLUMN min_bytes_at_end; ALTER TABLE heap DROP COLUMN smaller; ALTER TABLE heap DROP COLUMN unwatched;
        ALTER TABLE heap DROP COLUMN lost;";
    database.execute_batch(later).unwrap();
    if let Some(heap) = &mut profile.heap {
        heap.missed = None;
    }
    profile.objects.iter_mut().for_each(|object| object.name_inferred = object.inferred);
    drop(database);
    without_counts(&mut profile);
    profile.loads.clear();
    profile.located.retain(|located| !matches!(located.of, Accessed::Load(_)));
    assert_eq!(read(&path).unwrap(), profile);
}

/// A file of version 4 knows no loops.
#[test]
fn version_4_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    let mut profile = random_profile(8, 40);
    write_file(&path, &profile);
    let database = rusqlite::Connection::open(&path).unwrap();
    database.execute_batch(WITHOUT_LOOPS).unwrap();
    database.pragma_update(None, "user_version", 4).unwrap();
    drop(database);
    without_loops(&mut profile);
    assert_eq!(read(&path).unwrap(), profile);
}

/// A file of version 6 knows neither groups nor control flow.
#[test]
fn version_6_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    let mut profile = random_profile(10, 40);
    write_file(&path, &profile);
    let database = rusqlite::Connection::open(&path).unwrap();
    database.execute_batch(WITHOUT_FLOW).unwrap();
    database.pragma_update(None, "user_version", 6).unwrap();
    drop(database);
    without_flow(&mut profile);
    assert_eq!(read(&path).unwrap(), profile);
}

/// A file of version 7 knows no parallelism.
#[test]
fn version_7_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    let mut profile = random_profile(11, 40);
    write_file(&path, &profile);
    let database = rusqlite::Connection::open(&path).unwrap();
    database.execute_batch("DROP TABLE window_execution;").unwrap();
    database.pragma_update(None, "user_version", 7).unwrap();
    drop(database);
    profile.executions.clear();
    assert_eq!(read(&path).unwrap(), profile);
}

/// A file of version 5 knows no samples in the kernel.
#[test]
fn version_5_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.locality");
    let mut profile = random_profile(9, 40);
    write_file(&path, &profile);
    let database = rusqlite::Connection::open(&path).unwrap();
    database
        .execute_batch(
            "DROP TABLE process_group; ALTER TABLE sample DROP COLUMN of_group;
            DROP TABLE window_execution; DROP TABLE window_flow; DROP TABLE loop_reading; DROP TABLE kernel_sample;
            ALTER TABLE loop DROP COLUMN least_cycles;
            ALTER TABLE loop DROP COLUMN chain_cycles; ALTER TABLE loop DROP COLUMN unit_cycles;
            ALTER TABLE loop DROP COLUMN unit; ALTER TABLE loop DROP COLUMN mispredicted;
            ALTER TABLE loop DROP COLUMN new_lines; ALTER TABLE loop DROP COLUMN distant_cycles;
            ALTER TABLE loop DROP COLUMN chain; ALTER TABLE loop DROP COLUMN branches;",
        )
        .unwrap();
    database.pragma_update(None, "user_version", 5).unwrap();
    drop(database);
    profile.kernel_samples.clear();
    without_flow(&mut profile);
    profile
        .loops
        .iter_mut()
        .for_each(|seen| (seen.needs, seen.chain, seen.branches) = (None, Vec::new(), Vec::new()));
    assert_eq!(read(&path).unwrap(), profile);
}

/// What files before version 5 lack.
const WITHOUT_LOOPS: &str = "DROP TABLE process_group; ALTER TABLE sample DROP COLUMN of_group;
    DROP TABLE window_execution; DROP TABLE window_flow; DROP TABLE loop_reading; DROP TABLE kernel_sample; DROP TABLE loop; DROP TABLE loop_access; DROP TABLE processor;
    ALTER TABLE run DROP COLUMN excluded; ALTER TABLE run DROP COLUMN page_faults;
    ALTER TABLE run DROP COLUMN kernel_ticks; ALTER TABLE run DROP COLUMN ticks;";

/// What files before version 7 lack.
const WITHOUT_FLOW: &str = "DROP TABLE window_execution; DROP TABLE window_flow; DROP TABLE loop_reading;
    DROP TABLE process_group; ALTER TABLE sample DROP COLUMN of_group;";

fn without_flow(profile: &mut Profile) {
    profile.flows.clear();
    profile.executions.clear();
    profile.readings.clear();
    profile.groups.clear();
    profile.samples.iter_mut().for_each(|sample| sample.group = None);
}

fn without_loops(profile: &mut Profile) {
    without_flow(profile);
    profile.loops.clear();
    profile.kernel_samples.clear();
    (profile.run.ticks, profile.run.page_faults, profile.run.processor) = (None, None, None);
    profile.run.excluded.clear();
}

fn without_counts(profile: &mut Profile) {
    for watch in &mut profile.watches {
        if let Outcome::Reused { accesses, .. } = &mut watch.outcome {
            *accesses = None;
        }
    }
}

fn without_objects(profile: &mut Profile) {
    profile.loads.clear();
    profile.objects.clear();
    profile.records.clear();
    profile.fields.clear();
    profile.located.clear();
    profile.heap = None;
}
