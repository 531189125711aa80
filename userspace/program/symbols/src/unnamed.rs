//! Notices about names missing because of a file that ended the symboliser process.

use std::collections::BTreeMap;

use crate::isolated::{Unnamed, unnamed};

/// One sentence for each way in which the process ended, for a trace and an exact run.
pub fn missing_names() -> Vec<String> {
    sentences(unnamed())
}

fn sentences(unnamed: Vec<Unnamed>) -> Vec<String> {
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut last = None;
    for Unnamed { path, how } in unnamed {
        match path {
            Some(path) => files.entry(how).or_default().push(path),
            None => last = Some(how),
        }
    }
    let sentence = |(how, files): (String, Vec<String>)| {
        format!(
            "Names are missing for {}: the symboliser process, which read the file, {how}.",
            files.join(", ")
        )
    };
    let mut sentences: Vec<String> = files.into_iter().map(sentence).collect();
    sentences.extend(last.map(|how| {
        format!(
            "Names are missing for code that was met later: the symboliser process {how}, and no other \
             was started."
        )
    }));
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_is_one_sentence() {
        let lost = |path: &str, how: &str| Unnamed { path: Some(path.into()), how: how.into() };
        let unnamed = vec![
            lost("/bin/a", "ended by SIGKILL"),
            lost("/bin/b", "ended by SIGKILL"),
            lost("/bin/c", "did not answer within 10 s, so it was ended"),
            Unnamed { path: None, how: "ended 8 times".into() },
        ];
        let sentences = sentences(unnamed);
        assert_eq!(sentences.len(), 3);
        assert!(sentences[0].contains("/bin/c: the symboliser process, which read the file, did not answer"));
        assert!(
            sentences[1]
                .ends_with("/bin/a, /bin/b: the symboliser process, which read the file, ended by SIGKILL.")
        );
        assert!(sentences[2].ends_with("the symboliser process ended 8 times, and no other was started."));
    }
}
