//! The tracer is killed, stopped and paused at random moments: the traced program must not notice,
//! and the data collected must be in the profile.
//!
//! `LOCALITY_REPEAT=full` repeats as often as the project's figures ask for; without the variable,
//! fewer times. A program that measures standstills (`gap_meter.c`) runs traced beside an untraced
//! copy: if the machine stops the untraced copy, the traced copy may stand still too.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use locality_model::Ledger;
use locality_tests::requires::skip;
use locality_tests::{Cgroup, Finished, Target, Tracer, requires};

const LIMIT: Duration = Duration::from_secs(120);

/// Longest time that a traced program may stand still.
const FREEZE_MS: f64 = 200.0;

/// The limit if the cause of the stop continues: a kill must reach the cause first.
const FROZEN_MS: f64 = 500.0;

/// Seconds of work of each traced program.
const WORK: &str = "6";

/// One campaign at a time: each measures standstills, and the machine has few cores.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Repetitions in CI, and for the figures.
fn repetitions(few: usize, many: usize) -> usize {
    match std::env::var("LOCALITY_REPEAT").as_deref() {
        Ok("full") => many,
        _ => few,
    }
}

fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the destination is a live `timespec`.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) }, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A random number below `end` from the clock and earlier numbers (splitmix64, Steele et al. 2014).
fn random(state: &mut u64, end: u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)) % end
}

/// The longest standstill measured by the program.
fn gap_ms(finished: &Finished) -> f64 {
    let words: Vec<&str> = finished.stderr.split_whitespace().collect();
    match words[..] {
        ["gap", ms, ..] => ms.parse().unwrap(),
        _ => panic!("{finished:?}"),
    }
}

/// Results of one campaign.
#[derive(Debug, Default)]
struct Seen {
    attacks: usize,
    programs: usize,
    freeze_ms: f64,
    control_ms: f64,
    /// Readable profiles, and the longest missing time before the attack.
    profiles: usize,
    lacks_ms: f64,
    samples: usize,
}

/// Traces programs, one by one, until `attacks` tracers were attacked; checks each program against
/// an untraced run. `attack` gets a running tracer and the profile's path, and leaves the tracer
/// ended; false when the program's end came before the attack.
fn campaign(
    name: &str,
    attacks: usize,
    allowed_ms: f64,
    mut attack: impl FnMut(Tracer, &Path, &mut u64, &mut Seen) -> bool,
) -> Seen {
    let _alone = alone();
    let untraced = Target::start("gap_meter", &[WORK]).finish(LIMIT);
    assert_eq!(untraced.status.code(), Some(7));
    let directory = scratch(name);
    let mut random_state = monotonic_ns();
    let mut seen = Seen::default();
    while seen.attacks < attacks {
        let control = Target::start("gap_meter", &[WORK]);
        let mut target = Target::start("gap_meter", &[WORK]);
        while target.is_running() && seen.attacks < attacks {
            let profile = directory.join(format!("{}.locality", seen.attacks));
            let mut tracer =
                Tracer::new().args(["-q", "-p", &target.pid().to_string(), "-o"]).args([&profile]);
            tracer.command().stdin(std::process::Stdio::null());
            seen.attacks += usize::from(attack(tracer, &profile, &mut random_state, &mut seen));
            // A tracer of an ended program may leave no profile.
            drop(std::fs::remove_file(&profile));
        }
        let (finished, control) = (target.finish(LIMIT), control.finish(LIMIT));
        assert_eq!(finished.status, untraced.status, "{seen:?} {finished:?}");
        assert_eq!(finished.stdout, untraced.stdout, "{seen:?}");
        seen.programs += 1;
        seen.freeze_ms = seen.freeze_ms.max(gap_ms(&finished));
        seen.control_ms = seen.control_ms.max(gap_ms(&control));
    }
    std::fs::remove_dir_all(directory).unwrap();
    eprintln!("{name}: {seen:?}");
    let allowed_ms = allowed_ms.max(seen.control_ms * 1.5);
    assert!(seen.freeze_ms <= allowed_ms, "{seen:?}");
    seen
}

fn scratch(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

fn wait(target: &mut Target, at_most: Duration) -> bool {
    let deadline = Instant::now() + at_most;
    while target.is_running() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    !target.is_running()
}

/// Opens the profile of a tracer killed at `killed_ns` and notes the missing time.
fn examine(profile: &Path, attached: bool, killed_ns: u64, seen: &mut Seen) {
    if !profile.exists() {
        return;
    }
    match locality_profile::read(profile) {
        Ok(read) => {
            seen.profiles += 1;
            seen.samples += read.samples.len();
            // Absent after a kill; present if the tracer went on and ended regularly.
            assert_eq!(read.known_ledger().and_then(Ledger::imbalance), None, "{:?}", read.ledger);
            // All messages from before the last write of the
            // header stand before the header in the file.
            let last_ns = read.samples.iter().map(|sample| sample.time_ns).max().unwrap_or(0);
            let until_ns = read.run.started_mono_ns + last_ns.max(read.run.wall_ns);
            let lacks_ns = killed_ns.saturating_sub(until_ns);
            seen.lacks_ms = seen.lacks_ms.max(lacks_ns as f64 / 1e6);
        }
        // Killed in the first moments, before the first write.
        Err(error) => assert!(!attached, "{error}"),
    }
}

#[test]
fn a_killed_tracer_harms_nobody_and_loses_a_second_at_most() {
    requires!(root, btf, watchpoints(4));
    let seen = campaign("kill", repetitions(25, 200), FREEZE_MS, |tracer, profile, random_state, seen| {
        let mut tracer = tracer.start();
        // Loading, calibration, attaching, tracing: kills meet every phase.
        let wanted = Duration::from_micros(random(random_state, 2_500_000));
        let began = Instant::now();
        if wait(&mut tracer, wanted) {
            return false;
        }
        tracer.signal(libc::SIGKILL);
        let killed_ns = monotonic_ns();
        assert!(wait(&mut tracer, Duration::from_secs(5)), "killed, yet it runs");
        let attached = began.elapsed() > Duration::from_secs(2);
        examine(profile, attached, killed_ns, seen);
        true
    });
    assert!(seen.profiles * 3 > seen.attacks && seen.samples > seen.profiles, "{seen:?}");
    assert!(seen.lacks_ms < 1000.0 + seen.control_ms, "{seen:?}");
}

#[test]
fn a_stopped_tracer_freezes_nobody() {
    requires!(root, btf, watchpoints(4));
    let mut ended_by_guard = 0;
    let seen = campaign("stop", repetitions(8, 50), FREEZE_MS, |tracer, profile, random_state, seen| {
        let mut tracer = tracer.start();
        if wait(&mut tracer, Duration::from_micros(300_000 + random(random_state, 1_200_000))) {
            return false;
        }
        tracer.signal(libc::SIGSTOP);
        let stopped_ns = monotonic_ns();
        std::thread::sleep(Duration::from_millis(400));
        tracer.signal(libc::SIGCONT);
        end(tracer, &mut ended_by_guard);
        examine(profile, false, stopped_ns, seen);
        true
    });
    eprintln!("the watchdog ended {ended_by_guard} of {} stopped tracers", seen.attacks);
}

#[test]
fn a_paused_tracer_lets_the_program_go_and_takes_it_up_again() {
    requires!(root, btf, watchpoints(4));
    let mut ended_by_guard = 0;
    let seen = campaign("pause", repetitions(8, 50), FREEZE_MS, |tracer, profile, random_state, seen| {
        let mut tracer = tracer.start();
        if wait(&mut tracer, Duration::from_micros(random(random_state, 1_500_000))) {
            return false;
        }
        tracer.signal(libc::SIGTSTP);
        let paused_ns = monotonic_ns();
        std::thread::sleep(Duration::from_millis(300));
        tracer.signal(libc::SIGCONT);
        wait(&mut tracer, Duration::from_millis(400));
        end(tracer, &mut ended_by_guard);
        examine(profile, false, paused_ns, seen);
        true
    });
    // Before attaching, the tracer may be stopped anywhere;
    // afterwards a paused tracer stops no thread.
    assert!(ended_by_guard * 4 <= seen.attacks, "{ended_by_guard} of {seen:?}");
}

/// `docker pause`, `systemctl freeze` and similar: the tracer is frozen with the whole cgroup, for
/// much longer than the program may stand still.
fn freezes(name: &str, cgroup: Result<Cgroup, String>) {
    requires!(root, btf, watchpoints(4));
    let cgroup = match cgroup {
        Ok(cgroup) => cgroup,
        Err(why) => return skip(&why),
    };
    let mut ended_by_guard = 0;
    let seen = campaign(name, repetitions(8, 50), FROZEN_MS, |mut tracer, profile, random_state, seen| {
        // More stops, to let most freezes meet one.
        let inside = cgroup.start(tracer.command());
        let mut tracer = Target::spawn(inside).overseen();
        if wait(&mut tracer, Duration::from_micros(300_000 + random(random_state, 1_200_000))) {
            return false;
        }
        cgroup.freeze(true);
        let frozen_ns = monotonic_ns();
        std::thread::sleep(Duration::from_millis(900));
        cgroup.freeze(false);
        end(tracer, &mut ended_by_guard);
        examine(profile, false, frozen_ns, seen);
        true
    });
    eprintln!("the watchdog ended {ended_by_guard} of {} frozen tracers", seen.attacks);
}

#[test]
fn a_tracer_in_a_frozen_cgroup_freezes_nobody() {
    freezes("freeze-unified", Cgroup::unified());
}

#[test]
fn a_tracer_in_a_frozen_cgroup_of_version_1_freezes_nobody() {
    freezes("freeze-old", Cgroup::old("freezer"));
}

/// Asks a tracer to end and checks for an end with a report, or by the watchdog with a message.
fn end(mut tracer: Target, ended_by_guard: &mut usize) {
    use std::os::unix::process::ExitStatusExt as _;
    wait(&mut tracer, Duration::from_millis(100));
    if tracer.is_running() {
        tracer.signal(libc::SIGTERM);
    }
    let left = tracer.finish(Duration::from_secs(20));
    match (left.status.signal(), left.status.code()) {
        (Some(libc::SIGKILL), _) => {
            *ended_by_guard += 1;
            assert!(left.stderr.contains("stood still"), "{left:?}");
        }
        // Too early for a sample, or before the tracer handles signals.
        (Some(libc::SIGTERM), _) | (_, Some(0 | 1)) => {}
        _ => panic!("{left:?}"),
    }
}

#[test]
fn a_launched_command_outlives_its_tracer() {
    requires!(root, btf, watchpoints(4));
    let _alone = alone();
    let directory = scratch("launched");
    // Longer than the time before the tracer's death, on any machine.
    let untraced = Target::start("gap_meter", &["3"]).finish(LIMIT);
    let mut random_state = monotonic_ns();
    for round in 0..repetitions(3, 20) {
        let profile = directory.join(format!("{round}.locality"));
        let program = locality_tests::build("gap_meter");
        let mut tracer =
            Tracer::new().args(["-q", "-o"]).args([&profile]).args(["--"]).args([program]).args(["3"]);
        // Ready means that the command runs.
        let mut tracer = Target::start_command(std::mem::replace(tracer.command(), Command::new("true")));
        let has_ended = wait(&mut tracer, Duration::from_micros(random(&mut random_state, 800_000)));
        assert!(!has_ended, "round {round}: the tracer ended by itself: {:?}", tracer.finish(LIMIT));
        tracer.signal(libc::SIGKILL);
        // The command has the pipes open: the test reads until the command ends.
        let left = tracer.finish(LIMIT);
        assert_eq!(left.stdout, untraced.stdout, "round {round}");
    }
    std::fs::remove_dir_all(directory).unwrap();
}
