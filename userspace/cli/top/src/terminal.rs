//! The terminal: keys, signals, drawing; given back at each end but SIGKILL.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{self, TryRecvError};
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::draw::draw;
use crate::{Snapshot, View};

/// Longest wait for a key before a look at signals and new numbers.
const LOOK: Duration = Duration::from_millis(200);
/// A signal asked for the end.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Why the table ended early.
#[derive(Debug)]
pub enum Error {
    /// The terminal cannot be read or drawn on.
    Terminal(io::Error),
    /// Numbers no longer come, with the reason.
    Feed(String),
}

impl std::fmt::Display for Error {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Terminal(error) => write!(to, "the terminal cannot be used: {error}"),
            Self::Feed(why) => to.write_str(why),
        }
    }
}

impl std::error::Error for Error {}

extern "C" fn note(_: i32) {
    IS_ENDING.store(true, SeqCst);
}

/// Makes signals end the loop, which then gives the terminal back.
fn listen() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        let handler: extern "C" fn(i32) = note;
        // SAFETY: the handler stores into an atomic alone, which is allowed in a handler.
        unsafe { libc::signal(signal, handler as *const () as libc::sighandler_t) };
    }
}

/// Shows a view until a key or a signal ends it. `feed` is the sender of new numbers, or of the reason
/// of an end.
///
/// # Errors
/// The terminal fails, or numbers no longer come.
pub fn follow(mut view: View, feed: &mpsc::Receiver<Result<Snapshot, String>>) -> Result<(), Error> {
    listen();
    // The terminal is given back in a panic too, by the hook that this installs.
    let mut terminal = ratatui::try_init().map_err(Error::Terminal)?;
    let ended = turn(&mut terminal, &mut view, feed);
    let restored = ratatui::try_restore().map_err(Error::Terminal);
    ended.and(restored)
}

fn turn(
    terminal: &mut ratatui::DefaultTerminal,
    view: &mut View,
    feed: &mpsc::Receiver<Result<Snapshot, String>>,
) -> Result<(), Error> {
    while !IS_ENDING.load(SeqCst) {
        loop {
            match feed.try_recv() {
                Ok(Ok(snapshot)) => view.take(snapshot),
                Ok(Err(why)) => return Err(Error::Feed(why)),
                Err(TryRecvError::Empty) => break,
                // The last numbers stay until a key.
                Err(TryRecvError::Disconnected) if view.is_over() => break,
                Err(TryRecvError::Disconnected) => {
                    return Err(Error::Feed("the numbers stopped: `-v` says more".to_owned()));
                }
            }
        }
        terminal.draw(|frame| draw(frame, view)).map_err(Error::Terminal)?;
        match event::poll(LOOK) {
            Ok(false) => {}
            Ok(true) => match event::read() {
                Ok(Event::Key(key)) if key.kind != KeyEventKind::Release && view.press(key) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::Terminal(error)),
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::Terminal(error)),
        }
    }
    Ok(())
}
