//! An OpenTelemetry Collector: its address, and a profile sent to it.
//!
//! OTLP over HTTP, binary: <https://opentelemetry.io/docs/specs/otlp/#otlphttp>. One request with gzip, one
//! connection, HTTP without TLS: a Collector on the same machine encrypts for others.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Port of OTLP over HTTP.
const PORT: u16 = 4318;
/// Path of the signal below the address.
const SIGNAL: &str = "/v1development/profiles";
/// Time for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Time for the request and the answer.
const EXCHANGE: Duration = Duration::from_secs(30);
/// Most bytes read of an answer.
const ANSWER: usize = 64 << 10;

/// The address of a Collector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collector {
    /// Name or address, without brackets.
    host: String,
    port: u16,
    /// Path before the path of the signal; empty or with a leading slash.
    path: String,
}

impl FromStr for Collector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || "write http://HOST[:PORT], as in http://127.0.0.1:4318".to_owned();
        if text.starts_with("https://") {
            return Err(
                "https is not spoken: name a Collector on this machine, as in http://127.0.0.1:4318, \
                        which speaks TLS with others"
                    .to_owned(),
            );
        }
        let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
        let is_plain = |c: char| c.is_ascii_graphic() && !"@?#\\\"<>".contains(c);
        if !rest.chars().all(is_plain) {
            return Err(wrong());
        }
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (host, port) = match authority.strip_prefix('[').and_then(|six| six.split_once(']')) {
            Some((host, rest)) => (host, rest),
            None => authority.find(':').map_or((authority, ""), |at| authority.split_at(at)),
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => PORT,
            Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?,
            None => return Err(wrong()),
        };
        if host.is_empty() {
            return Err(wrong());
        }
        let path = path.trim_end_matches('/').trim_end_matches(SIGNAL);
        Ok(Self { host: host.to_owned(), port, path: path.to_owned() })
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.path)
    }
}

/// The fate of a profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Sent {
    /// Accepted.
    Accepted,
    /// Not accepted, and no second attempt would help; with the reason.
    Rejected(String),
    /// The Collector asks for a later attempt, or does not answer; with the reason.
    Later(String),
}

impl Collector {
    fn authority(&self) -> String {
        let is_address = self.host.contains(':');
        match is_address {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// Sends a gzipped `ExportProfilesServiceRequest`.
    pub(crate) fn send(&self, body: &[u8]) -> Sent {
        match self.exchange(body) {
            Ok(answer) => understood(&answer),
            Err(error) => Sent::Later(format!("{self} does not answer: {error}")),
        }
    }

    fn exchange(&self, body: &[u8]) -> io::Result<Vec<u8>> {
        let mut failed = io::Error::from(io::ErrorKind::NotFound);
        let addresses = (self.host.as_str(), self.port).to_socket_addrs()?;
        let mut connected = None;
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => {
                    connected = Some(stream);
                    break;
                }
                Err(error) => failed = error,
            }
        }
        let mut stream = connected.ok_or(failed)?;
        let until = Instant::now() + EXCHANGE;
        stream.set_write_timeout(Some(EXCHANGE))?;
        let head = format!(
            "POST {}{SIGNAL} HTTP/1.1\r\nHost: {}\r\nUser-Agent: locality-bpf/{}\r\n\
             Content-Type: application/x-protobuf\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            self.path,
            self.authority(),
            env!("CARGO_PKG_VERSION"),
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        // A Collector may answer, and close, before the end of a body that it does not take.
        let written = stream.write_all(body);
        let mut answer = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut chunk) {
                Ok(n) if n > 0 && answer.len() < ANSWER => {
                    answer.extend_from_slice(chunk.get(..n).unwrap_or_default());
                    if is_whole(&answer) {
                        return Ok(answer);
                    }
                }
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if !answer.is_empty() => break,
                Err(error) => return written.and(Err(error)),
            }
        }
        if answer.is_empty() {
            written?;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(answer)
    }
}

/// Length of the head of an answer, its status, and the length of the body if the head has one.
fn head(answer: &[u8]) -> Option<(usize, u16, Option<usize>)> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = response.parse(answer).ok()? else { return None };
    let header = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let body = header.and_then(|header| std::str::from_utf8(header.value).ok()?.trim().parse().ok());
    Some((length, response.code?, body))
}

fn is_whole(answer: &[u8]) -> bool {
    head(answer).is_some_and(|(length, _, body)| body.is_some_and(|body| answer.len() - length >= body))
}

/// The fate of a profile after an answer. Retryable statuses are those of the specification ("Retryable
/// Response Codes").
fn understood(answer: &[u8]) -> Sent {
    let Some((length, status, _)) = head(answer) else {
        return Sent::Rejected("the answer is not HTTP: is this the port of OTLP over HTTP?".to_owned());
    };
    let body = answer.get(length..).unwrap_or_default();
    match status {
        200..=299 => match rejected(body) {
            Some((0, _)) | None => Sent::Accepted,
            Some((n, why)) => Sent::Rejected(format!("the Collector rejected {n} profiles: {why}")),
        },
        404 => Sent::Rejected(format!(
            "status 404: the Collector takes no profiles at {SIGNAL}; start it with \
             `--feature-gates=service.profilesSupport` and a pipeline of profiles"
        )),
        429 | 502 | 503 | 504 => Sent::Later(format!("status {status}")),
        _ => Sent::Rejected(format!("status {status}")),
    }
}

/// `partial_success` of an `ExportProfilesServiceResponse`: the number of rejected profiles, and the reason.
fn rejected(body: &[u8]) -> Option<(u64, String)> {
    let partial = fields(body).into_iter().find_map(|(field, value)| (field == 1).then_some(value))?;
    let Value::Bytes(partial) = partial else { return None };
    let (mut n, mut why) = (0, String::new());
    for (field, value) in fields(&partial) {
        match (field, value) {
            (1, Value::Number(value)) => n = value,
            (2, Value::Bytes(text)) => {
                why = String::from_utf8_lossy(&text).chars().filter(|c| !c.is_control()).take(200).collect();
            }
            _ => {}
        }
    }
    Some((n, why))
}

enum Value {
    Number(u64),
    Bytes(Vec<u8>),
}

/// Integers and bytes of a message of protocol buffers, up to its end or the first unknown encoding.
fn fields(mut message: &[u8]) -> Vec<(u64, Value)> {
    let mut found = Vec::new();
    while let Some(tag) = varint(&mut message) {
        let value = match tag & 7 {
            0 => varint(&mut message).map(Value::Number),
            2 => varint(&mut message).and_then(|length| {
                let (bytes, rest) = message.split_at_checked(usize::try_from(length).ok()?)?;
                message = rest;
                Some(Value::Bytes(bytes.to_vec()))
            }),
            _ => None,
        };
        let Some(value) = value else { break };
        found.push((tag >> 3, value));
    }
    found
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn addresses_are_read_or_refused_with_the_fix() {
        let shown = |text: &str| text.parse::<Collector>().map(|collector| collector.to_string());
        assert_eq!(shown("http://127.0.0.1:4318").unwrap(), "http://127.0.0.1:4318");
        assert_eq!(shown("http://otel").unwrap(), "http://otel:4318");
        assert_eq!(shown("http://[::1]:99/otlp/").unwrap(), "http://[::1]:99/otlp");
        assert_eq!(shown("http://a/v1development/profiles").unwrap(), "http://a:4318");
        assert!(shown("https://a").unwrap_err().contains("http://127.0.0.1:4318"));
        for wrong in
            ["", "a", "127.0.0.1:4318", "http://", "http://:1", "http://a:0", "http://a:x", "http://a b"]
        {
            assert!(shown(wrong).unwrap_err().contains("http://HOST"), "{wrong}");
        }
        for wrong in ["http://u:p@a", "http://a?x", "http://a\r\nX: y", "http://[::1]x"] {
            assert!(shown(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn answers_are_understood() {
        let answer = |status: &str, body: &[u8]| {
            let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len());
            understood(&[head.as_bytes(), body].concat())
        };
        assert_eq!(answer("200", b""), Sent::Accepted);
        // partial_success without a rejected profile, which is a warning.
        assert_eq!(answer("200", &[10, 3, 18, 1, b'w']), Sent::Accepted);
        let Sent::Rejected(why) = answer("200", &[10, 5, 8, 2, 18, 1, b'w']) else { panic!() };
        assert_eq!(why, "the Collector rejected 2 profiles: w");
        assert!(matches!(answer("503", b""), Sent::Later(_)) && matches!(answer("429", b""), Sent::Later(_)));
        assert!(matches!(answer("400", b""), Sent::Rejected(_)));
        assert!(matches!(answer("404", b""), Sent::Rejected(why) if why.contains("profilesSupport")));
        assert!(matches!(understood(b"SSH-2.0"), Sent::Rejected(_)));
        // Broken messages of protocol buffers end quietly.
        for body in [&[10u8, 200][..], &[0xff; 12], &[13, 1, 2, 3, 4], &[10, 2, 8]] {
            assert_eq!(answer("200", body), Sent::Accepted);
        }
    }

    #[test]
    fn a_silent_port_and_a_closed_one_are_for_later() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let collector = Collector {
            host: "127.0.0.1".to_owned(),
            port: listener.local_addr().unwrap().port(),
            path: String::new(),
        };
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut received = Vec::new();
            while !received.ends_with(b"body") {
                let mut chunk = [0; 512];
                let n = stream.read(&mut chunk).unwrap();
                received.extend_from_slice(&chunk[..n]);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
            drop(listener);
            String::from_utf8(received).unwrap()
        });
        assert_eq!(collector.send(b"the body"), Sent::Accepted);
        let request = server.join().unwrap();
        assert!(request.starts_with("POST /v1development/profiles HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("\r\nContent-Length: 8\r\n"), "{request}");
        assert!(matches!(collector.send(b"x"), Sent::Later(_)));
    }
}
