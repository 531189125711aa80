//! The process that answers requests. Descriptor 0
//! leads to the agent, 1 and 2 are listening sockets.
//!
//! One thread serves every connection. At most [`CONNECTIONS`] are open, each
//! for [`REQUEST`], so slow or broken clients cost bounded memory, and delay
//! no further client. A scrape is answered from text made at the last rollup.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::exposition::{self, CONTENT_TYPE};
use crate::frames::{self, Frames};
use crate::http::{self, Asked, From, LONGEST, Refused};
use crate::listen::Listeners;
use crate::sys::{self, Wait};
use crate::{confine, totals::Exposed};

/// Argument of the exporter.
pub(crate) const ARGUMENT: &str = "__locality-exporter";
/// Connections at a time.
const CONNECTIONS: usize = 8;
/// Time for a request and the answer.
const REQUEST: Duration = Duration::from_secs(5);
/// Time for a profile.
const PROFILE: Duration = Duration::from_secs(60);
/// Limit of bytes read from a client after the answer.
const REST: usize = 1 << 20;
/// How long the agent waits for the exporter to take a message.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Settings {
    agent: u32,
    tcp: bool,
    unix: bool,
    is_loopback: bool,
}

/// A question to the agent for a profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Question {
    pub group: Option<String>,
    pub seconds: u32,
}

/// An exporter, seen from the agent.
#[derive(Debug)]
pub(crate) struct Exporter {
    pub child: Child,
    pub socket: UnixStream,
    frames: Frames,
}

impl Exporter {
    /// Starts an exporter.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn start(listeners: &Listeners) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let settings = Settings {
            agent: std::process::id(),
            tcp: listeners.tcp.is_some(),
            unix: listeners.unix.is_some(),
            is_loopback: listeners.is_loopback,
        };
        let tcp = listeners.tcp.as_ref().map(TcpListener::try_clone).transpose()?;
        let unix = listeners.unix.as_ref().map(UnixListener::try_clone).transpose()?;
        let stdio = |fd: Option<std::os::fd::OwnedFd>| fd.map_or_else(Stdio::null, Stdio::from);
        let child = Command::new("/proc/self/exe")
            .arg0_of("locality-export")
            .arg(ARGUMENT)
            .arg(serde_json::to_string(&settings)?)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(stdio(tcp.map(Into::into)))
            .stderr(stdio(unix.map(Into::into)))
            .spawn()?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { child, socket, frames: Frames::up_to(frames::LONGEST_QUESTION) })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The exporter has ended, or takes no message.
    pub(crate) fn send(&mut self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        frames::send(&mut self.socket, kind, bytes)
    }

    /// Questions received.
    ///
    /// # Errors
    /// The exporter has ended, or sent a forbidden message.
    pub(crate) fn questions(&mut self) -> io::Result<Vec<Question>> {
        self.socket.set_nonblocking(true)?;
        let taken = self.frames.take(&mut self.socket);
        self.socket.set_nonblocking(false)?;
        let mut questions = Vec::new();
        for (kind, bytes) in taken? {
            match serde_json::from_slice(&bytes) {
                Ok(question) if kind == frames::PROFILE => questions.push(question),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(questions)
    }

    /// Ends the exporter.
    pub(crate) fn end(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program's name in lists of processes.
trait Named {
    fn arg0_of(&mut self, name: &str) -> &mut Self;
}

impl Named for Command {
    fn arg0_of(&mut self, name: &str) -> &mut Self {
        std::os::unix::process::CommandExt::arg0(self, name)
    }
}

/// Becomes the exporter; returns the exit status.
pub(crate) fn serve(settings: &str) -> i32 {
    let Ok(settings) = serde_json::from_str::<Settings>(settings) else { return 2 };
    // A message about the failure has no reader; the agent sees the exit.
    if confine::confine(settings.agent).is_err() {
        return 1;
    }
    // SAFETY: the agent opened the three descriptors for
    // the exporter, with no second owner in the process.
    let (agent, tcp, unix) = unsafe {
        (
            UnixStream::from_raw_fd(0),
            settings.tcp.then(|| TcpListener::from_raw_fd(1)),
            settings.unix.then(|| UnixListener::from_raw_fd(2)),
        )
    };
    if agent.set_nonblocking(true).is_err() {
        return 1;
    }
    let Ok(text) = exposition::text(None) else { return 1 };
    let from = if settings.is_loopback { From::Loopback } else { From::Network };
    let server = Server {
        agent,
        frames: Frames::up_to(frames::LONGEST),
        tcp,
        unix,
        from,
        metrics: Rc::from(http::answer(200, CONTENT_TYPE, text.as_bytes())),
        open: Vec::new(),
        is_asking: false,
    };
    server.run()
}

/// A client.
trait Stream: Read + Write + AsFd {
    fn end(&self);
}

impl Stream for TcpStream {
    fn end(&self) {
        let _ = self.shutdown(std::net::Shutdown::Write);
    }
}

impl Stream for UnixStream {
    fn end(&self) {
        let _ = self.shutdown(std::net::Shutdown::Write);
    }
}

enum State {
    /// The request comes in.
    Asking,
    /// The agent makes the profile.
    Waiting,
    /// The answer, and the bytes sent so far.
    Answering(Rc<[u8]>, usize),
    /// The answer is out; bytes of the request thrown away since.
    Ending(usize),
}

struct Connection {
    stream: Box<dyn Stream>,
    from: From,
    until: Instant,
    received: Vec<u8>,
    state: State,
}

struct Server {
    agent: UnixStream,
    frames: Frames,
    tcp: Option<TcpListener>,
    unix: Option<UnixListener>,
    from: From,
    metrics: Rc<[u8]>,
    open: Vec<Connection>,
    /// The agent makes a profile.
    is_asking: bool,
}

impl Server {
    fn run(mut self) -> i32 {
        loop {
            let (is_agent, listens, open) = self.wait();
            if is_agent && self.listen_to_agent().is_err() {
                return 0;
            }
            let now = Instant::now();
            let mut clients = std::mem::take(&mut self.open);
            let mut ready = open.into_iter();
            clients.retain_mut(|client| {
                let is_ready = ready.next().unwrap_or(false);
                let goes_on = !is_ready || self.serve(client);
                goes_on && now < client.until
            });
            self.open.append(&mut clients);
            if listens {
                self.accept();
            }
        }
    }

    /// Waits; returns whether the agent has a message,
    /// whether a client connects, and the clients ready.
    fn wait(&self) -> (bool, bool, Vec<bool>) {
        let mut waits = vec![Wait { fd: self.agent.as_fd(), to_write: false }];
        let tcp = self.tcp.as_ref().map(AsFd::as_fd);
        let unix = self.unix.as_ref().map(AsFd::as_fd);
        let listeners: Vec<BorrowedFd<'_>> = tcp.into_iter().chain(unix).collect();
        waits.extend(listeners.iter().map(|fd| Wait { fd: *fd, to_write: false }));
        // A client that waits for the agent is not polled; the answer reveals a closed connection.
        let mut polled = Vec::new();
        for client in &self.open {
            let to_write = match client.state {
                State::Answering(..) => Some(true),
                State::Asking | State::Ending(_) => Some(false),
                State::Waiting => None,
            };
            polled.push(to_write.is_some());
            waits.extend(to_write.map(|to_write| Wait { fd: client.stream.as_fd(), to_write }));
        }
        let next = self.open.iter().map(|client| client.until).min();
        let timeout = next.map_or(Duration::from_secs(60), |until| {
            until.saturating_duration_since(Instant::now()) + Duration::from_millis(1)
        });
        let mut ready = sys::ready(&waits, timeout).into_iter();
        let agent = ready.next().unwrap_or(false);
        let listens = (0..listeners.len()).fold(false, |any, _| ready.next().unwrap_or(false) || any);
        let open = polled.into_iter().map(|polled| polled && ready.next().unwrap_or(false)).collect();
        (agent, listens, open)
    }

    fn listen_to_agent(&mut self) -> io::Result<()> {
        for (kind, bytes) in self.frames.take(&mut self.agent)? {
            match kind {
                frames::METRICS => {
                    let exposed: Exposed = serde_json::from_slice(&bytes)?;
                    let text = exposition::text(Some(&exposed)).map_err(io::Error::other)?;
                    self.metrics = Rc::from(http::answer(200, CONTENT_TYPE, text.as_bytes()));
                }
                frames::PROFILE => {
                    self.answer_profile(&http::answer(200, "application/octet-stream", &bytes))
                }
                _ => {
                    let why = String::from_utf8_lossy(&bytes).into_owned();
                    let status = if kind == frames::NO_GROUP { 404 } else { 503 };
                    self.answer_profile(&http::refusal(&Refused { status, why }));
                }
            }
        }
        Ok(())
    }

    fn answer_profile(&mut self, answer: &[u8]) {
        self.is_asking = false;
        for client in self.open.iter_mut().filter(|client| matches!(client.state, State::Waiting)) {
            client.state = State::Answering(Rc::from(answer), 0);
            client.until = Instant::now() + REQUEST;
        }
    }

    fn accept(&mut self) {
        for _ in 0..CONNECTIONS {
            let tcp = self.tcp.as_ref().and_then(|listener| listener.accept().ok());
            let new: Option<(Box<dyn Stream>, From)> = match tcp {
                Some((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                    Some((Box::new(stream), self.from))
                }
                _ => match self.unix.as_ref().and_then(|listener| listener.accept().ok()) {
                    Some((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                        Some((Box::new(stream), From::Socket))
                    }
                    _ => None,
                },
            };
            let Some((stream, from)) = new else { return };
            if self.open.len() >= CONNECTIONS {
                // The oldest client without a request makes room.
                let idle = self
                    .open
                    .iter()
                    .enumerate()
                    .filter(|(_, client)| matches!(client.state, State::Asking | State::Ending(_)));
                match idle.min_by_key(|(_, client)| client.until).map(|(index, _)| index) {
                    Some(index) => drop(self.open.swap_remove(index)),
                    None => continue,
                }
            }
            let until = Instant::now() + REQUEST;
            self.open.push(Connection { stream, from, until, received: Vec::new(), state: State::Asking });
        }
    }

    /// Serves a client; false when done.
    fn serve(&mut self, client: &mut Connection) -> bool {
        if matches!(client.state, State::Asking) && !self.receive(client) {
            return false;
        }
        if let State::Answering(answer, sent) = &mut client.state {
            while let Some(rest) = answer.get(*sent..).filter(|rest| !rest.is_empty()) {
                match client.stream.write(rest) {
                    Ok(0) => return false,
                    Ok(n) => *sent += n,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return false,
                }
            }
            client.stream.end();
            client.state = State::Ending(0);
        }
        if let State::Ending(dropped) = &mut client.state {
            // An early close would discard the answer for a client that still writes.
            let mut chunk = [0; 4096];
            loop {
                match client.stream.read(&mut chunk) {
                    Ok(0) => return false,
                    Ok(n) => *dropped += n,
                    Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
                }
                if *dropped > REST {
                    return false;
                }
            }
        }
        true
    }

    /// Reads a part of a request; false when the client is gone.
    fn receive(&mut self, client: &mut Connection) -> bool {
        let mut chunk = [0; 1024];
        loop {
            let room = (LONGEST - client.received.len()).min(chunk.len());
            let parsed = match client.stream.read(chunk.get_mut(..room).unwrap_or_default()) {
                Ok(0) => return false,
                Ok(n) => {
                    client.received.extend_from_slice(chunk.get(..n).unwrap_or_default());
                    http::parse(&client.received, client.from)
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return false,
            };
            let answer: Rc<[u8]> = match parsed {
                Ok(None) => continue,
                Ok(Some(Asked::Metrics)) => Rc::clone(&self.metrics),
                Ok(Some(Asked::Profile { group, seconds })) => match self.ask(group, seconds) {
                    Ok(()) => {
                        client.state = State::Waiting;
                        client.until = Instant::now() + PROFILE;
                        return true;
                    }
                    Err(refused) => Rc::from(http::refusal(&refused)),
                },
                Err(refused) => Rc::from(http::refusal(&refused)),
            };
            client.state = State::Answering(answer, 0);
            return true;
        }
    }

    /// Asks the agent for a profile; one is made at a time.
    fn ask(&mut self, group: Option<String>, seconds: u32) -> Result<(), Refused> {
        let refused = |why: &str| Refused { status: 503, why: why.to_owned() };
        if self.is_asking {
            return Err(refused("another profile is being made: ask again later"));
        }
        let question =
            serde_json::to_vec(&Question { group, seconds }).map_err(|_| refused("no question"))?;
        frames::send(&mut self.agent, frames::PROFILE, &question)
            .map_err(|_| refused("the agent is busy"))?;
        self.is_asking = true;
        Ok(())
    }
}
