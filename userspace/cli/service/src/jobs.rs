//! Work on segments, each in a separate process of low
//! priority: a failure is contained, and memory is freed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use locality_exports::{End, Exported, Format, otlp};
use locality_findings::{Findings, why_empty};
use locality_kernel::writing::{say, to_stdout};
use locality_model::merge::Merger;
use locality_model::{Profile, Sample};
use locality_report::json;
use locality_rollup::{By, Keys};
use serde::{Deserialize, Serialize};

use crate::collector::{Collector, Sent};
use crate::{merge, store, sys};

/// Argument of a rollup job.
pub(crate) const ROLLUP: &str = "__locality-rollup";
/// Argument of a job for a group's profile.
pub(crate) const PROFILE: &str = "__locality-profile";
/// Argument of a job that sends a segment to a Collector.
pub(crate) const SEND: &str = "__locality-send";
/// Resources of a sent segment at most; the rest is one resource.
const RESOURCES: usize = 16;
/// Name of the rest.
const REST: &str = "(other groups)";
/// File with the way to make groups.
const NOTED: &str = "groups.json";
/// Memory of a job.
const MEMORY: u64 = 2 << 30;
/// Longest profile.
const LONGEST: usize = 24 << 20;

/// Beginning of the error for an unknown group.
pub(crate) const NO_GROUP: &str = "there is no group";

/// Settings of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub agent: u32,
    /// A segment, or the store.
    pub path: PathBuf,
    pub by: u8,
    pub cgroups: Vec<String>,
    pub group: Option<String>,
    pub seconds: u32,
    pub with_paths: bool,
    pub collector: Option<Collector>,
}

impl Settings {
    fn keys(&self) -> Keys {
        Keys { by: by_number(self.by), cgroups: self.cgroups.clone() }
    }
}

/// Notes in the store how the agent makes groups.
///
/// # Errors
/// The store cannot be written.
pub(crate) fn note_keys(folder: &Path, keys: &Keys) -> Result<()> {
    let noted = serde_json::to_vec(&(number(keys.by), &keys.cgroups))?;
    std::fs::write(folder.join(NOTED), noted).context("cannot write to the store")
}

/// How the agent of a store makes groups.
///
/// # Errors
/// The store has no note.
pub(crate) fn noted_keys(folder: &Path) -> Result<Keys> {
    let noted = std::fs::read(folder.join(NOTED)).context("the agent has not said how it makes groups")?;
    let (by, cgroups) = serde_json::from_slice::<(u8, Vec<String>)>(&noted)?;
    Ok(Keys { by: by_number(by), cgroups })
}

fn by_number(by: u8) -> By {
    [By::Container, By::Unit, By::Exe, By::Comm].into_iter().nth(by.into()).unwrap_or_default()
}

/// Ways to make groups, as a number.
pub(crate) fn number(by: By) -> u8 {
    match by {
        By::Container => 0,
        By::Unit => 1,
        By::Exe => 2,
        By::Comm => 3,
    }
}

fn job(settings: &str, work: impl FnOnce(&Settings) -> Result<Vec<u8>>) -> i32 {
    let Ok(settings) = serde_json::from_str::<Settings>(settings) else { return 2 };
    if !sys::end_with_parent(settings.agent, libc::SIGKILL) {
        return 1;
    }
    sys::be_modest(MEMORY);
    match work(&settings).and_then(|bytes| to_stdout(&bytes)) {
        Ok(()) => 0,
        Err(error) => {
            say(&format!("{error:#}"));
            1
        }
    }
}

/// Prints the rollup of a segment as JSON; returns an exit status.
pub(crate) fn rollup(settings: &str) -> i32 {
    job(settings, |settings| {
        let mut profile = locality_profile::read(&settings.path)?;
        profile.make_printable();
        Ok(serde_json::to_vec(&locality_rollup::of(&profile, &settings.keys()))?)
    })
}

/// Prints a pprof profile of a group; returns an exit status.
pub(crate) fn profile(settings: &str) -> i32 {
    job(settings, pprof)
}

fn pprof(settings: &Settings) -> Result<Vec<u8>> {
    let since = SystemTime::now() - Duration::from_secs(settings.seconds.into());
    let segments = store::segments(&settings.path);
    let keys = settings.keys();
    let mut merger = Merger::default();
    let mut is_known = settings.group.is_none();
    for segment in segments.into_iter().filter(|segment| segment.ended >= since) {
        // A segment removed meanwhile, or damaged, is skipped.
        let Ok(profile) = locality_profile::read(&segment.path) else { continue };
        let is_asked: Vec<bool> = profile
            .groups
            .iter()
            .map(|group| settings.group.as_ref().is_none_or(|asked| keys.of(group) == *asked))
            .collect();
        is_known |= is_asked.contains(&true);
        let everything = settings.group.is_none();
        merge::add(&mut merger, &segment.path, profile, |sample| {
            everything || sample.group.is_some_and(|group| is_asked.get(group.0 as usize) == Some(&true))
        })?;
    }
    if merger.parts() == 0 {
        bail!("no segment has ended in the last {} s: ask for more seconds", settings.seconds);
    }
    if let Some(group) = settings.group.as_ref().filter(|_| !is_known) {
        bail!("{NO_GROUP} {group} in the last {} s: /metrics names the groups", settings.seconds);
    }
    let profile = for_others(merger, settings);
    if profile.samples.is_empty() {
        bail!("the group has no samples in the last {} s: ask for more seconds", settings.seconds);
    }
    if let Some(why) = why_empty(&profile) {
        bail!("{why}");
    }
    let findings = Findings::of(&profile);
    let report = json::report(&profile, &findings);
    let options = locality_exports::Options { to: Format::Pprof, metric: None, end: End::Reuse };
    match locality_exports::live(&profile, &findings, &report, &options).context("no profile")? {
        Exported::File(bytes) if bytes.len() <= LONGEST => Ok(bytes),
        _ => bail!("the profile is too large: ask for one group, or fewer seconds"),
    }
}

/// Sends a segment to a Collector, and prints the fate as JSON; returns an exit status.
pub(crate) fn send(settings: &str) -> i32 {
    job(settings, |settings| {
        let collector = settings.collector.as_ref().context("no Collector is named")?;
        let profile = locality_profile::read(&settings.path)?;
        let parts = parts(&profile, settings)?;
        let sent = match parts.as_slice() {
            // A segment without a sample, as of an idle machine.
            [] => Sent::Accepted,
            parts => collector.send(&otlp::request(parts)),
        };
        Ok(serde_json::to_vec(&sent)?)
    })
}

/// Groups of a segment as resources: those with the most samples each, and the rest as one.
fn parts(profile: &Profile, settings: &Settings) -> Result<Vec<otlp::Part>> {
    let keys = settings.keys();
    let names: Vec<String> = profile.groups.iter().map(|group| keys.of(group)).collect();
    let name_of = |sample: &Sample| sample.group.and_then(|group| names.get(group.0 as usize));
    let mut samples: BTreeMap<&str, u64> = BTreeMap::new();
    for name in profile.samples.iter().filter_map(name_of) {
        *samples.entry(name).or_default() += 1;
    }
    let mut by_samples: Vec<(&str, u64)> = samples.into_iter().collect();
    by_samples.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let rest = by_samples.split_off(by_samples.len().min(RESOURCES - 1));
    let mut resources: Vec<(otlp::Resource, Vec<&str>)> = Vec::new();
    for (name, _) in by_samples {
        let mut resource = otlp::named(name);
        let group = names.iter().position(|of| of == name).and_then(|group| profile.groups.get(group));
        resource.extend(group.and_then(|group| Some(("container.id", group.container.clone()?))));
        resource.extend(group.and_then(|group| Some(("k8s.pod.uid", group.pod.clone()?))));
        resources.push((resource, vec![name]));
    }
    if !rest.is_empty() {
        resources.push((otlp::named(REST), rest.into_iter().map(|(name, _)| name).collect()));
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let mut parts = Vec::new();
    for (mut resource, groups) in resources {
        resource.extend(host.as_ref().map(|host| ("host.name", host.trim().to_owned())));
        let mut merger = Merger::default();
        merge::add(&mut merger, &settings.path, profile.clone(), |sample| {
            name_of(sample).is_some_and(|of| groups.contains(&of.as_str()))
        })?;
        let of_groups = for_others(merger, settings);
        if !of_groups.samples.is_empty() && why_empty(&of_groups).is_none() {
            parts.extend(otlp::part(&of_groups, &Findings::of(&of_groups), resource));
        }
    }
    Ok(parts)
}

/// The merged profile as it leaves the agent.
fn for_others(merger: Merger, settings: &Settings) -> Profile {
    let mut profile = merger.finish();
    profile.make_printable();
    if !settings.with_paths {
        without_paths(&mut profile);
    }
    profile
}

/// Removes folders from names of files.
fn without_paths(profile: &mut Profile) {
    let bare = |path: &mut String| {
        if let Some(at) = path.rfind('/') {
            path.drain(..=at);
        }
    };
    profile.run.command.clear();
    profile.modules.iter_mut().for_each(|module| bare(&mut module.path));
    profile.frames.iter_mut().filter_map(|frame| frame.file.as_mut()).for_each(bare);
    for object in &mut profile.objects {
        if let Some((file, _)) = &mut object.declared {
            bare(file);
        }
        // A mapped file's name is the path.
        if object.kind == locality_model::ObjectKind::File {
            bare(&mut object.name);
        }
    }
}
