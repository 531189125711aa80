//! Placements of data objects: a list appended by the source, whose events
//! ([`crate::Kind::PLACED`]) mark the begin of each entry's validity.

use crate::arena::Plain;

/// A data object comes to lie at these addresses, in place of whatever lay there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Placement {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// The source's number for the object; 0 for what it cannot name.
    pub object: u32,
    /// Reserved, 0.
    pub reserved: u32,
}

// SAFETY: integers without padding.
unsafe impl Plain for Placement {}
