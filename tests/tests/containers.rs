//! A sidecar in a real container: its own mounts, the pid namespace of another container, the least
//! capabilities, no new privileges, and a root file system that cannot be written.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use locality_tests::programs::build;
use locality_tests::tracer::binary;
use locality_tests::{Target, Tracer, live, overseer, requires};
use serde_json::{Value, json};

/// Containers of one test, removed at its end.
struct Runc {
    folder: tempfile::TempDir,
    names: Vec<String>,
}

/// Options of a container.
#[derive(Default)]
struct Wanted<'a> {
    arguments: Vec<&'a str>,
    capabilities: Vec<&'a str>,
    /// Process whose pid namespace is joined; without one, a new namespace.
    beside: Option<u32>,
    /// Writable folder, at `/out`.
    out: Option<&'a Path>,
}

impl Runc {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), names: Vec::new() }
    }

    fn command(&self) -> Command {
        let mut command = Command::new("runc");
        command.arg("--root").arg(self.folder.path().join("state"));
        command
    }

    /// Prepares a container; its command and id.
    fn prepare(&mut self, wanted: &Wanted<'_>) -> (Command, String) {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = u64::from(std::process::id()) << 16 | u64::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let id = format!("{number:064x}");
        let bundle = self.folder.path().join(&id);
        let root = bundle.join("root");
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}),
            bind(Path::new("/sys"), true),
        ];
        // The host's programs, at the same paths.
        for name in ["usr", "bin", "sbin", "lib", "lib64"] {
            let host = Path::new("/").join(name);
            fs::create_dir_all(&root).unwrap();
            match fs::read_link(&host) {
                Ok(to) => symlink(to, root.join(name)).unwrap(),
                Err(_) if host.exists() => mounts.push(bind(&host, true)),
                Err(_) => {}
            }
        }
        for program in wanted.arguments.iter().filter(|word| word.starts_with("/")).take(1) {
            mounts.push(bind(Path::new(program).parent().unwrap(), true));
        }
        if let Some(out) = wanted.out {
            mounts.push(json!({"destination": "/out", "source": out, "options": ["bind", "rw"]}));
        }
        // A read-only root needs the mount points in advance.
        for mount in &mounts {
            let place = mount["destination"].as_str().unwrap().trim_start_matches('/');
            fs::create_dir_all(root.join(place)).unwrap();
        }
        fs::create_dir_all(root.join("dev")).unwrap();
        let pid = match wanted.beside {
            Some(pid) => json!({"type": "pid", "path": format!("/proc/{pid}/ns/pid")}),
            None => json!({"type": "pid"}),
        };
        let capabilities: Vec<String> =
            wanted.capabilities.iter().map(|name| format!("CAP_{name}")).collect();
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "terminal": false, "user": {"uid": 0, "gid": 0}, "cwd": "/", "args": wanted.arguments,
                "env": ["PATH=/usr/bin:/bin"], "noNewPrivileges": true,
                "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
            },
            "root": {"path": "root", "readonly": true},
            "mounts": mounts,
            "linux": {
                "cgroupsPath": format!("/{id}"),
                "namespaces": [pid, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}],
            },
        });
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        let mut command = self.command();
        command.args(["run", "--bundle"]).arg(&bundle).arg(&id).stdin(Stdio::null());
        self.names.push(id.clone());
        (command, id)
    }

    /// The first process of a container, as a pid of the host.
    fn first(&self, id: &str) -> u32 {
        let state = self.command().args(["state", id]).output().unwrap();
        let state: Value = serde_json::from_slice(&state.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&state.stderr)));
        state["pid"].as_u64().unwrap() as u32
    }
}

impl Drop for Runc {
    fn drop(&mut self) {
        for id in &self.names {
            drop(self.command().args(["delete", "--force", id]).output());
        }
    }
}

fn bind(folder: &Path, is_read_only: bool) -> Value {
    let options = ["rbind", if is_read_only { "ro" } else { "rw" }];
    json!({"destination": folder, "source": folder, "options": options})
}

const LEAST: [&str; 5] = ["BPF", "PERFMON", "SYS_PTRACE", "SETUID", "SETGID"];

#[test]
fn a_sidecar_measures_the_container_beside_it_and_no_other() {
    requires!(root, btf, watchpoints(4), command("runc"));
    let _alone = live::alone();
    let mut runc = Runc::new();
    let programs = ["two_loops", "column_walk"].map(|name| build(name).to_str().unwrap().to_owned());
    let run = |runc: &mut Runc, arguments: Vec<&str>| {
        let (command, id) = runc.prepare(&Wanted { arguments, ..Wanted::default() });
        (Target::start_command(command), id)
    };
    let (_program, id) = run(&mut runc, vec![&programs[0], "60"]);
    let (_stranger, _) = run(&mut runc, vec![&programs[1]]);
    let out = tempfile::tempdir().unwrap();
    let tracer: PathBuf = binary();
    let arguments = vec![
        tracer.to_str().unwrap(),
        "--namespace",
        "-q",
        "-d",
        "5",
        "--overhead",
        "3",
        "-o",
        "/out/t.locality",
        "--format",
        "json",
        "--report",
        "/out/report",
    ];
    let beside = Some(runc.first(&id));
    let capabilities = LEAST.to_vec();
    let (mut sidecar, _) = runc.prepare(&Wanted { arguments, capabilities, beside, out: Some(out.path()) });
    let left = sidecar.output().unwrap();
    let said = format!("{}\n{}", left.status, String::from_utf8_lossy(&left.stderr));
    assert!(left.status.success(), "{said}");
    let report: Value =
        serde_json::from_str(&fs::read_to_string(out.path().join("report")).unwrap()).unwrap();
    let profile = locality_profile::read(&out.path().join("t.locality")).unwrap();
    let names: BTreeSet<&str> = profile
        .samples
        .iter()
        .map(|sample| profile.threads[sample.thread.0 as usize].name.as_str())
        .collect();
    assert_eq!(names, BTreeSet::from(["two_loops"]), "{report:#}");
    assert!(profile.threads.iter().all(|thread| thread.pid == 1), "{:?}", profile.threads);
    assert!(report["ledger"]["stops"]["with a window"].as_u64().unwrap() > 0, "{:#}", report["ledger"]);
    let group = &report["groups"]["rows"][0];
    assert_eq!((group["container"].as_str(), group["comm"].as_str()), (Some(id.as_str()), Some("two_loops")));
    assert!(group["program"].as_str().unwrap().ends_with("/two_loops"), "{group:#}");
}

/// Process 1 of many containers reaps no children. Here the test is the parent of processes left over.
#[test]
fn a_trace_leaves_no_process_for_process_1() {
    requires!(root, btf, watchpoints(4));
    let _alone = live::alone();
    // SAFETY: plain arguments.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }, 0);
    let folder = tempfile::tempdir().unwrap();
    let target = Target::start("column_walk", &[]);
    let file = folder.path().join("t.locality");
    let traced = Tracer::attach(target.pid(), "2").args(["-o".as_ref(), file.as_os_str()]).run();
    assert!(traced.status.success(), "{traced:?}");
    let left = overseer::children(std::process::id()).into_iter().filter(|pid| *pid != target.pid());
    let left: Vec<String> = left.map(overseer::name).collect();
    assert!(left.is_empty(), "{left:?}");
}
