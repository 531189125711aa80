//! Processes that are not seized for a while, because a debugger may want them.

use std::collections::HashSet;

use locality_kernel::proc;

/// Why such a thread is not stopped.
pub const ASIDE: &str = "left to a debugger";

/// Whose processes a debugger may want.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Root's debugger may trace anybody.
    Anybody,
    /// The processes of one user.
    User(u32),
}

impl Whose {
    /// Whether this user's debugger may trace a process, as far as the users say (`ptrace(2)`, "Ptrace
    /// access mode checking").
    pub fn may_trace(self, pid: u32) -> bool {
        match self {
            Self::Anybody => true,
            Self::User(user) => proc::status(pid).is_ok_and(|status| status.uid == user),
        }
    }
}

/// Processes that are not seized.
#[derive(Debug, Clone, Default)]
pub struct Aside {
    /// By number.
    pub pids: HashSet<u32>,
    /// And all of somebody's.
    pub whose: Option<Whose>,
}

impl Aside {
    /// Whether a process is left to a debugger.
    pub fn has(&self, pid: u32) -> bool {
        self.pids.contains(&pid) || self.whose.is_some_and(|whose| whose.may_trace(pid))
    }

    /// Adds processes. Of two users the later counts, and anybody more than one user.
    pub fn add(&mut self, more: Self) {
        self.pids.extend(more.pids);
        self.whose = match (self.whose, more.whose) {
            (Some(Whose::Anybody), _) | (_, Some(Whose::Anybody)) => Some(Whose::Anybody),
            (before, after) => after.or(before),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_left_to_debuggers_adds_up() {
        let own = std::process::id();
        let user = proc::status(own).unwrap().uid;
        let mut aside = Aside { pids: HashSet::from([7]), whose: None };
        assert!(aside.has(7) && !aside.has(own));
        aside.add(Aside { pids: HashSet::from([8]), whose: Some(Whose::User(user)) });
        assert!(aside.has(7) && aside.has(8) && aside.has(own));
        aside.add(Aside { pids: HashSet::new(), whose: Some(Whose::Anybody) });
        aside.add(Aside { pids: HashSet::new(), whose: Some(Whose::User(user.wrapping_add(1))) });
        assert_eq!(aside.whose, Some(Whose::Anybody));
    }
}
