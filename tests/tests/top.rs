//! The live table: on a terminal, without a terminal, of an agent; each way of ending.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use locality_tests::live::{LIMIT, wait_for};
use locality_tests::programs::build;
use locality_tests::{Target, Tracer, live, overseer, requires, tracer};
use serde_json::Value;

/// A terminal of tmux, with a shell that runs `top` and prints the state of the terminal afterwards.
struct Screen {
    socket: String,
}

impl Screen {
    fn start(folder: &Path, arguments: &str) -> Self {
        // A server that ends still has its socket when the next one starts.
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let socket = folder.join(format!("tmux-{}", STARTED.fetch_add(1, Ordering::Relaxed)));
        let screen = Self { socket: socket.display().to_string() };
        let script = format!(
            "TMPDIR={} {} top {arguments}; echo \"status $?\"; stty -a; sleep 1000",
            folder.join("stores").display(),
            tracer::binary().display()
        );
        let size = ["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "/bin/sh", "-c"];
        screen.tmux(&[&size[..], &[&script]].concat());
        screen
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.env("LC_ALL", "C.UTF-8").args(["-u", "-S", &self.socket]).args(arguments);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn wait(&self, words: &str) -> String {
        let until = Instant::now() + LIMIT;
        loop {
            let text = self.text();
            if text.contains(words) {
                return text;
            }
            assert!(Instant::now() < until, "`{words}` is not on the screen:\n{text}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The terminal is as before, and the screen is the shell's.
    fn assert_restored(&self, status: &str) {
        let text = self.wait("speed");
        let text = if text.contains("iexten") { text } else { self.wait("iexten") };
        assert!(text.contains(status), "{text}");
        for flag in [" icanon", " echo ", " isig", " opost"] {
            assert!(text.contains(flag) || text.contains(&format!("\n{}", flag.trim())), "{flag}: {text}");
        }
        assert!(!text.contains("locality-bpf top"), "{text}");
    }

    /// Process id of `top`.
    fn top(&self) -> u32 {
        let shell: u32 = self.tmux(&["display-message", "-p", "#{pane_pid}"]).trim().parse().unwrap();
        wait_for("top", || overseer::children(shell).into_iter().next())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut command = Command::new("tmux");
        let _ = command.args(["-S", &self.socket, "kill-server"]).output();
    }
}

fn is_free(pid: u32) -> Option<()> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().any(|line| line == "TracerPid:\t0").then_some(())
}

#[test]
fn a_table_on_a_terminal_that_is_given_back() {
    requires!(root, btf, watchpoints(4), command("tmux"));
    let _alone = live::alone();
    let folder = tempfile::tempdir().unwrap();
    let stores = folder.path().join("stores");
    fs::create_dir(&stores).unwrap();
    let is_empty = || fs::read_dir(&stores).unwrap().next().is_none().then_some(());
    let program = Target::start("column_walk", &[]);
    let pid = program.pid();
    let options = format!("-p {pid} --overhead 5 --own 50 --interval 500ms");

    let screen = Screen::start(folder.path(), &options);
    let text = screen.wait("% [");
    assert!(text.lines().next().unwrap().starts_with(&format!("locality-bpf top process {pid}")), "{text}");
    assert!(text.contains("L1 misses") && text.contains("column_walk"), "{text}");
    screen.tmux(&["resize-window", "-x", "200", "-y", "50"]);
    screen.wait("data object");
    screen.tmux(&["resize-window", "-x", "30", "-y", "6"]);
    screen.wait("column_walk");
    screen.tmux(&["resize-window", "-x", "10", "-y", "3"]);
    screen.wait("larger");
    screen.tmux(&["resize-window", "-x", "80", "-y", "24"]);
    screen.keys(&["Enter"]);
    screen.wait("Miss ratio by cache size");
    screen.keys(&["Escape"]);
    screen.keys(&["/nobody", "Enter"]);
    screen.wait("no group has this filter");
    screen.keys(&["q"]);
    screen.assert_restored("status 0");
    wait_for("end of the store", is_empty);
    is_free(pid).unwrap();
    drop(screen);

    let screen = Screen::start(folder.path(), &options);
    screen.wait("locality-bpf top process");
    screen.keys(&["C-c"]);
    screen.assert_restored("status 0");
    drop(screen);

    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        let screen = Screen::start(folder.path(), &options);
        screen.wait("column_walk");
        // SAFETY: plain arguments.
        unsafe { libc::kill(screen.top().cast_signed(), signal) };
        screen.assert_restored("status 0");
        wait_for("end of the store", is_empty);
        is_free(pid).unwrap();
    }

    // Killed, `top` leaves neither an agent nor a store.
    let screen = Screen::start(folder.path(), &options);
    screen.wait("column_walk");
    // SAFETY: plain arguments.
    unsafe { libc::kill(screen.top().cast_signed(), libc::SIGKILL) };
    wait_for("end of the store", is_empty);
    wait_for("end of the tracer", || is_free(pid));
    drop(screen);

    // The end of the process stays on the screen until a key.
    let screen = Screen::start(folder.path(), &options);
    screen.wait("column_walk");
    drop(program);
    screen.wait("ENDED");
    screen.keys(&["q"]);
    screen.assert_restored("status 0");
}

#[test]
fn tables_without_a_terminal() {
    requires!(root, btf, watchpoints(4));
    let _alone = live::alone();
    let folder = tempfile::tempdir().unwrap();
    // A file's name is the process' name.
    let hostile = folder.path().join("a\x1b[2Jb\n\u{9b}c");
    fs::copy(build("column_walk"), &hostile).unwrap();
    let program = Target::start_command(Command::new(&hostile));
    let pid = program.pid().to_string();
    let own = ["--overhead", "5", "--own", "50"];

    // Not a terminal: the plain form, until the count.
    let text = Tracer::new().args(["top", "-p", &pid, "-n", "2"]).args(own).run();
    assert!(text.status.success(), "{text:?}");
    assert!(!text.stdout.replace('\n', "").contains(char::is_control), "{:?}", text.stdout);
    assert_eq!(text.stdout.matches("L1 misses").count(), 2, "{}", text.stdout);
    assert!(text.stdout.contains("a__2Jb"), "{}", text.stdout);

    let none =
        Tracer::new().args(["top", "-p", &pid, "--format", "json", "-n", "8", "--interval", "2s"]).args(own);
    let pages = none.run();
    assert!(pages.status.success(), "{pages:?}");
    let pages: Vec<Value> = pages.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(pages.len(), 8);
    let last = &pages[7];
    assert_eq!(last["schema"], "locality-top/1");
    assert_eq!(last["groups"].as_array().unwrap().len(), 1, "{last:#}");
    let curve = last["groups"][0]["curve"].as_array().unwrap();
    let point = curve.iter().find(|point| point["bytes"] == 32 << 10).unwrap();
    let [low, ratio, high] = ["low", "ratio", "high"].map(|end| point[end].as_f64().unwrap());
    // One access in nine walks by columns and always misses; the rest miss once a line of eight.
    assert!(low <= ratio && ratio <= high && (ratio - 2.0 / 9.0).abs() < 0.1, "{low} {ratio} {high}");
    let cpu_s = last["groups"][0]["cpu_ns"]["windows"].as_f64().unwrap() / 1e9;
    let really = program.cpu_time().as_secs_f64();
    assert!(cpu_s > 0.0 && cpu_s < 1.5 * really, "{cpu_s} of {really}");

    // A running agent's numbers; the segment in writing counts.
    let store = folder.path().join("store");
    let agent = Tracer::new().args(["agent", "-p", &pid, "--store"]).args([&store]).args(own);
    let agent = agent.start();
    wait_for("store", || store.join("lock").exists().then_some(()));
    let page = Tracer::new().args(["top", "--once", "--store"]).args([&store]).run();
    assert!(page.status.success(), "{page:?}");
    assert!(page.stdout.starts_with(&format!("agent {} (", agent.pid())), "{}", page.stdout);
    assert!(page.stdout.contains("a__2Jb"), "{}", page.stdout);
    agent.signal(libc::SIGTERM);
    assert!(agent.finish(LIMIT).status.success());
    let over = Tracer::new().args(["top", "--once", "--store"]).args([&store]).run();
    over.assert_refused(1, &["no agent", "-p", "--store"]);
}

#[test]
fn what_cannot_be_shown_is_refused_in_a_sentence() {
    requires!(root);
    let refused = |arguments: &[&str], status, words: &[&str]| {
        Tracer::new().args(["top"]).args(arguments).run().assert_refused(status, words);
    };
    refused(&["--store", "/nowhere"], 1, &["no agent", "/nowhere", "-p PID"]);
    refused(&["-p", "1073741800"], 1, &["no such process"]);
    refused(&["--cgroup", "/nowhere"], 1, &["/nowhere"]);
    refused(&["-p", "1", "--interval", "1ms"], 2, &["--interval", "200ms"]);
}
