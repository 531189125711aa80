//! Places of pages as a user names them: no profile and no input is replaced, and the refusal comes before
//! any work.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::{fs, path::Path, process::Command};

/// Status and stderr of the program in a folder.
fn run(dir: &Path, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_locality-bpf"));
    let output = command.args(arguments).current_dir(dir).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn no_page_replaces_a_profile_or_an_input() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    for name in ["w.locality", "other.locality"] {
        let profile = locality_model::testing::loops::windowed();
        locality_profile::write(&dir.join(name), &profile, None).unwrap();
    }
    for name in ["bst", "m.toml", "e.json", "notes"] {
        fs::write(dir.join(name), name).unwrap();
    }
    std::os::unix::fs::symlink("w.locality", dir.join("latest")).unwrap();
    let names = ["w.locality", "other.locality", "bst", "m.toml", "e.json", "notes"];
    let bytes = || names.map(|name| fs::read(dir.join(name)).unwrap());
    let before = bytes();
    let other = "other.locality";
    for (line, said) in [
        ("model w.locality -o w.locality", "the model would replace the profile w.locality"),
        ("model w.locality -o latest", "the model would replace the profile latest"),
        ("model w.locality -o other.locality", "the model would replace the profile other.locality"),
        ("model w.locality --skeleton bst -o bst", "the model would replace the input bst"),
        ("model w.locality --machine m.toml -o ./m.toml", "the model would replace the input ./m.toml"),
        ("model w.locality --check e.json -o e.json", "the model would replace the input e.json"),
        ("model w.locality -o .", "cannot write the model: . is a folder"),
        ("calibrate -o w.locality", "the calibration would replace the profile w.locality"),
        ("calibrate -o notes", "the calibration would replace notes, which `calibrate` did not write"),
        ("calibrate -o .", "cannot write the calibration: . is a folder"),
        ("report w.locality --report other.locality", "would replace the profile other.locality"),
        ("report w.locality --format html --report other.locality", "would replace the profile other"),
        ("export w.locality --to folded -o other.locality", "the export would replace the profile other"),
        ("diff w.locality w.locality -o other.locality", "the comparison would replace the profile other"),
        ("exact --report other.locality -- true", "the report would replace the profile other.locality"),
    ] {
        let (status, errors) = run(dir, &line.split(' ').collect::<Vec<_>>());
        assert_eq!(status, 2, "{line}: {errors}");
        assert!(errors.contains(said) && errors.trim_end().lines().count() == 1, "{line}: {errors}");
    }
    assert_eq!(bytes(), before);
    assert!(!dir.join(format!("{other}.old")).exists());
}

#[test]
fn the_page_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let profile = locality_model::testing::loops::windowed();
    locality_profile::write(&folder.path().join("w.locality"), &profile, None).unwrap();
    let (status, errors) = run(folder.path(), &["export", "w.locality", "--to", "pprof", "-o", "/dev/full"]);
    assert_eq!(status, 1, "{errors}");
    assert!(errors.contains("cannot write the export to /dev/full"), "{errors}");
}

#[test]
fn wrong_use_is_refused_before_a_run() {
    let folder = tempfile::tempdir().unwrap();
    for (line, said) in [
        (&["exact", "--function", "", "--", "touch", "ran"][..], "--function has an empty name"),
        (&["--heap", "probes", "--", "touch", "ran"], "write --heap=probes, with an equals sign"),
        (&["report", "w.locality", "--top", "0"], "1 or more"),
    ] {
        let (status, errors) = run(folder.path(), line);
        assert!(status == 2 && errors.contains(said), "{line:?}: {status} {errors}");
    }
    assert!(!folder.path().join("ran").exists());
}
