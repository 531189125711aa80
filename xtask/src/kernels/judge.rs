//! Compares a check's output in a guest with the claim for the kernel.

use std::{fs, path::Path};

use serde_json::Value;

/// What the project claims of kernels.
pub struct Claims {
    /// Major and minor version.
    pub series: (u32, u32),
}

/// The oldest kernel that is claimed to work.
pub const OLDEST: (u32, u32) = (6, 1);

impl Claims {
    /// Words of the refusal of allocation probes, if refused: older kernels lack
    /// the links, and on 6.11 to 6.13 a seccomp filter could end a probed program.
    fn heap_probes_refused(&self) -> Option<&'static str> {
        match self.series {
            (..6, _) | (6, ..6) => Some("Linux 6.6"),
            (6, 11..=13) => Some("6.11 to 6.13"),
            _ => None,
        }
    }

    /// A program may keep a trap from counting.
    fn has_user_only(&self) -> bool {
        self.series >= (6, 10)
    }
}

/// Result of a check: exit status, output, and files by name.
struct Result<'a> {
    folder: &'a Path,
}

/// `Err`: why not, in a few words. `Ok`: what was seen.
type Verdict = std::result::Result<String, String>;

impl Result<'_> {
    fn text(&self, file: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join(file)).unwrap_or_default()).into_owned()
    }

    fn status(&self) -> std::result::Result<i32, String> {
        self.text("rc").trim().parse().map_err(|_| "did not end".to_owned())
    }

    /// The exit status must equal this.
    fn ended(&self, status: i32) -> std::result::Result<(), String> {
        match self.status()? {
            is if is == status => Ok(()),
            137 => Err("killed by its time limit".to_owned()),
            other => Err(format!("exit status {other}: {}", first_lines(&self.text("err")))),
        }
    }

    fn json(&self, file: &str) -> std::result::Result<Value, String> {
        serde_json::from_str(&self.text(file)).map_err(|error| format!("{file} is no JSON: {error}"))
    }

    /// The target runs on, without a tracer.
    fn target_is_free(&self) -> std::result::Result<(), String> {
        self.target_runs()?;
        match self.text("after").contains("TracerPid:\t0") {
            true => Ok(()),
            false => Err(format!("the target is still traced: {}", first_lines(&self.text("after")))),
        }
    }

    /// The target ran on.
    fn target_runs(&self) -> std::result::Result<(), String> {
        let after = self.text("after");
        let numbers: Vec<u64> =
            after.lines().next().unwrap_or_default().split(' ').filter_map(|n| n.parse().ok()).collect();
        let [before, later] = numbers[..] else {
            return Err(format!("the target was gone: {}", first_lines(&after)));
        };
        // Two seconds are 200 ticks; guests share the processors of the host.
        if later < before + 20 {
            return Err(format!("the target stood still: {} ticks in 2 s", later.saturating_sub(before)));
        }
        Ok(())
    }
}

fn first_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).take(3).collect();
    if lines.is_empty() { "nothing was said".to_owned() } else { lines.join(" / ") }
}

/// Judges a check by the results in the folder.
pub fn judge(check: &str, folder: &Path, claims: &Claims) -> Verdict {
    let result = Result { folder };
    if !folder.join("rc").exists() {
        return Err("did not end".to_owned());
    }
    match check {
        "doctor" => doctor(&result, claims),
        "trace" => traced(&result, &["stop"]),
        "overhead" => traced(&result, &["stop", "trap"]),
        "windows" => traced(&result, &["stop", "trap", "window"]),
        "cgroup" => report(&result.json("out")?, &["stop", "trap"]).and_then(|said| {
            result.ended(0)?;
            Ok(said)
        }),
        "launch" | "launch_default" => launched(&result, false),
        "launch_probes" | "probes" => match (claims.heap_probes_refused(), check) {
            (Some(words), _) => refused(&result, &[words]),
            (None, "probes") => traced(&result, &["stop"]),
            (None, _) => launched(&result, true),
        },
        "user_only" if claims.has_user_only() => traced(&result, &["stop"]),
        "user_only" => refused(&result, &["Linux 6.10"]),
        "storm" => storm(&result),
        "kill" => killed(&result),
        "stop" => result.target_runs().map(|()| "the target runs on".to_owned()),
        "nobody" => refused(&result, &["root"]),
        "pid_namespace" => report(&result.json("out")?, &["stop"]).and_then(|said| {
            result.ended(0)?;
            Ok(said)
        }),
        "refused" => {
            refused(&result, &["too old", &format!("Linux {}.{}", OLDEST.0, OLDEST.1)]).and_then(|said| {
                match result.text("doctor").contains("too old") {
                    true => Ok(said),
                    false => Err("doctor does not say that the kernel is too old".to_owned()),
                }
            })
        }
        other => Err(format!("nobody knows how to judge {other}")),
    }
}

fn doctor(result: &Result<'_>, claims: &Claims) -> Verdict {
    let report = result.json("out")?;
    let checks = report["machine"].as_array().cloned().unwrap_or_default();
    let state = |id: &str| {
        let check = checks.iter().find(|check| check["id"] == id);
        check.map(|check| {
            (check["state"].as_str().unwrap_or_default(), check["found"].as_str().unwrap_or_default())
        })
    };
    if report["possible"] != true {
        let missing = checks.iter().filter(|check| check["state"] == "missing");
        let missing: Vec<String> =
            missing.map(|check| format!("{}: {}", check["id"], check["found"])).collect();
        return Err(format!("no trace is possible: {}", missing.join("; ")));
    }
    for id in ["ebpf", "clock", "debug_registers", "zero_skid_stop", "windows"] {
        match state(id) {
            Some(("ok", _)) => {}
            // Emulation is slow, and the doctor asks once; whether windows work is for the checks that trace.
            Some(("degraded", found)) if id == "windows" && found.contains("did not answer in time") => {}
            Some((state, found)) => return Err(format!("{id} is {state}: {found}")),
            None => return Err(format!("doctor has no check {id}")),
        }
    }
    match (claims.heap_probes_refused(), state("heap_probes")) {
        (None, Some(("ok", found))) => Ok(format!("possible; allocation probes {found}")),
        (Some(words), Some(("degraded", found))) if found.contains(words) => {
            Ok(format!("possible; allocation probes: {found}"))
        }
        (_, Some((state, found))) => Err(format!("allocation probes are {state}: {found}")),
        (_, None) => Err("doctor has no check heap_probes".to_owned()),
    }
}

fn traced(result: &Result<'_>, wanted: &[&str]) -> Verdict {
    result.ended(0)?;
    result.target_is_free()?;
    report(&result.json("out")?, wanted)
}

/// The ledger balances, nothing is lost, and the wanted stops, traps and windows exist.
fn report(report: &Value, wanted: &[&str]) -> Verdict {
    let ledger = &report["ledger"];
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let (seen, trapped) = (number(&ledger["seen"]), number(&ledger["watch"]["trapped"]));
    let stops = number(&report["overhead"]["stops"]);
    let accesses = number(&report["windows"]["accesses"]);
    let windows = number(&ledger["stops"]["with a window"]);
    let said = format!("{seen} seen, {stops} stops, {windows} windows, {trapped} trapped");
    if ledger["balanced"] != true {
        return Err(format!("the ledger does not balance: {}", ledger["imbalance"]));
    }
    if ledger["lost"].as_object().is_none_or(|lost| !lost.is_empty()) {
        return Err(format!("lost: {}", ledger["lost"]));
    }
    let has = |what: &&&str| match **what {
        "stop" => stops > 0,
        "trap" => trapped > 0,
        "window" => accesses > 0,
        _ => false,
    };
    match wanted.iter().find(|what| !has(what)) {
        None if seen > 0 => Ok(said),
        None => Err("no event was seen".to_owned()),
        Some(what) => Err(format!("no {what}: {said}; {}", ledger["stops"])),
    }
}

/// A launched command's status is passed on; if
/// allocations are to be recorded, the number is not 0.
fn launched(result: &Result<'_>, probes: bool) -> Verdict {
    result.ended(3)?;
    let value = result.json("report")?;
    let said = report(&value, &[])?;
    let recorded = value["objects_summary"]["heap"]["allocations_seen"].as_u64();
    match (probes, recorded) {
        (true, None | Some(0)) => Err(format!("no allocation was recorded: {}", value["notices"])),
        (true, Some(n)) => Ok(format!("{said}, {n} allocations recorded")),
        _ => Ok(said),
    }
}

/// The sums of the traced program equal those of an untraced run.
fn storm(result: &Result<'_>) -> Verdict {
    result.ended(0)?;
    let sum = |file: &str| {
        let text = result.text(file);
        text.lines().find(|line| line.starts_with("checksum")).map(str::to_owned)
    };
    if sum("alone").is_none() || sum("alone") != sum("out") {
        return Err(format!("alone {:?}, traced {:?}", sum("alone"), sum("out")));
    }
    report(&result.json("report")?, &["stop"])
}

/// The target of a killed tracer runs on; the profile does not claim a balanced ledger.
fn killed(result: &Result<'_>) -> Verdict {
    result.target_is_free()?;
    // The report names the missing parts, and its exit status marks the profile incomplete.
    result.ended(1)?;
    let report = result.json("out")?;
    match report["ledger"]["balanced"].is_null() {
        true => Ok(format!("the target runs on; {} watches in the profile", report["run"]["watches"])),
        false => {
            Err(format!("a killed trace's ledger is told as balanced: {}", report["ledger"]["balanced"]))
        }
    }
}

/// Ends with status 1 or 2, and gives the reason in one sentence with these words.
fn refused(result: &Result<'_>, words: &[&str]) -> Verdict {
    let said = result.text("err");
    if !matches!(result.status()?, 1 | 2) {
        return Err(format!("was not refused: exit status {}", result.status()?));
    }
    match words.iter().find(|word| !said.contains(**word)) {
        None => Ok(format!("refused: {}", first_lines(&said))),
        Some(word) => Err(format!("the refusal does not name {word}: {}", first_lines(&said))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sound() -> Value {
        json!({
            "ledger": {"balanced": true, "seen": 10, "lost": {}, "watch": {"trapped": 1},
                       "stops": {"with a window": 2}},
            "overhead": {"stops": 2},
            "windows": {"accesses": 4},
        })
    }

    #[test]
    fn what_is_wrong_in_a_report_is_found() {
        let wanted = ["stop", "trap", "window"];
        assert!(report(&sound(), &wanted).is_ok());
        for (path, value) in [
            ("/ledger/balanced", json!(false)),
            ("/ledger/balanced", Value::Null),
            ("/ledger/seen", json!(0)),
            ("/ledger/lost", json!({"ring full": 1})),
            ("/ledger/watch/trapped", json!(0)),
            ("/overhead/stops", json!(0)),
            ("/windows/accesses", json!(0)),
        ] {
            let mut broken = sound();
            *broken.pointer_mut(path).unwrap() = value;
            assert!(report(&broken, &wanted).is_err(), "{path}");
        }
        assert!(report(&Value::Null, &[]).is_err());
    }

    #[test]
    fn claims_are_demanded_of_the_kernels_that_have_them() {
        for (series, probes, user_only) in [
            ((6, 1), false, false),
            ((6, 6), true, false),
            ((6, 10), true, true),
            ((6, 12), false, true),
            ((7, 3), true, true),
        ] {
            let claims = Claims { series };
            let found = (claims.heap_probes_refused().is_none(), claims.has_user_only());
            assert_eq!(found, (probes, user_only), "{series:?}");
        }
    }
}
