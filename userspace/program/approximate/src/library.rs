//! Functions of the C library that only read and write their arguments' targets: their code has
//! no debug information, and a sample in the code belongs to the objects passed by the caller.
//!
//! The C standard's names and glibc's own; calls that the compiler has renamed (`__memcpy_chk`) are
//! the same functions.

/// Registers of the pointer arguments: numbers in machine
/// code, and whether memory is read through the pointer.
pub(crate) struct Pointers {
    pub(crate) reads: &'static [u8],
    pub(crate) writes: &'static [u8],
}

const RDI: u8 = 7;
const RSI: u8 = 6;

/// `None` for functions that do more, or are not known.
pub(crate) fn pointers(function: &str) -> Option<Pointers> {
    let name = function.trim_start_matches('_').trim_end_matches("_chk");
    let (reads, writes): (&[u8], &[u8]) = match name {
        "memcpy" | "memmove" | "mempcpy" | "memccpy" | "wmemcpy" | "wmemmove" | "strcpy" | "strncpy"
        | "stpcpy" | "stpncpy" | "strlcpy" | "wcscpy" => (&[RSI], &[RDI]),
        "strcat" | "strncat" | "strlcat" => (&[RSI, RDI], &[RDI]),
        "bcopy" => (&[RDI], &[RSI]),
        "memset" | "bzero" | "explicit_bzero" | "wmemset" => (&[], &[RDI]),
        "memcmp" | "bcmp" | "strcmp" | "strncmp" | "strcasecmp" | "strncasecmp" | "strcoll" | "strstr"
        | "strspn" | "strcspn" | "strpbrk" | "wmemcmp" | "wcscmp" => (&[RDI, RSI], &[]),
        "memchr" | "rawmemchr" | "memrchr" | "strlen" | "strnlen" | "strchr" | "strchrnul" | "strrchr"
        | "wcslen" | "wmemchr" | "strtol" | "strtoll" | "strtoul" | "strtoull" | "strtod" | "strtof"
        | "atoi" | "atol" | "atoll" | "atof" => (&[RDI], &[]),
        _ => return None,
    };
    Some(Pointers { reads, writes })
}
