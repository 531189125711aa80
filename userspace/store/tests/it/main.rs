//! Tests of the profile file through its public interface, on real files.

#[cfg(test)]
mod common;
#[cfg(test)]
mod damaged;
#[cfg(test)]
mod documented;
#[cfg(test)]
mod kill;
#[cfg(test)]
mod mount;
#[cfg(test)]
mod places;
#[cfg(test)]
mod round_trip;
