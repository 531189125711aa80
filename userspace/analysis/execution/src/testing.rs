//! A file with one function, for tests.

use crate::observed::{At, Binaries, FunctionBytes};

/// The code of the function `f` at 1000.
pub(crate) struct One(pub &'static [u8]);

impl Binaries for One {
    fn files(&self) -> Vec<(String, String)> {
        vec![("a".to_owned(), "00".to_owned())]
    }

    fn function(&self, at: At) -> Option<FunctionBytes> {
        (0x1000..0x1000 + self.0.len() as u64).contains(&at.1).then(|| FunctionBytes {
            name: "f".to_owned(),
            symbol: None,
            start: 0x1000,
            bytes: self.0.to_vec(),
        })
    }

    fn stub(&self, _: At) -> Option<String> {
        None
    }
}
