//! Messages between tracer and symboliser process: each follows a length, through a socket.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use serde::{Deserialize, Serialize};

use super::Wanted;
use crate::frame::{SourceFrame, Unknown};

/// The tracer asks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// A module by number, without an answer. Descriptors come with the message:
    /// of the file, unless `bytes` are sent, and of the root directory, if opened.
    Module { number: u32, path: String, root: Vec<u8>, bytes: Option<Vec<u8>> },
    /// Frames at these addresses of a module.
    Frames(u32, Vec<u64>),
    /// Start of the function around this address.
    Start(u32, u64),
}

/// The symboliser answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) said: Said,
    /// CPU time of the process so far.
    pub(super) cpu_ns: u64,
    /// Unreadable pages found by the process until now.
    pub(super) truncated: u64,
}

/// The message.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// To [`Ask::Frames`], for each address, innermost first.
    Frames(Vec<Vec<Part>>),
    /// To [`Ask::Start`].
    Start(Option<u64>),
}

/// Data of a frame beyond its module.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) function: Option<String>,
    pub(super) file: Option<String>,
    pub(super) line: Option<u32>,
    pub(super) inlined: bool,
    pub(super) unknown: Option<Unknown>,
}

impl From<SourceFrame> for Part {
    fn from(frame: SourceFrame) -> Self {
        let SourceFrame { function, file, line, inlined, unknown, .. } = frame;
        Self { function, file, line, inlined, unknown }
    }
}

impl Said {
    /// Whether the message answers `wanted`.
    pub(super) fn fits(&self, wanted: &Wanted<'_>) -> bool {
        match (self, wanted) {
            (Self::Frames(frames), Wanted::Frames(addresses)) => frames.len() == addresses.len(),
            (Self::Start(_), Wanted::Start(_)) => true,
            _ => false,
        }
    }
}

/// Longest message; the frames of one request have a thousandth of that.
pub(super) const MOST_BYTES: usize = 64 << 20;
/// A length from here on is no length: the process ends by the signal of the lowest byte.
pub(super) const DYING: u32 = 0xffff_ff00;

/// A message with its length before it.
pub(super) fn packed(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let bytes = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other);
    let mut bytes = bytes?;
    let length = u32::try_from(bytes.len() - 4).ok().filter(|length| *length as usize <= MOST_BYTES);
    let length = length.ok_or(io::ErrorKind::InvalidData)?;
    bytes.splice(..4, length.to_le_bytes());
    Ok(bytes)
}

/// Descriptors that come with a message at most.
const MOST_DESCRIPTORS: usize = 2;

/// Room for the control message, aligned as the kernel requires.
#[repr(C, align(8))]
struct Control([u8; 32]);

fn header(part: &mut libc::iovec, control: &mut Control, length: usize) -> libc::msghdr {
    // SAFETY: all-zero bytes are a valid header.
    let mut header = unsafe { std::mem::zeroed::<libc::msghdr>() };
    (header.msg_iov, header.msg_iovlen) = (part, 1);
    if length > 0 {
        (header.msg_control, header.msg_controllen) = (control.0.as_mut_ptr().cast(), length);
    }
    header
}

/// Sends bytes, and descriptors with the first of them; returns how many bytes went. Never waits.
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8], with: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let with = with.get(..MOST_DESCRIPTORS).unwrap_or(with);
    let size = size_of_val(with) as u32;
    let mut control = Control([0; 32]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: computes a size.
    let space = if with.is_empty() { 0 } else { (unsafe { libc::CMSG_SPACE(size) }) as usize };
    let message = header(&mut part, &mut control, space);
    if !with.is_empty() {
        // SAFETY: the control buffer has room for one message of two descriptors, and a set length.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const message);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(size) as usize;
            let to = libc::CMSG_DATA(first).cast::<RawFd>();
            for (index, fd) in with.iter().enumerate() {
                to.add(index).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: header, bytes and control buffer are live; the kernel reads the bytes only.
    match unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) } {
        sent @ 0.. => Ok(sent as usize),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Receives the available bytes, up to `into`'s length, with their descriptors. `Ok((0, _))`: the
/// other end is gone.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    wait: bool,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = Control([0; 32]);
    let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let mut message = header(&mut part, &mut control, size_of::<Control>());
    let flags = libc::MSG_CMSG_CLOEXEC | if wait { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: header, buffer and control buffer are live.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    let mut descriptors = Vec::new();
    // SAFETY: the kernel filled in the control buffer and its length.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if !first.is_null() {
        // SAFETY: not null, hence a pointer to a whole header in our buffer.
        let (level, kind, length) = unsafe { ((*first).cmsg_level, (*first).cmsg_type, (*first).cmsg_len) };
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: computes a size.
            let data = length.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
            for index in 0..data / size_of::<RawFd>() {
                // SAFETY: the message has at least `index + 1` new descriptors, owned by us.
                descriptors.push(unsafe {
                    let from = libc::CMSG_DATA(first).cast::<RawFd>().add(index);
                    OwnedFd::from_raw_fd(from.read_unaligned())
                });
            }
        }
    }
    Ok((got, descriptors))
}
