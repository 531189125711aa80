//! Memory and time that the tracer needs on a trace of a minute: `cargo xtask bench footprint`.
//!
//! Peak resident memory (`VmHWM`), the time from the tracer's start to the first sample, the
//! size of the profile, and the time of a report from the profile. Programs: our own two-loop
//! kernel, and `python3`, an interpreter with symbols but without debug information. Sources
//! of error: resident memory includes file pages shared with further processes.
//!
//! Arguments: `--seconds N` (default 60).
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark prints its table and ends with the first thing that is wrong"
)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use locality_tests::{Target, Tracer};

fn main() {
    let mut seconds = 60;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seconds" => {
                seconds = arguments.next().and_then(|n| n.parse().ok()).expect("a number of seconds")
            }
            "--bench" => {}
            other => panic!("unknown argument {other}"),
        }
    }
    let folder = std::env::temp_dir().join(format!("locality-footprint-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the profiles");
    println!("trace of {seconds} s");
    println!("| program | samples | peak resident | first sample after | profile | report from it |");
    println!("|---|---|---|---|---|---|");
    let own = Target::start("two_loops", &[&(seconds + 30).to_string()]);
    measure("two_loops", own.pid(), seconds, &folder);
    drop(own);
    let mut python = Command::new("python3");
    python.args(["-c", "d = {}\nwhile True:\n  for i in range(10**6):\n    d[i * 7919 & 0xffff] = i"]);
    let python = Target::spawn(python);
    measure("python3", python.pid(), seconds, &folder);
    drop(python);
    std::fs::remove_dir_all(&folder).expect("the profiles can be removed");
}

fn measure(name: &str, pid: u32, seconds: u64, folder: &Path) {
    let profile = folder.join(format!("{name}.locality"));
    let started = Instant::now();
    let mut tracer = Tracer::new();
    tracer = tracer.args(["-p", &pid.to_string(), "-q", "-d", &seconds.to_string(), "-o"]).args([&profile]);
    let mut tracer = tracer.start();
    let unix_start = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
    let mut peak_kib = 0;
    while tracer.is_running() && started.elapsed() < Duration::from_secs(seconds + 30) {
        peak_kib = peak_kib.max(resident_peak_kib(tracer.pid()));
        std::thread::sleep(Duration::from_millis(100));
    }
    let done = tracer.finish(Duration::from_secs(30));
    assert!(done.status.success(), "the tracer failed: {}", done.stderr);
    let query = |sql: &str| {
        let output = Command::new("sqlite3").arg(&profile).arg(sql).output().expect("sqlite3 runs");
        String::from_utf8_lossy(&output.stdout).trim().parse::<f64>().unwrap_or(f64::NAN)
    };
    let first_s =
        query("SELECT (SELECT started_unix_ns FROM run) / 1e9 + (SELECT min(time_ns) FROM sample) / 1e9")
            - unix_start.as_secs_f64();
    let mut times: Vec<f64> = (0..5)
        .map(|_| {
            let start = Instant::now();
            let done = Command::new(locality_tests::tracer::binary())
                .arg("report")
                .arg(&profile)
                .stdout(Stdio::null())
                .status()
                .expect("the report runs");
            assert!(done.success());
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!(
        "| {name} | {:.0} | {:.1} MiB | {:.2} s | {:.1} MiB | {:.2} s |",
        query("SELECT count(*) FROM sample"),
        peak_kib as f64 / 1024.0,
        first_s,
        std::fs::metadata(&profile).map_or(f64::NAN, |file| file.len() as f64 / (1 << 20) as f64),
        times[2]
    );
}

/// Peak resident memory of a process so far, 0 after the end.
fn resident_peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|value| value.trim().split(' ').next()?.parse().ok()).unwrap_or(0)
}
