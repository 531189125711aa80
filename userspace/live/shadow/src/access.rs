//! How instructions reach the private copy of memory: in place where an operand lies in one page,
//! by a copy where it crosses into the next.

use locality_stream::Kind;

use crate::alu::cut;
use crate::machine::{Machine, Step, Stopped};
use crate::memory::PAGE;

/// The low 8 bytes, or fewer, at `from`.
///
/// # Safety
/// `size` bytes must be readable there.
#[inline(always)]
pub(crate) unsafe fn peek(from: *const u8, size: u16) -> u64 {
    // SAFETY: as the caller promises.
    unsafe {
        match size {
            1 => u64::from(from.read()),
            2 => u64::from(from.cast::<u16>().read_unaligned()),
            4 => u64::from(from.cast::<u32>().read_unaligned()),
            8.. => from.cast::<u64>().read_unaligned(),
            _ => {
                let mut bytes = [0; 8];
                std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), usize::from(size));
                u64::from_le_bytes(bytes)
            }
        }
    }
}

/// The first byte of an operand's second page, or of the operand where it has but one.
#[inline(always)]
pub(crate) fn second(address: u64, size: u16) -> u64 {
    let last = address.wrapping_add(u64::from(size.max(1)) - 1);
    if address / PAGE == last / PAGE { address } else { last & !(PAGE - 1) }
}

impl Machine<'_> {
    /// Where `size` bytes at `address` may be read: in the page, or a copy where they cross into the next.
    #[inline(always)]
    pub(crate) fn readable(&mut self, address: u64, size: u16) -> Result<*const u8, Stopped> {
        let first = self.pages.read(address, self.memory);
        let first = self.kept(first)?;
        if address % PAGE + u64::from(size) <= PAGE { Ok(first) } else { self.readable_across(address, size) }
    }

    #[cold]
    fn readable_across(&mut self, address: u64, size: u16) -> Result<*const u8, Stopped> {
        let to = self.bounce(address);
        self.copy_in(address, size, to)?;
        Ok(to)
    }

    /// A place of our own, as far from a multiple of 64 as the address, with room for 512 bytes.
    pub(crate) fn bounce(&mut self, address: u64) -> *mut u8 {
        // SAFETY: 63 is within the array.
        unsafe { self.context.bounce.as_mut_ptr().add((address % 64) as usize) }
    }

    /// Copies from the target's memory, across pages too.
    pub(crate) fn copy_in(&mut self, address: u64, size: u16, to: *mut u8) -> Step {
        let mut done = 0_u64;
        while done < u64::from(size) {
            let at = address.wrapping_add(done);
            let from = self.pages.read(at, self.memory);
            let from = self.kept(from)?;
            let piece = (PAGE - at % PAGE).min(u64::from(size) - done);
            // SAFETY: the page has `piece` bytes from there on; the caller's place has room for `size`.
            unsafe { std::ptr::copy_nonoverlapping(from, to.add(done as usize), piece as usize) };
            done += piece;
        }
        Ok(())
    }

    /// Copies into the private copy, across pages too; nothing where a page may not be written.
    pub(crate) fn copy_out(&mut self, address: u64, size: u16, from: *const u8) -> Step {
        let checked = self.pages.write(second(address, size), self.memory);
        self.kept(checked)?;
        let mut done = 0_u64;
        while done < u64::from(size) {
            let at = address.wrapping_add(done);
            let to = self.pages.write(at, self.memory);
            let to = self.kept(to)?;
            let piece = (PAGE - at % PAGE).min(u64::from(size) - done);
            // SAFETY: the page has `piece` bytes from there on, and `from` has `size`.
            unsafe { std::ptr::copy_nonoverlapping(from.add(done as usize), to, piece as usize) };
            done += piece;
        }
        Ok(())
    }

    /// Loads an integer of 1, 2, 4 or 8 bytes. Not an event.
    #[inline(always)]
    pub(crate) fn load(&mut self, address: u64, size: u16) -> Result<u64, Stopped> {
        let from = self.readable(address, size)?;
        // SAFETY: `readable` gave `size` bytes.
        Ok(unsafe { peek(from, size) })
    }

    /// Stores an integer of 1, 2, 4 or 8 bytes. Not an event.
    #[inline(always)]
    pub(crate) fn store(&mut self, address: u64, size: u16, value: u64) -> Step {
        let bytes = value.to_le_bytes();
        if address % PAGE + u64::from(size) > PAGE {
            return self.copy_out(address, size, bytes.as_ptr());
        }
        let to = self.pages.write(address, self.memory);
        let to = self.kept(to)?;
        // SAFETY: the page has `size` bytes from there on.
        unsafe {
            match size {
                1 => to.write(value as u8),
                2 => to.cast::<u16>().write_unaligned(value as u16),
                4 => to.cast::<u32>().write_unaligned(value as u32),
                _ => to.cast::<u64>().write_unaligned(value),
            }
        }
        Ok(())
    }

    /// Loads and tells it.
    #[inline(always)]
    pub(crate) fn load_event(
        &mut self,
        kind: Kind,
        index: u32,
        address: u64,
        size: u16,
    ) -> Result<u64, Stopped> {
        let value = self.load(address, size)?;
        self.record.access(kind, index, address, size, value);
        Ok(value)
    }

    /// Stores and tells it.
    #[inline(always)]
    pub(crate) fn store_event(
        &mut self,
        kind: Kind,
        index: u32,
        address: u64,
        size: u16,
        value: u64,
    ) -> Step {
        self.store(address, size, value)?;
        self.record.access(kind, index, address, size, cut(value, size));
        Ok(())
    }
}
