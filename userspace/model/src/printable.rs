//! Names come from the traced programs: command lines, threads, symbols, debug information. Whoever
//! wrote these may have put escape sequences of terminals into them.

use super::{Object, Profile};

impl Profile {
    /// Writes control characters of all names out, as `\u{1b}` or `\n`.
    pub fn make_printable(&mut self) {
        let Profile { run, threads, modules, frames, objects, records, fields, notices, .. } = self;
        let frames = frames.iter_mut().flat_map(|frame| {
            [&mut frame.function, &mut frame.file, &mut frame.unknown].into_iter().flatten()
        });
        let threads = threads
            .iter_mut()
            .flat_map(|thread| [Some(&mut thread.name), thread.not_held.as_mut()].into_iter().flatten());
        let objects = objects.iter_mut().flat_map(names);
        let modules = modules.iter_mut().map(|module| &mut module.path);
        let records = records.iter_mut().map(|record| &mut record.name);
        let fields = fields.iter_mut().flat_map(|field| [Some(&mut field.path), field.type_name.as_mut()]);
        let excluded = run.excluded.iter_mut().map(|(pattern, _)| pattern);
        let all = threads.chain(frames).chain(objects).chain(modules).chain(records).chain(notices);
        let all = all.chain(fields.flatten());
        for text in all.chain([&mut run.command]).chain(&mut run.sources.heap).chain(excluded) {
            if text.contains(char::is_control) {
                *text = printable(text);
            }
        }
    }
}

fn names(object: &mut Object) -> impl Iterator<Item = &mut String> {
    let Object { name, type_name, declared, function, unknown, .. } = object;
    let declared = declared.as_mut().map(|(file, _)| file);
    [Some(name), type_name.as_mut(), declared, function.as_mut(), unknown.as_mut()].into_iter().flatten()
}

/// A text without control characters: each is written out, as `\u{1b}` or `\n`.
pub fn printable(text: &str) -> String {
    let mut written = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match character.is_control() {
            true => written.extend(character.escape_default()),
            false => written.push(character),
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Frame;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        let mut profile = Profile::default();
        profile.run.command = "sh\u{1b}]0;pwn\u{7}\n-c 'äöü'".to_owned();
        profile.frames.push(Frame { function: Some("f\u{9b}31m".to_owned()), ..Frame::default() });
        profile.make_printable();
        assert_eq!(profile.run.command, "sh\\u{1b}]0;pwn\\u{7}\\n-c 'äöü'");
        assert_eq!(profile.frames[0].function.as_deref(), Some("f\\u{9b}31m"));
    }
}
