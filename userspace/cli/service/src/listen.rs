//! Listeners of the exporter: an address, or a socket in the file system.

use std::fmt;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use locality_units::parse::WrongUse;

/// Longest path of a socket (`unix(7)`), without the last byte.
const LONGEST: usize = 107;
/// Mode of a socket: owner and group may connect.
const MODE: u32 = 0o660;

/// A place to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// Address and port.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:").or_else(|| text.starts_with('/').then_some(text)) {
            let path = PathBuf::from(path);
            return match path.as_os_str().as_bytes().len() {
                0 => Err("name the socket, as in unix:/run/locality.sock".to_owned()),
                1..=LONGEST => Ok(Self::Unix(path)),
                n => Err(format!("a socket's path has at most {LONGEST} bytes, and this one has {n}")),
            };
        }
        let text = text.replacen("localhost:", "127.0.0.1:", 1);
        text.parse().map(Self::Tcp).map_err(|_| {
            "write ADDRESS:PORT, as in 127.0.0.1:9955 or [::1]:9955, or unix:PATH for a socket".to_owned()
        })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Listening sockets for the exporter.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    pub tcp: Option<TcpListener>,
    pub unix: Option<UnixListener>,
    /// Whether the address is a loopback address.
    pub is_loopback: bool,
}

/// Checks the places, before any effect.
///
/// # Errors
/// Two of a kind, or an address of a network without `anywhere`.
pub(crate) fn check(places: &[Listen], anywhere: bool) -> Result<(), WrongUse> {
    let tcp = || places.iter().filter(|place| matches!(place, Listen::Tcp(_)));
    if tcp().count() > 1 || places.len() - tcp().count() > 1 {
        return Err(WrongUse("--listen takes one address and one socket at most".to_owned()));
    }
    if let Some(Listen::Tcp(address)) = tcp().next()
        && !address.ip().is_loopback()
        && !anywhere
    {
        return Err(WrongUse(format!(
            "{address} can be reached from other machines: listen on 127.0.0.1, or add --listen-anywhere, \
             and have a firewall or a proxy say who may connect"
        )));
    }
    Ok(())
}

/// Listens.
///
/// # Errors
/// A place is taken, or the system refuses.
pub(crate) fn open(places: &[Listen]) -> Result<Listeners> {
    let mut found = Listeners { is_loopback: true, ..Listeners::default() };
    for place in places {
        match place {
            Listen::Tcp(address) => {
                found.is_loopback = address.ip().is_loopback();
                let listener = TcpListener::bind(address).with_context(|| {
                    format!("cannot listen on {address}: name another port with --listen")
                })?;
                listener.set_nonblocking(true)?;
                found.tcp = Some(listener);
            }
            Listen::Unix(path) => {
                let about = fs::symlink_metadata(path);
                let is_socket = about.as_ref().is_ok_and(|file| file.file_type().is_socket());
                if about.is_ok() && !is_socket {
                    let what = if path.is_dir() { "folder" } else { "file" };
                    bail!(WrongUse(format!(
                        "{} is a {what}, not a socket: name another path with --listen",
                        path.display()
                    )));
                }
                if is_socket && UnixStream::connect(path).is_err() {
                    // Left by a killed agent.
                    let _ = fs::remove_file(path);
                } else if is_socket {
                    bail!("another program listens on {}: name another socket with --listen", path.display());
                }
                let listener = UnixListener::bind(path).with_context(|| {
                    format!("cannot listen on {}: name another socket with --listen", path.display())
                })?;
                fs::set_permissions(path, fs::Permissions::from_mode(MODE))
                    .with_context(|| format!("cannot protect {}", path.display()))?;
                listener.set_nonblocking(true)?;
                found.unix = Some(listener);
            }
        }
    }
    Ok(found)
}

/// Removes the sockets created.
pub(crate) fn remove(places: &[Listen]) {
    for place in places {
        if let Listen::Unix(path) = place {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_or_refused_in_a_sentence() {
        assert_eq!("127.0.0.1:9955".parse(), Ok(Listen::Tcp("127.0.0.1:9955".parse().unwrap())));
        assert_eq!("localhost:1".parse(), Ok(Listen::Tcp("127.0.0.1:1".parse().unwrap())));
        assert_eq!("unix:/run/a".parse(), Ok(Listen::Unix("/run/a".into())));
        assert_eq!("/run/a".parse(), Ok(Listen::Unix("/run/a".into())));
        for wrong in ["", "9955", ":9955", "host:1", "1.2.3.4", "unix:", "127.0.0.1:99999"] {
            assert!(wrong.parse::<Listen>().is_err(), "{wrong}");
        }
        assert!(format!("/{}", "x".repeat(200)).parse::<Listen>().unwrap_err().contains("107"));
    }

    #[test]
    fn other_machines_are_let_in_on_purpose_only() {
        let anywhere = ["0.0.0.0:9955".parse::<Listen>().unwrap()];
        assert!(check(&anywhere, false).unwrap_err().to_string().contains("--listen-anywhere"));
        assert!(check(&anywhere, true).is_ok());
        let two = ["127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()];
        assert!(check(&two, false).is_err());
        assert!(check(&["127.0.0.1:1".parse().unwrap(), "/run/x".parse().unwrap()], false).is_ok());
    }

    #[test]
    fn taken_places_are_named_and_stale_sockets_are_replaced() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = Listen::Tcp(taken.local_addr().unwrap());
        assert!(format!("{:#}", open(&[place]).unwrap_err()).contains("another port"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let place = [Listen::Unix(path.clone())];
        let first = open(&place).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert!(format!("{:#}", open(&place).unwrap_err()).contains("another program"));
        drop(first);
        open(&place).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a file").unwrap();
        assert!(open(&place).unwrap_err().to_string().contains("is a file, not a socket") && path.exists());
    }
}
