//! A set of numbers, each with a small number of its own, that is emptied at no cost: windows are
//! read many times a second.

/// Slots at first, a power of two.
const SLOTS: usize = 1024;

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    key: u64,
    /// The filling of the slot; slots of other fillings are empty.
    filling: u32,
    index: u32,
}

/// Keys in order of arrival, found by open addressing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    keys: Vec<u64>,
    filling: u32,
}

impl Table {
    /// Empties it.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.filling = self.filling.wrapping_add(1);
        if self.filling == 0 || self.slots.is_empty() {
            self.renew(self.slots.len().max(SLOTS));
        }
    }

    /// All keys, by index.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// The index of a known key.
    pub fn get(&self, key: u64) -> Option<u32> {
        let slot = self.slots.get(self.find(key))?;
        (slot.filling == self.filling).then_some(slot.index)
    }

    /// The index of a key, added if new.
    pub fn insert(&mut self, key: u64) -> u32 {
        if self.keys.len() * 2 >= self.slots.len() {
            self.renew((self.slots.len() * 2).max(SLOTS));
        }
        let at = self.find(key);
        let (filling, index) = (self.filling, self.keys.len() as u32);
        match self.slots.get_mut(at) {
            Some(slot) if slot.filling != filling => {
                *slot = Slot { key, filling, index };
                self.keys.push(key);
                index
            }
            Some(slot) => slot.index,
            None => index,
        }
    }

    /// Where a key is or would be. Half of the slots at least are empty.
    fn find(&self, key: u64) -> usize {
        let mask = self.slots.len().wrapping_sub(1);
        // Fibonacci hashing: Knuth, The Art of Computer Programming 3, §6.4.
        let mut at = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        while self.slots.get(at).is_some_and(|slot| slot.filling == self.filling && slot.key != key) {
            at = (at + 1) & mask;
        }
        at
    }

    fn renew(&mut self, slots: usize) {
        self.filling = 1;
        self.slots.clear();
        self.slots.resize(slots, Slot::default());
        for index in 0..self.keys.len() {
            let Some(key) = self.keys.get(index).copied() else { break };
            let at = self.find(key);
            if let Some(slot) = self.slots.get_mut(at) {
                *slot = Slot { key, filling: 1, index: index as u32 };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn it_is_a_map() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut table = Table::default();
        for round in 0..40 {
            table.clear();
            let mut truth = BTreeMap::new();
            // Few keys and many, close together and far apart.
            let range = 1 << random.u32(1..63);
            for _ in 0..round * 50 {
                let key = random.u64(0..range);
                assert_eq!(table.get(key), truth.get(&key).copied());
                let next = truth.len() as u32;
                assert_eq!(table.insert(key), *truth.entry(key).or_insert(next));
            }
            let keys: Vec<u64> = table.keys().to_vec();
            assert_eq!(keys.len(), truth.len());
            assert!(keys.iter().zip(0..).all(|(key, index)| truth.get(key) == Some(&index)));
        }
    }

    #[test]
    fn fillings_that_wrap_around_do_no_harm() {
        let mut table = Table::default();
        table.clear();
        table.insert(7);
        table.filling = u32::MAX;
        table.clear();
        assert_eq!((table.get(7), table.insert(8), table.get(8)), (None, 0, Some(0)));
    }
}
