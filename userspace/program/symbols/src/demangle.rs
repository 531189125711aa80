//! Names as people write them. Not here: Swift, D, OCaml; their names stay mangled.

/// Demangles Rust and C++ names; others are returned as they are.
pub fn demangle(name: &str) -> String {
    // Rust's older names look like C++ but for the hash at their end.
    if (!name.starts_with("_ZN") || name.contains("17h"))
        && let Ok(rust) = rustc_demangle::try_demangle(name)
    {
        // The alternate form leaves out the hash.
        return format!("{rust:#}");
    }
    let mut bounded = Bounded(String::new());
    if name.starts_with("_Z")
        && name.len() <= MANGLED_BYTES
        && let Ok(symbol) = cpp_demangle::Symbol::new(name)
        && symbol.structured_demangle(&mut bounded, &cpp_demangle::DemangleOptions::default()).is_ok()
    {
        return bounded.0;
    }
    name.to_owned()
}

/// Longer names stay mangled, as do those whose demangled form is longer than [`DEMANGLED_BYTES`]:
/// a name may repeat parts of itself, so its length may grow exponentially.
const MANGLED_BYTES: usize = 64 << 10;
const DEMANGLED_BYTES: usize = 256 << 10;

struct Bounded(String);

impl std::fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if self.0.len() + text.len() > DEMANGLED_BYTES {
            return Err(std::fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// True when the name has the marks of C++ or Rust.
pub(crate) fn is_mangled(name: &str) -> bool {
    name.starts_with("_Z") || name.starts_with("_R")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of a substitution.
    fn to_36(number: u32) -> String {
        let digit = |value: u32| char::from_digit(value, 36).unwrap().to_ascii_uppercase();
        if number < 36 {
            digit(number).into()
        } else {
            format!("{}{}", digit(number / 36), digit(number % 36))
        }
    }

    #[test]
    fn languages() {
        assert_eq!(demangle("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
        assert_eq!(demangle("_RNvCskwGfYPst2Cb_3foo16example_function"), "foo::example_function");
        assert_eq!(demangle("_Z3fooIiET_S0_"), "int foo<int>(int)");
        assert_eq!(demangle("qsort"), "qsort");
        assert_eq!(demangle("_ZN5space12_GLOBAL__N_1L4hereE"), "space::(anonymous namespace)::here");
        assert_eq!(demangle("_Znonsense"), "_Znonsense");
        // Each parameter is a pointer to a function that takes the one before twice: 2^40 of the first.
        let mut growing = "_Z1fPFiiiE".to_owned();
        for number in 0..40 {
            let before = if number == 0 { "S0_".to_owned() } else { format!("S{}_", to_36(2 * number)) };
            growing += &format!("PFi{before}{before}E");
        }
        assert!(demangle(&growing).len() <= DEMANGLED_BYTES);
        let long = format!("_Z{}{}", MANGLED_BYTES, "x".repeat(MANGLED_BYTES));
        assert_eq!(demangle(&long), long);
    }
}
