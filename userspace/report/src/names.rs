//! What reports call kinds of objects and places in code.

use locality_estimate::calling_context::{Contexts, PlaceId, base_name, function_name};
use locality_model::{ObjectKind, Profile};
use locality_units::print::shorten;

use super::text::screen::names::name;
use super::tree;

/// Name of a kind in reports: thread-local variables are static ones.
pub(super) fn kind_name(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Static | ObjectKind::ThreadLocal => "static",
        ObjectKind::Stack => "stack",
        ObjectKind::Heap => "heap",
        ObjectKind::Mapped => "mapped",
        ObjectKind::File => "file",
        ObjectKind::Unknown => "unknown",
    }
}

/// Name of a cache for readers: `LLC` for `LL`, the last of several caches in cache use.
pub fn level_label(level: &str) -> &str {
    if level == "LL" { "LLC" } else { level }
}

/// "L2", or "LLC" for the last of several caches.
pub(super) fn numbered_level(level: u8, last: Option<u8>) -> String {
    if level > 1 && Some(level) == last { "LLC".to_owned() } else { format!("L{level}") }
}

/// "malloc" of `__GI___libc_malloc`: a name of the C library's own without its prefixes.
fn plain(function: &str) -> &str {
    let own = function.strip_prefix("__GI_").unwrap_or(function);
    own.strip_prefix("__libc_").filter(|name| !name.starts_with("start")).unwrap_or(own)
}

/// "fill demo.c:31", "main demo.c:12 (in memcpy)".
pub(super) fn place_name(profile: &Profile, contexts: &Contexts, id: PlaceId) -> String {
    let place = contexts.place(id);
    let frame = place.frame.and_then(|frame| profile.frames.get(frame.0 as usize));
    let Some(frame) = frame else { return "unknown".to_owned() };
    let mut text = name(&function_name(profile, frame), 36);
    match (&frame.file, frame.line) {
        (Some(file), Some(line)) => text.push_str(&format!(" {}:{line}", base_name(file))),
        _ if frame.function.is_some() => {
            let location = tree::location(profile, frame, 30);
            // A name with the module needs no reason why the line is missing.
            if !location.is_empty() && !location.starts_with('(') {
                text.push_str(&format!(" {location}"));
            }
        }
        _ => {}
    }
    if let Some(via) = &place.via {
        text.push_str(&format!(" (in {})", shorten(plain(via), 24)));
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn names_of_the_c_library_lose_their_prefixes() {
        let names = ["__GI___libc_malloc", "__libc_calloc", "memcpy", "__libc_start_main_impl"];
        assert_eq!(names.map(plain), ["malloc", "calloc", "memcpy", "__libc_start_main_impl"]);
    }
}
