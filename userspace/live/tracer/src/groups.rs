//! Which group a sample belongs to: container, unit, program file and name of its process.
//!
//! A process is looked up (`locality_kernel::group`) when its first sample is read, and again when it
//! became another program or moved to another cgroup. Sources of error: a process that ended before its
//! first sample was read has the group of another of its name in its cgroup, or its name alone.

use std::collections::HashMap;

use locality_kernel::group::look_up;
use locality_model::{Group, GroupId};

/// Most groups of one trace, because programs choose their names.
const MOST: usize = 1024;

/// The groups met so far.
#[derive(Debug, Default)]
pub struct Groups {
    known: HashMap<Group, GroupId>,
    /// By process: the cgroup at its last sample, and the group.
    of_process: HashMap<u32, (u64, GroupId)>,
    /// By cgroup and name of the process: the group of one that was looked up.
    of_cgroup: HashMap<(u64, String), GroupId>,
}

impl Groups {
    /// The group of a process with a sampled thread in this cgroup (by inode number), and the
    /// group's data at its first use. `name`: of a thread of the process, if nothing else is known
    /// any more.
    pub fn meet(&mut self, pid: u32, cgroup: u64, name: &str) -> (GroupId, Option<Group>) {
        if let Some((_, known)) = self.of_process.get(&pid).filter(|(before, _)| *before == cgroup) {
            return (*known, None);
        }
        let (id, new) = match look_up(pid) {
            Some(found) => {
                let comm = found.comm.clone();
                let (id, new) = self.intern(found);
                if self.of_cgroup.len() < MOST {
                    self.of_cgroup.insert((cgroup, comm), id);
                }
                (id, new)
            }
            // The process has ended: another process of this name in its cgroup stands for it.
            None => match self.of_cgroup.get(&(cgroup, name.to_owned())) {
                Some(alike) => (*alike, None),
                None => self.intern(Group { comm: name.to_owned(), ..Group::default() }),
            },
        };
        self.of_process.insert(pid, (cgroup, id));
        (id, new)
    }

    fn intern(&mut self, group: Group) -> (GroupId, Option<Group>) {
        let group = match self.known.len() >= MOST && !self.known.contains_key(&group) {
            true => Group { comm: "(others)".to_owned(), ..Group::default() },
            false => group,
        };
        let next = GroupId(self.known.len() as u32);
        match self.known.get(&group) {
            Some(id) => (*id, None),
            None => {
                self.known.insert(group.clone(), next);
                (next, Some(group))
            }
        }
    }

    /// The process ended, or runs another program.
    pub fn forget(&mut self, pid: u32) {
        self.of_process.remove(&pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_have_groups_and_no_more_than_so_many() {
        let mut groups = Groups::default();
        let own = std::process::id();
        let (id, new) = groups.meet(own, 7, "x");
        let group = new.unwrap();
        assert!(!group.comm.is_empty() && group.program.starts_with('/'), "{group:?}");
        assert_eq!(groups.meet(own, 7, "x"), (id, None));
        assert_eq!(groups.meet(own, 8, "x"), (id, None), "another cgroup, looked up again");
        let (gone, new) = groups.meet(0x3fff_fff0, 7, "gone");
        assert_eq!(new.unwrap(), Group { comm: "gone".to_owned(), ..Group::default() });
        assert_eq!(
            groups.meet(0x3fff_fff1, 7, &group.comm),
            (id, None),
            "one of the name in the cgroup is known"
        );
        assert!(groups.meet(0x3fff_fff2, 9, &group.comm).1.is_some(), "none in that cgroup");
        groups.forget(0x3fff_fff0);
        assert_eq!(groups.meet(0x3fff_fff0, 7, "gone"), (gone, None));
        let all = (0..2 * MOST).map(|n| groups.intern(Group { comm: n.to_string(), ..Group::default() }).0);
        assert_eq!(all.max(), Some(GroupId(MOST as u32)), "the last is all others'");
    }
}
