//! Requests and answers of HTTP/1.1 for scrapers: one GET a connection.

use std::net::IpAddr;

/// Longest request with headers, in bytes.
pub(crate) const LONGEST: usize = 4096;
const HEADERS: usize = 32;

/// Subject of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    Metrics,
    /// A profile of one group, or of every group, over the last `seconds`.
    Profile {
        group: Option<String>,
        seconds: u32,
    },
}

/// Status and reason of a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub status: u16,
    pub why: String,
}

/// Origin of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    /// Through the socket in the file system; the socket's mode grants access.
    Socket,
    /// From a loopback address: a web page may make a browser ask under another host name.
    Loopback,
    /// From anywhere.
    Network,
}

/// Longest time of a profile.
const LONGEST_PROFILE_S: u32 = 24 * 3600;
/// Default time of a profile.
const PROFILE_S: u32 = 300;

fn refuse<T>(status: u16, why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { status, why: why.into() })
}

/// Reads a request; `None` while incomplete.
pub(crate) fn parse(bytes: &[u8], from: From) -> Result<Option<Asked>, Refused> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() >= LONGEST => {
            return refuse(431, format!("a request has at most {LONGEST} bytes"));
        }
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return refuse(431, "too many headers"),
        Err(_) => return refuse(400, "no request of HTTP/1.1"),
    }
    if request.method != Some("GET") {
        return refuse(405, "only GET is answered");
    }
    check_host(&request, from)?;
    let target = request.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    match path {
        "/metrics" => Ok(Some(Asked::Metrics)),
        "/profile" if from == From::Socket => profile(query).map(Some),
        "/profile" => {
            refuse(403, "profiles are served on a socket in the file system only (--listen unix:PATH)")
        }
        _ => refuse(404, "there are /metrics and /profile"),
    }
}

/// Against DNS rebinding: a foreign web page must not read answers for local clients.
fn check_host(request: &httparse::Request<'_, '_>, from: From) -> Result<(), Refused> {
    let mut hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    let (host, more) = (hosts.next(), hosts.next());
    let Some(host) = host.filter(|_| more.is_none()) else {
        // HTTP/1.0 has none.
        return match request.version {
            Some(0) if more.is_none() => Ok(()),
            _ => refuse(400, "a request names one Host"),
        };
    };
    let host = std::str::from_utf8(host.value).unwrap_or_default().trim();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let is_own = name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok();
    match from {
        From::Loopback if !is_own => refuse(421, "the Host of a request is an address or localhost"),
        _ => Ok(()),
    }
}

fn profile(query: &str) -> Result<Asked, Refused> {
    let (mut group, mut seconds) = (None, PROFILE_S);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decode(value).ok_or(()).or_else(|()| refuse(400, "a value is not text"))?;
        match key {
            "group" if !value.is_empty() && value.len() <= 256 => group = Some(value),
            "group" => return refuse(400, "name a group, as /metrics does"),
            "seconds" => match value.parse() {
                Ok(n) if (1..=LONGEST_PROFILE_S).contains(&n) => seconds = n,
                _ => return refuse(400, format!("seconds are 1 to {LONGEST_PROFILE_S}")),
            },
            _ => return refuse(400, "a profile is asked for by group and seconds"),
        }
    }
    Ok(Asked::Profile { group, seconds })
}

/// Percent-encoded text.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
                bytes.push((high * 16 + low) as u8);
            }
            b'+' => bytes.push(b' '),
            _ => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// An answer, whole.
pub(crate) fn answer(status: u16, kind: &str, body: &[u8]) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Error",
    };
    let allow = if status == 405 { "Allow: GET\r\n" } else { "" };
    let mut bytes = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// The answer to a refused request.
pub(crate) fn refusal(refused: &Refused) -> Vec<u8> {
    answer(refused.status, "text/plain; charset=utf-8", format!("{}\n", refused.why).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(text: &str, from: From) -> Result<Option<Asked>, u16> {
        parse(text.as_bytes(), from).map_err(|refused| refused.status)
    }

    #[test]
    fn what_a_scraper_asks_is_understood() {
        let request = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9955\r\nAccept: */*\r\n\r\n";
        for from in [From::Socket, From::Loopback, From::Network] {
            assert_eq!(ask(request, from), Ok(Some(Asked::Metrics)));
        }
        for cut in 1..request.len() {
            assert_eq!(ask(&request[..cut], From::Loopback), Ok(None), "{cut}");
        }
        assert_eq!(ask("GET /metrics HTTP/1.0\r\n\r\n", From::Loopback), Ok(Some(Asked::Metrics)));
        assert_eq!(
            ask("GET /metrics HTTP/1.1\r\nHost: [::1]:1\r\n\r\n", From::Loopback),
            Ok(Some(Asked::Metrics))
        );
        assert_eq!(
            ask("GET /metrics HTTP/1.1\r\nHost: node-3\r\n\r\n", From::Network),
            Ok(Some(Asked::Metrics))
        );
    }

    #[test]
    fn everything_else_is_refused() {
        let host = "Host: localhost\r\n\r\n";
        for (request, status) in [
            (format!("POST /metrics HTTP/1.1\r\n{host}"), 405),
            (format!("HEAD /metrics HTTP/1.1\r\n{host}"), 405),
            (format!("GET / HTTP/1.1\r\n{host}"), 404),
            (format!("GET /metrics/../x HTTP/1.1\r\n{host}"), 404),
            ("GET /metrics HTTP/1.1\r\n\r\n".to_owned(), 400),
            (format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{host}"), 400),
            ("GET /metrics HTTP/1.1\r\nHost: evil.example:9955\r\n\r\n".to_owned(), 421),
            ("GET /metrics HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n".to_owned(), 421),
            (format!("GET /profile HTTP/1.1\r\n{host}"), 403),
            ("\x16\x03\x01\x02".to_owned(), 400),
            ("hello\r\n\r\n".to_owned(), 400),
            (format!("GET /{} HTTP/1.1\r\n", "x".repeat(LONGEST)), 431),
            (format!("GET /metrics HTTP/1.1\r\n{}{host}", "A: b\r\n".repeat(40)), 431),
        ] {
            assert_eq!(ask(&request, From::Loopback), Err(status), "{request:?}");
        }
    }

    #[test]
    fn a_profile_is_of_a_group_and_a_time() {
        let ask =
            |query: &str| ask(&format!("GET /profile{query} HTTP/1.1\r\nHost: x\r\n\r\n"), From::Socket);
        let profile = |group: Option<&str>, seconds| {
            Ok(Some(Asked::Profile { group: group.map(str::to_owned), seconds }))
        };
        assert_eq!(ask(""), profile(None, 300));
        assert_eq!(ask("?group=docker%3A01&seconds=60"), profile(Some("docker:01"), 60));
        assert_eq!(ask("?group=a+b"), profile(Some("a b"), 300));
        for wrong in
            ["?seconds=0", "?seconds=x", "?seconds=999999", "?group=", "?group=%zz", "?x=1", "?group=%ff"]
        {
            assert_eq!(ask(wrong), Err(400), "{wrong}");
        }
    }

    #[test]
    fn answers_have_their_length() {
        let bytes = answer(200, "text/plain", b"abc");
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nabc"), "{text}");
        assert!(text.contains("Content-Length: 3\r\n") && text.contains("Connection: close\r\n"));
        assert!(String::from_utf8(answer(405, "a", b"")).unwrap().contains("Allow: GET\r\n"));
    }
}
