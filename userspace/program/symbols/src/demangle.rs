//! Names as people write them. Names of Swift, D and OCaml stay mangled.

/// Demangles Rust and C++ names; others are returned as they are. What a compiler or linker put
/// after the name (`.isra.0`, `@plt`) stays, and `thread_local!` variables of Rust are called as in
/// the source.
pub fn demangle(name: &str) -> String {
    let plain = demangled(name);
    if plain != name || !is_mangled(name) {
        return thread_local_name(plain);
    }
    // `f.isra.0`, `f@plt`: the part before is a name.
    let end = name.find(['.', '@']).unwrap_or(name.len());
    let (stem, rest) = name.split_at(end);
    format!("{}{rest}", thread_local_name(demangled(stem)))
}

/// The function that a compiler took a region out of that threads run, by the name that the
/// compiler gave the region: GCC's `f._omp_fn.0`, clang's `f.omp_outlined` and, before
/// version 17, `.omp_outlined.`, without a function (empty then), `__omp_offloading_…_f_l12`,
/// flang's `f..omp_par`. `None` for every other name. Mangled as in `name`.
pub fn parallel_region(name: &str) -> Option<&str> {
    if let Some(rest) = name.strip_prefix("__omp_offloading_") {
        // Numbers of device and file, in hexadecimal.
        let mut parts = rest.splitn(3, '_').skip(2);
        return parts.next()?.rsplit_once("_l").map(|(function, _)| function);
    }
    let marks = ["._omp_fn.", ".omp_outlined", "..omp_par", "._omp_outlined"];
    marks.iter().find_map(|mark| name.split_once(mark)).map(|(function, _)| function)
}

/// A parallel region by function and start.
pub fn region_name(function: &str, place: Option<(&str, u32)>) -> String {
    let function = short_name(function);
    let place = place.map(|(file, line)| format!(", {}:{line}", file.rsplit('/').next().unwrap_or(file)));
    let place = place.unwrap_or_default();
    let space = if function.is_empty() { "" } else { " " };
    format!("{function}{space}(parallel loop{place})")
}

/// `thread_local!` puts the variable into a closure of a constant of the name that the source has.
fn thread_local_name(name: String) -> String {
    let marks = ["::{{constant}}", "::{K#", "::{constant#", "::__getit", "::{{closure}}", "::{closure#"];
    let inside = ["__RUST_STD_INTERNAL", "::__getit::"].iter().any(|mark| name.contains(mark));
    match marks.iter().filter_map(|mark| name.find(mark)).min() {
        // Closures around the variable belong to its path: only the last constant is the macro's.
        Some(first) if inside => {
            let constant = marks.iter().take(4).filter_map(|mark| name.rfind(mark)).max();
            name.get(..constant.unwrap_or(first)).unwrap_or(&name).to_owned()
        }
        _ => name,
    }
}

/// A C++ function without its parameters; other names demangled.
fn short_name(name: &str) -> String {
    let options = cpp_demangle::DemangleOptions::default().no_params().no_return_type();
    let mut bounded = Bounded(String::new());
    if name.starts_with("_Z")
        && name.len() <= MANGLED_BYTES
        && let Ok(symbol) = cpp_demangle::Symbol::new(name)
        && symbol.structured_demangle(&mut bounded, &options).is_ok()
    {
        return bounded.0;
    }
    demangle(name)
}

fn demangled(name: &str) -> String {
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

/// Longer names stay mangled, as do names with a demangled form above
/// [`DEMANGLED_BYTES`]: back references in a name may make the length grow exponentially.
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

    /// What `thread_local!` made of variables, by the compilers of several years.
    #[test]
    fn thread_local_variables_of_rust_are_called_as_in_the_source() {
        for mangled in [
            "_RNvNCNKNvCs7D66P91j4pS_5kinds3OWN0s_023___RUST_STD_INTERNAL_VAL",
            "_RNvNCNKNvCs7D66P91j4pS_5kinds3OWN0023___RUST_STD_INTERNAL_VAL",
            "_ZN5kinds3OWN7__getit5__KEY17h0123456789abcdefE",
            "_ZN5kinds3OWN29_$u7b$$u7b$constant$u7d$$u7d$28_$u7b$$u7b$closure$u7d$$u7d$3VAL17h0123456789abcdefE",
        ] {
            let inside = mangled.replace("$7d$3VAL", "$7d$23__RUST_STD_INTERNAL_VAL");
            let inside = inside.replace("$u7d$3VAL", "$u7d$23__RUST_STD_INTERNAL_VAL");
            assert_eq!(demangle(&inside), "kinds::OWN", "{inside}");
        }
        let within = "_RNvNCNKNvNCNvCs7D66P91j4pS_5kinds4main03OWN0s_023___RUST_STD_INTERNAL_VAL";
        assert_eq!(demangle(within), "kinds::main::{closure#0}::OWN");
    }

    #[test]
    fn parallel_regions_by_the_names_that_compilers_make() {
        let function =
            |name| parallel_region(name).map(|function| region_name(function, Some(("/a/b.cc", 7))));
        let of = |name: &str| format!("{name}(parallel loop, b.cc:7)");
        for (name, wanted) in [
            ("relax._omp_fn.0", "relax "),
            ("_ZL5relaxPdi._omp_fn.12", "relax "),
            ("relax._omp_fn.0.constprop.1", "relax "),
            ("relax.omp_outlined", "relax "),
            ("relax.omp_outlined_debug__.3", "relax "),
            ("_Z5relaxPdi.omp_outlined.3", "relax "),
            (".omp_outlined.", ""),
            (".omp_outlined._debug__.2", ""),
            ("__omp_offloading_801_2a_relax_l5", "relax "),
            ("__omp_offloading_801_2a__Z7relax_lPd_l5_debug__", "relax_l "),
            ("relax_..omp_par", "relax_ "),
        ] {
            assert_eq!(function(name), Some(of(wanted)), "{name}");
        }
        for name in ["relax", "omp_fn", "omp_get_thread_num", "__omp_offloading_", "relax.cold"] {
            assert_eq!(parallel_region(name), None, "{name}");
        }
        assert_eq!(region_name("relax", None), "relax (parallel loop)");
    }

    #[test]
    fn languages() {
        assert_eq!(demangle("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
        assert_eq!(demangle("_RNvCskwGfYPst2Cb_3foo16example_function"), "foo::example_function");
        assert_eq!(demangle("_Z3fooIiET_S0_"), "int foo<int>(int)");
        assert_eq!(demangle("qsort"), "qsort");
        assert_eq!(demangle("_ZN5space12_GLOBAL__N_1L4hereE"), "space::(anonymous namespace)::here");
        assert_eq!(demangle("_Znonsense"), "_Znonsense");
        assert_eq!(demangle("_Znwm@plt"), "operator new(unsigned long)@plt");
        assert_eq!(demangle("f.cold@1"), "f.cold@1");
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
