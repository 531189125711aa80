//! The verifier's reason for refusing a program, in one sentence.

use aya::programs::ProgramError;

/// The verifier refused a program. It answers EACCES, as if rights were missing; so the system's
/// error is left out.
#[derive(Debug, thiserror::Error)]
#[error("the kernel refused the eBPF program {program}: {complaint}")]
pub struct Refused {
    program: String,
    complaint: String,
}

/// A refusal to load `program` in words: the verifier's complaint, or the system's error where it made none.
pub fn refusal(program: &str, error: ProgramError) -> anyhow::Error {
    let said = match &error {
        ProgramError::LoadError { verifier_log, .. } => complaint(&verifier_log.to_string()),
        _ => None,
    };
    match said {
        Some(complaint) => Refused { program: program.to_owned(), complaint }.into(),
        None => anyhow::Error::new(error).context(format!("the kernel refused the eBPF program {program}")),
    }
}

/// The same for a program loaded without aya, from the verifier's log.
pub fn refusal_by_log(program: &str, log: &str, error: std::io::Error) -> anyhow::Error {
    match complaint(log) {
        Some(complaint) => Refused { program: program.to_owned(), complaint }.into(),
        None => anyhow::Error::new(error).context(format!("the kernel refused the eBPF program {program}")),
    }
}

/// The verifier's log ends with its complaint, then statistics.
fn complaint(log: &str) -> Option<String> {
    let statistics = ["processed ", "verification time", "stack depth"];
    let line = log
        .lines()
        .map(str::trim)
        .rfind(|line| !line.is_empty() && !statistics.iter().any(|start| line.starts_with(start)))?;
    Some(line.to_owned())
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn the_verifiers_complaint_is_found() {
        let log = "0: R1=ctx() R10=fp0\n; foo\n5: (85) call bpf_probe_read_kernel#113\n\
                   program of this type cannot use helper bpf_probe_read_kernel#113\n\
                   processed 6 insns (limit 1000000) max_states_per_insn 0\n\n";
        assert_eq!(
            complaint(log).unwrap(),
            "program of this type cannot use helper bpf_probe_read_kernel#113"
        );
        assert_eq!(complaint("processed 6 insns\n"), None);
        assert_eq!(complaint(""), None);
    }

    #[test]
    fn a_refusal_by_the_verifier_is_no_lack_of_rights() {
        let error = || io::Error::from_raw_os_error(libc::EACCES);
        let by_verifier =
            refusal_by_log("sample", "0: R1=ctx()\nR1 min value is negative\nprocessed 6 insns\n", error());
        assert_eq!(
            format!("{by_verifier:#}"),
            "the kernel refused the eBPF program sample: R1 min value is negative"
        );
        assert!(by_verifier.chain().all(|cause| cause.downcast_ref::<io::Error>().is_none()));
        let by_rights = refusal_by_log("sample", "", error());
        assert!(by_rights.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some()), "{by_rights:#}");
    }
}
