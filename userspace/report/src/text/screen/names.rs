//! Names of functions, files and objects in little room: template arguments and parameters go first, then
//! outer namespaces; what is still too long loses its end. No name loses its middle.

use crate::schema::place::Place;

/// Least room for a function's name.
const LEAST_NAME: usize = 6;

/// Cuts the end off, with an ellipsis in its place.
pub fn cut(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let head: String = text.chars().take(room.saturating_sub(1)).collect();
    format!("{}…", head.trim_end())
}

/// A sentence in the middle of another: its first letter is small, unless the word has further capitals.
pub fn uncapitalised(sentence: &str) -> String {
    let mut letters = sentence.chars();
    match letters.next() {
        Some(first) if letters.clone().next().is_some_and(|next| !next.is_uppercase()) => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => sentence.to_owned(),
    }
}

/// The name of a function, a type or an object, in at most so many characters.
pub fn name(full: &str, room: usize) -> String {
    let fits = |text: &str| text.chars().count() <= room;
    if fits(full) {
        return full.to_owned();
    }
    if let Some((module, address)) = of_address(full) {
        let left = room.saturating_sub(address.chars().count());
        return if left >= 2 { format!("{}{address}", cut(module, left)) } else { cut(full, room) };
    }
    let mut short = without_groups(&without_groups(full, '<', '>'), '(', ')');
    while !fits(&short) {
        match short.trim_start_matches("…::").split_once("::") {
            Some((_, inner)) if !inner.is_empty() => {
                let marked = format!("…::{inner}");
                short = if inner.contains("::") || fits(&marked) { marked } else { inner.to_owned() };
            }
            _ => break,
        }
    }
    cut(&short, room)
}

/// Module and address of a function without a name: "libz.so.1" and "+0x1f3a0", or " at 0x55fc2c1c8378".
fn of_address(name: &str) -> Option<(&str, &str)> {
    let at = name.rfind("0x")?;
    let digits = name.get(at + 2..)?;
    if digits.is_empty() || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
        return None;
    }
    let gap = ["+", " at "].into_iter().find(|gap| name.get(..at).is_some_and(|head| head.ends_with(gap)))?;
    name.split_at_checked(at - gap.len())
}

/// Replaces what stands in brackets by an ellipsis, but not the brackets of operators, and not of a name
/// such as `(anonymous namespace)`.
fn without_groups(text: &str, open: char, close: char) -> String {
    let mut short = String::new();
    let mut depth = 0_usize;
    let mut inside = String::new();
    let mut before = ' ';
    for c in text.chars() {
        let is_operator = short.ends_with("operator") || (open == '<' && short.ends_with("operator<"));
        let is_arrow = c == '>' && before == '-';
        if depth == 0 && c == open && is_operator {
            short.push(c);
        } else if c == open && !(is_operator && depth == 0) {
            depth += 1;
            if depth > 1 {
                inside.push(c);
            }
        } else if c == close && depth > 0 && !is_arrow {
            depth -= 1;
            if depth > 0 {
                inside.push(c);
            } else {
                let is_kept = inside.is_empty() || inside == "anonymous namespace" || inside == "…";
                short.push(open);
                short.push_str(if is_kept { &inside } else { "…" });
                short.push(close);
                inside.clear();
            }
        } else if depth > 0 {
            inside.push(c);
        } else {
            short.push(c);
        }
        before = c;
    }
    // Brackets that never close are part of a name that was cut before.
    if depth > 0 {
        short.push(open);
        short.push_str(&inside);
    }
    short
}

/// "particles.cpp:31", the file without its folders; without debug information the address in the file.
pub fn location(place: &Place) -> Option<String> {
    match (place.file.as_deref(), place.line, place.address) {
        (Some(file), Some(line), _) => Some(format!("{}:{line}", base(file))),
        (Some(file), None, _) => Some(base(file).to_owned()),
        (None, _, Some(address)) => Some(format!("{address:#x}")),
        (None, _, None) => None,
    }
}

/// The last part of a path.
pub fn base(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}

/// "integrate particles.cpp:31" in at most so many characters: the name goes before the place, and the file
/// before the line.
pub fn place(of: &Place, room: usize) -> String {
    let library = of.via.as_deref().map(|via| format!(" in {}", name(via, 16))).unwrap_or_default();
    let room_for_both = room.saturating_sub(library.chars().count());
    if !library.is_empty() && room_for_both >= 2 * LEAST_NAME {
        let own = Place { via: None, ..of.clone() };
        return format!("{}{library}", place(&own, room_for_both));
    }
    match (of.function.as_deref(), location(of)) {
        (None, None) => cut("[unknown]", room),
        (Some(function), None) => name(function, room),
        (None, Some(location)) => cut(&location, room),
        (Some(function), Some(location)) => {
            let line = of.line.map(|line| format!(":{line}"));
            let tails = [Some(location.clone()), line].into_iter().flatten();
            let fitting = tails.filter_map(|tail| {
                let left = room.checked_sub(tail.chars().count() + 1)?;
                (left >= LEAST_NAME.min(function.chars().count())).then_some((tail, left))
            });
            // The whole name with the line alone reads better than half of it with the file.
            let mut fitting = fitting.map(|(tail, left)| (format!("{} {tail}", name(function, left)), left));
            match (fitting.next(), fitting.next()) {
                (Some((first, left)), Some((second, _))) if first.contains('…') && left < 2 * LEAST_NAME => {
                    second
                }
                (Some((first, _)), _) => first,
                _ => cut(&location, room),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_go_on_after_a_label() {
        for (sentence, within) in [
            ("Both sides must be safe.", "both sides must be safe."),
            ("LLC misses differ.", "LLC misses differ."),
            ("`x` is shared.", "`x` is shared."),
            ("", ""),
        ] {
            assert_eq!(uncapitalised(sentence), within);
        }
    }

    #[test]
    fn arguments_go_first_then_outer_namespaces_then_the_end() {
        let long = "std::map<std::string, std::vector<int> >::insert(std::pair<int, int> const&)";
        assert_eq!(name(long, 100), long);
        assert_eq!(name(long, 30), "std::map<…>::insert(…)");
        assert_eq!(name(long, 19), "…::insert(…)");
        assert_eq!(name(long, 10), "insert(…)");
        assert_eq!(name(long, 6), "inser…");
        let rust = "<alloc::vec::Vec<T> as core::iter::Extend<T>>::extend";
        assert_eq!(name(rust, 20), "<…>::extend");
        let closure = "hashbrown::raw::RawTable<(u64, Order)>::reserve_rehash::{{closure}}";
        assert_eq!(name(closure, 44), "…::RawTable<…>::reserve_rehash::{{closure}}");
        assert_eq!(name("a_function_without_any_namespace", 12), "a_function_…");
        // Without a symbol, the address is the name.
        assert_eq!(name("liblzma.so.5.4.1+0x15ae0", 20), "liblzma.so.…+0x15ae0");
        assert_eq!(name("stripped at 0x55fc2c1c8378", 22), "str… at 0x55fc2c1c8378");
        assert_eq!(name("liblzma.so.5.4.1+0x15ae0", 9), "liblzma.…");
    }

    #[test]
    fn brackets_of_operators_stay() {
        assert_eq!(name("ns::Key::operator<(ns::Key const&) const", 30), "ns::Key::operator<(…) const");
        assert_eq!(name("ns::out::operator<<(ns::Key const&, int)", 25), "ns::out::operator<<(…)");
        assert_eq!(name("ns::Pointer::operator->(long long argument)", 26), "ns::Pointer::operator->(…)");
        assert_eq!(name("(anonymous namespace)::walk(Tree<int>&, int)", 29), "…::walk(…)");
        assert_eq!(
            name("(anonymous namespace)::walk(Tree<int>&, int)", 33),
            "(anonymous namespace)::walk(…)"
        );
        assert_eq!(name("cut<off::before<the::end", 30), "cut<off::before<the::end");
        assert_eq!(name("f<Fn(int) -> long>::g_long_name", 20), "f<…>::g_long_name");
    }

    #[test]
    fn places_keep_their_line() {
        let of = |function: &str| Place {
            file: Some("/home/user/src/particles.cpp".to_owned()),
            function: Some(function.to_owned()),
            line: Some(31),
            ..Place::default()
        };
        assert_eq!(place(&of("integrate"), 40), "integrate particles.cpp:31");
        assert_eq!(place(&of("integrate"), 20), "integrate :31");
        assert_eq!(place(&of("f"), 18), "f particles.cpp:31");
        assert_eq!(place(&of("a_long_function_name"), 32), "a_long_functio… particles.cpp:31");
        assert_eq!(place(&of("a_long_function_name"), 23), "a_long_function_na… :31");
        assert_eq!(place(&Place { function: None, ..of("") }, 40), "particles.cpp:31");
        assert_eq!(
            place(&Place { via: Some("memcpy".to_owned()), ..of("copy") }, 40),
            "copy particles.cpp:31 in memcpy"
        );
        assert_eq!(place(&Place::default(), 40), "[unknown]");
        let stripped = Place { address: Some(0x1f3a0), file: None, line: None, ..of("sqlite3VdbeExec") };
        assert_eq!(place(&stripped, 40), "sqlite3VdbeExec 0x1f3a0");
        for room in 0..60 {
            assert!(place(&of("a_long_function_name"), room).chars().count() <= room.max(1));
        }
    }
}
