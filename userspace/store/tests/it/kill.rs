//! kill -9 of a writing process: what it had committed is there, and the file reads.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::random_profile;
use locality_model::{Run, SampleId};
use locality_profile::{Writer, read};

const CHILD: &str = "LOCALITY_PROFILE_TEST_WRITER";
const SAMPLES_PER_COMMIT: u32 = 200;
const KILLS: usize = 40;

/// Not a test of its own: the body of the child process, which writes until it is killed.
#[test]
fn child_writer() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let profile = random_profile(9, 500);
    let mut writer = Writer::create(Path::new(&path), None).unwrap();
    writer.put_run(&Run { command: "victim".to_owned(), ..Run::default() }).unwrap();
    for next in 0.. {
        let sample = &profile.samples[next as usize % profile.samples.len()];
        writer.put_sample(SampleId(next), sample).unwrap();
        if (next + 1) % SAMPLES_PER_COMMIT == 0 {
            writer.commit().unwrap();
            println!("committed {}", next + 1);
        }
    }
}

#[test]
fn a_killed_writer_loses_only_what_it_had_not_committed() {
    let mut journals = 0;
    for round in 0..KILLS {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.locality");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::child_writer", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut committed = None;
        let mut count = |line: String| {
            if let Some(number) = line.strip_prefix("committed ") {
                committed = number.parse::<usize>().ok();
            }
            committed
        };
        // Wait for the first commit, then for a random moment.
        while lines.by_ref().next().map(|line| count(line.unwrap())).unwrap().is_none() {}
        std::thread::sleep(Duration::from_micros(fastrand::Rng::with_seed(round as u64).u64(..12_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines {
            count(line.unwrap());
        }
        journals += usize::from(directory.path().join("x.locality-journal").exists());

        let profile = read(&path).unwrap();
        let committed = committed.unwrap();
        assert!(profile.partial);
        assert_eq!(profile.run.command, "victim");
        // One more commit may have been done but not reported.
        let (low, high) = (committed, committed + SAMPLES_PER_COMMIT as usize);
        assert!((low..=high).contains(&profile.samples.len()), "{} of {committed}", profile.samples.len());
        assert_eq!(
            profile.samples.len() % SAMPLES_PER_COMMIT as usize,
            0,
            "a transaction is whole or not there"
        );
        assert!(!profile.notices.iter().any(|notice| notice.contains("damaged")), "{:?}", profile.notices);
        // After one reading the file is whole by itself: a journal that remains (killed before it
        // held anything) is not needed any more.
        let alone = directory.path().join("alone.locality");
        std::fs::copy(&path, &alone).unwrap();
        assert_eq!(read(&alone).unwrap(), profile);
    }
    println!("{KILLS} kills, {journals} of them inside a transaction");
    assert!(journals > 0, "no kill fell into a transaction: the test proves nothing");
}
