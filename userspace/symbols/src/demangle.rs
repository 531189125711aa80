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
    if name.starts_with("_Z")
        && let Ok(symbol) = cpp_demangle::Symbol::new(name)
        && let Ok(cpp) = symbol.demangle()
    {
        return cpp;
    }
    name.to_owned()
}

/// True when the name has the marks of C++ or Rust.
pub(crate) fn is_mangled(name: &str) -> bool {
    name.starts_with("_Z") || name.starts_with("_R")
}

#[cfg(test)]
mod tests {
    use super::demangle;

    #[test]
    fn languages() {
        assert_eq!(demangle("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
        assert_eq!(demangle("_RNvCskwGfYPst2Cb_3foo16example_function"), "foo::example_function");
        assert_eq!(demangle("_Z3fooIiET_S0_"), "int foo<int>(int)");
        assert_eq!(demangle("qsort"), "qsort");
        assert_eq!(demangle("_ZN5space12_GLOBAL__N_1L4hereE"), "space::(anonymous namespace)::here");
        assert_eq!(demangle("_Znonsense"), "_Znonsense");
    }
}
