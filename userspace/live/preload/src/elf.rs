//! Looks functions up in loaded objects, by the dynamic linker's own tables: `dlsym` may allocate,
//! and may take a lock.

use core::ffi::{CStr, c_char};

/// The beginning of the dynamic linker's record of a loaded object (`struct link_map` of link.h).
#[repr(C)]
pub struct LinkMap {
    /// What is added to the file's addresses.
    pub base: u64,
    /// Path; empty for the program.
    pub name: *const c_char,
    /// Dynamic section.
    pub dynamic: *const Dynamic,
    /// The next object in the order of search.
    pub next: *const LinkMap,
}

/// An entry of a dynamic section.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dynamic {
    /// One of `DT_…`.
    pub tag: u64,
    /// Its value.
    pub value: u64,
}

/// An entry of a symbol table.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

const DT_NULL: u64 = 0;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
/// Of a version, not the default one of the name.
const HIDDEN: u16 = 0x8000;
/// Longest chain that is followed.
const CHAIN_MAX: u32 = 1 << 16;

/// Whether two strings are equal.
///
/// # Safety
/// `a` ends with a zero byte.
unsafe fn is(a: *const u8, b: &[u8]) -> bool {
    let mut at = 0;
    while at < b.len() {
        // SAFETY: no byte after a zero byte is read, for it differs from `b`'s.
        if b.get(at) != Some(unsafe { &*a.add(at) }) {
            return false;
        }
        at += 1;
    }
    // SAFETY: as above.
    (unsafe { *a.add(at) }) == 0
}

/// The hash of `DT_GNU_HASH`.
fn gnu_hash(name: &[u8]) -> u32 {
    name.iter().fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

/// Tables of a loaded object.
struct Tables {
    base: u64,
    symbols: *const Symbol,
    strings: *const u8,
    versions: *const u16,
    gnu_hash: *const u32,
    hash: *const u32,
}

impl LinkMap {
    /// # Safety
    /// A live entry of the dynamic linker's list.
    unsafe fn tables(&self) -> Option<Tables> {
        let (mut symbols, mut strings, mut versions, mut gnu_hash, mut hash) = (0, 0, 0, 0, 0);
        let mut entry = self.dynamic;
        if entry.is_null() {
            return None;
        }
        // SAFETY: a dynamic section ends with an entry of no tag.
        while unsafe { (*entry).tag } != DT_NULL {
            // SAFETY: as above.
            let Dynamic { tag, value } = unsafe { *entry };
            // glibc writes addresses into it; musl, and the kernel's own object, leave the file's.
            let address = if value < self.base { value.wrapping_add(self.base) } else { value };
            match tag {
                DT_HASH => hash = address,
                DT_STRTAB => strings = address,
                DT_SYMTAB => symbols = address,
                DT_GNU_HASH => gnu_hash = address,
                DT_VERSYM => versions = address,
                _ => {}
            }
            // SAFETY: as above.
            entry = unsafe { entry.add(1) };
        }
        (symbols != 0 && strings != 0 && (gnu_hash != 0 || hash != 0)).then_some(Tables {
            base: self.base,
            symbols: symbols as *const Symbol,
            strings: strings as *const u8,
            versions: versions as *const u16,
            gnu_hash: gnu_hash as *const u32,
            hash: hash as *const u32,
        })
    }

    /// The address of a function that the object defines.
    ///
    /// # Safety
    /// A live entry of the dynamic linker's list.
    pub unsafe fn function(&self, name: &[u8]) -> Option<u64> {
        // SAFETY: the caller's promise.
        let tables = unsafe { self.tables() }?;
        // SAFETY: the dynamic linker uses the same tables.
        unsafe { if tables.gnu_hash.is_null() { tables.by_hash(name) } else { tables.by_gnu_hash(name) } }
    }

    /// The last part of its path; empty for the program.
    ///
    /// # Safety
    /// A live entry of the dynamic linker's list.
    pub unsafe fn file_name(&self) -> &[u8] {
        if self.name.is_null() {
            return &[];
        }
        // SAFETY: the dynamic linker's names end with a zero byte.
        let path = unsafe { CStr::from_ptr(self.name) }.to_bytes();
        path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
    }
}

impl Tables {
    /// The symbol's address if it is this function, in its default version.
    unsafe fn take(&self, index: u32, name: &[u8]) -> Option<u64> {
        // SAFETY: the tables' own numbers.
        unsafe {
            let symbol = &*self.symbols.add(index as usize);
            let kind = symbol.info & 15;
            let is_function = kind == STT_FUNC || kind == STT_GNU_IFUNC;
            if symbol.section == 0 || !is_function || !is(self.strings.add(symbol.name as usize), name) {
                return None;
            }
            if !self.versions.is_null() && *self.versions.add(index as usize) & HIDDEN != 0 {
                return None;
            }
            let address = self.base.wrapping_add(symbol.value);
            if kind == STT_GNU_IFUNC {
                let choose: extern "C" fn() -> u64 = core::mem::transmute(address as *const ());
                return Some(choose());
            }
            Some(address)
        }
    }

    unsafe fn by_gnu_hash(&self, name: &[u8]) -> Option<u64> {
        let wanted = gnu_hash(name);
        // SAFETY: the layout of `DT_GNU_HASH`: four words, the filter, the buckets, the chains.
        unsafe {
            let (buckets, first, filter) =
                (*self.gnu_hash, *self.gnu_hash.add(1), *self.gnu_hash.add(2) as usize);
            let heads = self.gnu_hash.add(4 + 2 * filter);
            let chains = heads.add(buckets as usize);
            let mut index = *heads.add(wanted.checked_rem(buckets)? as usize);
            if index < first {
                return None;
            }
            for _ in 0..CHAIN_MAX {
                let hash = *chains.add((index - first) as usize);
                if hash | 1 == wanted | 1
                    && let Some(found) = self.take(index, name)
                {
                    return Some(found);
                }
                if hash & 1 == 1 {
                    return None;
                }
                index = index.wrapping_add(1);
            }
        }
        None
    }

    /// The older table: its hash adds nothing to the name, so all symbols are compared.
    unsafe fn by_hash(&self, name: &[u8]) -> Option<u64> {
        // SAFETY: its second word is the number of symbols.
        let symbols = unsafe { *self.hash.add(1) };
        // SAFETY: the tables' own numbers.
        (1..symbols).find_map(|index| unsafe { self.take(index, name) })
    }
}
