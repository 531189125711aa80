//! Puts the eBPF object in place for embedding: the checked-in object, or a new one if stale
//! (`locality-prebuilt`).

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let out_dir = std::env::var_os("OUT_DIR").unwrap_or_default();
    let embedded = match std::env::var_os("CARGO_FEATURE_EBPF_LOG") {
        Some(_) => locality_prebuilt::embed_logging_object(&root, Path::new(&out_dir)),
        None => locality_prebuilt::embed_object(&root, Path::new(&out_dir)),
    };
    match embedded {
        Ok(embedded) => {
            embedded.cargo_lines().iter().for_each(|line| println!("{line}"));
            ExitCode::SUCCESS
        }
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        }
    }
}
