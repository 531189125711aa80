//! The cost for a server: redis under `redis-benchmark`, untraced and traced in turn.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use locality_tests::{Tracer, programs};

use super::{Options, median};

/// Requests of one run, about five seconds.
const REQUESTS: &str = "600000";

/// Output of `redis-benchmark` for one run.
struct Served {
    requests_per_second: f64,
    p99_9_ms: f64,
}

/// A server that ends with this value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Prints the figures of the server.
pub fn measure(folder: &Path, options: &Options) {
    let port = free_port();
    let mut command = programs::redis_server();
    command
        .args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .current_dir(folder);
    let server =
        Server(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("redis-server starts"));
    let deadline = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
        assert!(Instant::now() < deadline, "redis-server does not answer");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (mut untraced, mut traced) = (Vec::new(), Vec::new());
    for _ in 0..options.pairs {
        untraced.push(serve(&port));
        let pid = server.0.id().to_string();
        let mut tracer = Tracer::new();
        tracer.command().current_dir(folder).args(options.tracer());
        let tracer = tracer.args(["-p", &pid, "-q", "--report", "redis.txt"]).start();
        std::thread::sleep(Duration::from_millis(700));
        traced.push(serve(&port));
        tracer.signal(libc::SIGINT);
        let done = tracer.finish(Duration::from_secs(30));
        assert!(done.status.success(), "the tracer failed on redis: {}", done.stderr);
    }
    let rate = |runs: &[Served]| median(runs.iter().map(|run| run.requests_per_second));
    let tail = |runs: &[Served]| median(runs.iter().map(|run| run.p99_9_ms));
    let ratios = traced.iter().zip(&untraced).map(|(b, a)| b.requests_per_second / a.requests_per_second);
    println!();
    println!("| server | untraced requests/s | throughput traced/untraced | p99.9 untraced | p99.9 traced |");
    println!("|---|---|---|---|---|");
    println!(
        "| redis | {:.0} | {:.4} | {:.3} ms | {:.3} ms |",
        rate(&untraced),
        median(ratios),
        tail(&untraced),
        tail(&traced)
    );
}

/// Runs the load once; any failed request ends the benchmark.
fn serve(port: &str) -> Served {
    let output = Command::new("redis-benchmark")
        .args(["-p", port, "-t", "set,get", "-n", REQUESTS, "-r", "100000", "-c", "20", "--precision", "3"])
        .output()
        .expect("redis-benchmark runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("rror"), "redis-benchmark failed: {text}");
    // "throughput summary: 123456.78 requests per second", once a test.
    let rates: Vec<f64> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("throughput summary: ")?.split(' ').next()?.parse().ok())
        .collect();
    assert_eq!(rates.len(), 2, "unexpected output: {text}");
    let tails: Vec<f64> =
        text.split("Latency by percentile distribution").skip(1).filter_map(p99_9_ms).collect();
    assert_eq!(tails.len(), 2, "unexpected output: {text}");
    Served {
        requests_per_second: rates.iter().sum::<f64>() / 2.0,
        p99_9_ms: tails.iter().fold(0.0, |worst, tail| worst.max(*tail)),
    }
}

/// From lines as "99.902% <= 0.311 milliseconds (cumulative count 99902)": the first at or above 99.9 %.
fn p99_9_ms(section: &str) -> Option<f64> {
    section.lines().find_map(|line| {
        let (percent, rest) = line.trim().split_once("% <= ")?;
        let reached = percent.parse::<f64>().ok()? >= 99.9;
        rest.split(' ').next()?.parse().ok().filter(|_| reached)
    })
}

fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port().to_string()
}
