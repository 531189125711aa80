//! Messages of a service to systemd (`sd_notify(3)`): ready, ends, or lives.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// The connection to systemd, if present.
#[derive(Debug)]
pub(crate) struct Notify {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// Interval between signs of life.
    every: Option<Duration>,
    last: Instant,
}

impl Notify {
    /// From the environment of the process.
    pub(crate) fn from_environment() -> Self {
        let own = std::process::id().to_string();
        let is_ours = std::env::var("WATCHDOG_PID").map_or(true, |pid| pid == own);
        let every = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
        Self {
            socket: socket(),
            every: every.filter(|_| is_ours).map(|us: u64| Duration::from_micros(us / 3)),
            last: Instant::now(),
        }
    }

    /// Sends a state. A missing receiver is no error.
    pub(crate) fn say(&self, state: &str) {
        if let Some((socket, address)) = &self.socket {
            let _ = socket.send_to_addr(state.as_bytes(), address);
        }
    }

    /// Sends a sign of life, as often as required.
    pub(crate) fn live(&mut self) {
        if self.every.is_some_and(|every| self.last.elapsed() >= every) {
            self.last = Instant::now();
            self.say("WATCHDOG=1");
        }
    }
}

fn socket() -> Option<(UnixDatagram, SocketAddr)> {
    let name = std::env::var_os("NOTIFY_SOCKET")?;
    let address = match name.as_bytes() {
        [b'@', abstract_name @ ..] => SocketAddr::from_abstract_name(abstract_name),
        _ => SocketAddr::from_pathname(&name),
    };
    Some((UnixDatagram::unbound().ok()?, address.ok()?))
}
