//! Profiles of OpenTelemetry: `ProfilesData` of `opentelemetry/proto/profiles/v1development/profiles.proto`,
//! version 1.10.0: <https://github.com/open-telemetry/opentelemetry-proto/tree/v1.10.0>.
//!
//! The signal is in development: later versions may not read these messages. Bytes of `ProfilesData` and of
//! `ExportProfilesServiceRequest`, the body of a request to a Collector, are the same.
//!
//! Each metric of a table is a profile, because a profile has one type of values. All profiles share a
//! dictionary, whose entries are found by their encoding: equal entries have one number, and 0 is empty.

use locality_findings::Findings;
use locality_model::Profile;

use crate::table::{Column, Frame, Row, Table};
use crate::wire::{Numbered, bytes, fixed64, gzipped, number, packed};
use crate::{End, live};

/// Attributes of a resource, by the names of OpenTelemetry's conventions.
pub type Resource = Vec<(&'static str, String)>;

/// Profiles of one resource: of a program, a container or a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The resource.
    pub resource: Resource,
    /// Call paths.
    pub table: Table,
    /// The column whose profile comes first, as viewers show the first one.
    pub chosen: usize,
    /// Start in nanoseconds since the Unix epoch, and duration in nanoseconds; 0 if unknown.
    pub time: (u64, u64),
}

/// Attributes of a resource with a name alone.
pub fn named(name: &str) -> Resource {
    vec![("service.name", name.to_owned())]
}

/// The part of a live profile; `None` if nothing was measured.
pub fn part(profile: &Profile, findings: &Findings, resource: Resource) -> Option<Part> {
    let table = live::table(profile, findings, End::default());
    let chosen = table.choose(None, "").ok()?;
    Some(Part { resource, table, chosen, time: (profile.run.started_unix_ns, profile.run.wall_ns) })
}

/// The encoded message, gzipped, as the body of a request.
pub fn request(parts: &[Part]) -> Vec<u8> {
    gzipped(&print(parts))
}

/// The encoded message.
pub fn print(parts: &[Part]) -> Vec<u8> {
    let mut dictionary = Dictionary::default();
    let mut out = Vec::new();
    for part in parts {
        let mut resource = Vec::new();
        for (key, value) in &part.resource {
            let mut attribute = Vec::new();
            bytes(&mut attribute, 1, key.as_bytes());
            bytes(&mut attribute, 2, &text(value));
            bytes(&mut resource, 1, &attribute);
        }
        let mut scope = Vec::new();
        bytes(&mut scope, 1, env!("CARGO_PKG_NAME").as_bytes());
        bytes(&mut scope, 2, env!("CARGO_PKG_VERSION").as_bytes());
        let mut scoped = Vec::new();
        bytes(&mut scoped, 1, &scope);
        let columns = part.table.columns.iter().enumerate();
        let (first, rest): (Vec<_>, Vec<_>) = columns.partition(|(at, _)| *at == part.chosen);
        for (at, column) in first.into_iter().chain(rest).filter(|(_, column)| column.total > 0) {
            bytes(&mut scoped, 2, &dictionary.profile(part, at, column));
        }
        let mut of_resource = Vec::new();
        bytes(&mut of_resource, 1, &resource);
        bytes(&mut of_resource, 2, &scoped);
        bytes(&mut out, 1, &of_resource);
    }
    bytes(&mut out, 2, &dictionary.print());
    out
}

/// `AnyValue` of a text.
fn text(value: &str) -> Vec<u8> {
    let mut out = Vec::new();
    bytes(&mut out, 1, value.as_bytes());
    out
}

/// Tables shared by all profiles.
#[derive(Default)]
struct Dictionary {
    strings: Numbered,
    mappings: Numbered,
    functions: Numbered,
    locations: Numbered,
    stacks: Numbered,
    attributes: Numbered,
}

impl Dictionary {
    fn profile(&mut self, part: &Part, at: usize, column: &Column) -> Vec<u8> {
        let mut kind = Vec::new();
        number(&mut kind, 1, self.strings.number(column.metric.to_string()));
        number(&mut kind, 2, self.strings.number(column.unit));
        let mut profile = Vec::new();
        bytes(&mut profile, 1, &kind);
        for row in &part.table.rows {
            let value = row.values.get(at).copied().unwrap_or(0);
            if value > 0 {
                let sample = self.sample(&part.table, row, value);
                bytes(&mut profile, 2, &sample);
            }
        }
        fixed64(&mut profile, 3, part.time.0);
        number(&mut profile, 4, part.time.1);
        profile
    }

    fn sample(&mut self, table: &Table, row: &Row, value: u64) -> Vec<u8> {
        let places: Vec<u64> =
            table.places(&row.path).iter().map(|frames| self.location(table, frames)).collect();
        let mut stack = Vec::new();
        packed(&mut stack, 1, places.into_iter());
        let mut sample = Vec::new();
        number(&mut sample, 1, self.stacks.number(stack));
        let attributes: Vec<u64> = row.labels.iter().map(|(key, value)| self.attribute(key, value)).collect();
        packed(&mut sample, 2, attributes.into_iter());
        packed(&mut sample, 4, std::iter::once(value));
        sample
    }

    fn attribute(&mut self, key: &str, value: &str) -> u64 {
        let mut attribute = Vec::new();
        number(&mut attribute, 1, self.strings.number(format!("locality.{key}")));
        bytes(&mut attribute, 2, &text(value));
        self.attributes.number(attribute)
    }

    fn location(&mut self, table: &Table, frames: &[u32]) -> u64 {
        let frames: Vec<&Frame> =
            frames.iter().filter_map(|frame| table.frames.get(*frame as usize)).collect();
        let mut location = Vec::new();
        if let Some(first) = frames.first() {
            number(&mut location, 1, self.mapping(&first.module));
            number(&mut location, 2, first.address);
        }
        for frame in frames {
            let mut function = Vec::new();
            let name = self.strings.number(&frame.name);
            number(&mut function, 1, name);
            number(&mut function, 2, name);
            number(&mut function, 3, self.strings.number(&frame.file));
            let mut line = Vec::new();
            number(&mut line, 1, self.functions.number(function));
            number(&mut line, 2, u64::from(frame.line));
            bytes(&mut location, 3, &line);
        }
        self.locations.number(location)
    }

    /// The mapping of a module; 0 without one.
    fn mapping(&mut self, module: &str) -> u64 {
        if module.is_empty() {
            return 0;
        }
        let mut mapping = Vec::new();
        // Addresses are file addresses: one range for the whole module.
        number(&mut mapping, 2, u64::MAX);
        number(&mut mapping, 4, self.strings.number(module));
        self.mappings.number(mapping)
    }

    fn print(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.mappings.write(&mut out, 1);
        self.locations.write(&mut out, 2);
        self.functions.write(&mut out, 3);
        // No sample has a link to a trace: the empty link alone.
        Numbered::default().write(&mut out, 4);
        self.strings.write(&mut out, 5);
        self.attributes.write(&mut out, 6);
        self.stacks.write(&mut out, 7);
        out
    }
}
