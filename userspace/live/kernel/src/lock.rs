//! Locks of plain values that threads share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks what threads share; a panic of the other side does not matter for plain values.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
