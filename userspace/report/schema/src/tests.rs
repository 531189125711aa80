//! The reference is what the types say.

mod page;
