//! Messages between agent and exporter: a letter, a length of four bytes, and the bytes.

use std::io::{self, Read, Write};

/// The agent's last rollup and counters.
pub(crate) const METRICS: u8 = b'M';
/// A question for a profile, or the profile.
pub(crate) const PROFILE: u8 = b'P';
/// Refusal of a profile, with a sentence.
pub(crate) const REFUSED: u8 = b'R';
/// Refusal of a profile of an unknown group, with a sentence.
pub(crate) const NO_GROUP: u8 = b'G';

/// Longest message of the agent.
pub(crate) const LONGEST: usize = 32 << 20;
/// Longest message of the exporter.
pub(crate) const LONGEST_QUESTION: usize = 1 << 10;

const HEAD: usize = 5;

/// Sends a message.
pub(crate) fn send(to: &mut impl Write, kind: u8, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut head = vec![kind];
    head.extend(length.to_le_bytes());
    to.write_all(&head)?;
    to.write_all(bytes)
}

/// Messages from a non-blocking stream.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    received: Vec<u8>,
    longest: usize,
}

impl Frames {
    /// For messages up to a length.
    pub(crate) fn up_to(longest: usize) -> Self {
        Self { received: Vec::new(), longest }
    }

    /// Reads the bytes available; returns complete messages.
    ///
    /// # Errors
    /// The peer has ended, or sends too long a message.
    pub(crate) fn take(&mut self, from: &mut impl Read) -> io::Result<Vec<(u8, Vec<u8>)>> {
        let mut chunk = [0; 16 << 10];
        let mut whole = Vec::new();
        loop {
            match from.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.received.extend_from_slice(chunk.get(..n).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(whole),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            while let Some(message) = self.next()? {
                whole.push(message);
            }
        }
    }

    fn next(&mut self) -> io::Result<Option<(u8, Vec<u8>)>> {
        let Some((head, rest)) = self.received.split_first_chunk::<HEAD>() else { return Ok(None) };
        let [kind, length @ ..] = *head;
        let length = u32::from_le_bytes(length) as usize;
        if length > self.longest {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let Some(bytes) = rest.get(..length) else { return Ok(None) };
        let message = (kind, bytes.to_vec());
        self.received.drain(..HEAD + length);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn messages_come_whole_whatever_the_pieces() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let mut frames = Frames::up_to(10);
        assert!(frames.take(&mut far).unwrap().is_empty());
        let mut bytes = Vec::new();
        send(&mut bytes, b'a', b"hello").unwrap();
        send(&mut bytes, b'b', b"").unwrap();
        let mut got = Vec::new();
        for byte in bytes {
            near.write_all(&[byte]).unwrap();
            got.extend(frames.take(&mut far).unwrap());
        }
        assert_eq!(got, [(b'a', b"hello".to_vec()), (b'b', Vec::new())]);
        send(&mut near, b'a', &[0; 11]).unwrap();
        assert_eq!(frames.take(&mut far).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(near);
        let end = Frames::up_to(10).take(&mut far).unwrap_err();
        assert!(matches!(end.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData));
    }
}
