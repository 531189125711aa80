//! Sentences of advice: plain, with their numbers.

use locality_estimate::calling_context::base_name;
use locality_estimate::interval_estimate::Estimate;
use locality_model::{FrameId, Profile};

use crate::{Access, KernelTime, Loop, View};

/// `file:line`, or the address in the file where no line is known, else the function.
pub(crate) fn at(profile: &Profile, frame: Option<FrameId>, line: Option<u32>) -> String {
    let Some(frame) = frame.and_then(|id| profile.frames.get(id.0 as usize)) else {
        return "an unknown place".to_owned();
    };
    match (&frame.file, line) {
        (Some(file), Some(line)) => format!("{}:{line}", base_name(file)),
        _ => match frame.address_in_file() {
            Some(address) => format!("{address:#x}"),
            None => locality_estimate::calling_context::function_name(profile, frame),
        },
    }
}

impl View<'_> {
    /// Where a loop stands.
    pub(crate) fn at(&self, number: usize) -> String {
        let Some(of) = self.loops.get(number) else { return at(self.profile, None, None) };
        let frame = of.frame.and_then(|id| self.profile.frames.get(id.0 as usize));
        // The header's address distinguishes the loops of a function without lines.
        let header = frame.filter(|frame| of.line.is_none() || frame.file.is_none()).and_then(|frame| {
            Some(frame.address_in_file()?.wrapping_add(of.header.wrapping_sub(frame.address)))
        });
        header.map_or_else(|| at(self.profile, of.frame, of.line), |header| format!("{header:#x}"))
    }

    /// Function of a loop.
    pub(crate) fn function(&self, of: &Loop) -> String {
        let frame = of.frame.and_then(|id| self.profile.frames.get(id.0 as usize));
        frame.map_or_else(
            || "an unknown function".to_owned(),
            |frame| locality_estimate::calling_context::function_name(self.profile, frame),
        )
    }

    /// Name of an access's object, in backticks, with the field where it is known.
    pub(crate) fn name(&self, access: &Access) -> String {
        let line = self.line_of(access);
        let Some((id, field)) = access.object else { return line };
        let Some(object) = self.profile.objects.get(id.0 as usize) else { return line };
        let field =
            field.and_then(|id| self.profile.fields.get(id.0 as usize)).map_or("", |field| &field.path);
        format!("`{}{field}`", object.name)
    }

    fn line_of(&self, access: &Access) -> String {
        let frame = access.frame.and_then(|id| self.profile.frames.get(id.0 as usize));
        match frame.and_then(|frame| frame.line) {
            Some(line) => format!("the data of line {line}"),
            None => format!("the data at {:#x}", access.ip),
        }
    }

    /// "An iteration takes 1.90 ns, of which 0.50 ns compute; the loop has 9.0 % of the CPU time."
    pub(crate) fn time(&self, of: &Loop) -> Option<String> {
        let clock = self.profile.run.processor?.clock;
        let (_, cycles) = of.speed?;
        let whole = cycles.value / clock;
        let core = of.core.map(|core| core.value.min(cycles.value) / clock);
        Some(format!("{}; the loop has {} of the CPU time.", iteration(whole, core), percent(of.share.value)))
    }
}

/// The nanoseconds of an iteration, and of those that compute where known.
fn iteration(whole: f64, core: Option<f64>) -> String {
    let whole = format!("{whole:.2}");
    match core.map(|core| format!("{core:.2}")) {
        None => format!("An iteration takes {whole} ns"),
        Some(core) if core == whole => format!("An iteration takes {whole} ns and waits for no memory"),
        Some(core) => format!("An iteration takes {whole} ns, of which {core} ns compute"),
    }
}

/// "a, b and c"
pub(crate) fn list(all: &[String]) -> String {
    match all {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

pub(crate) fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent >= 9.95 => format!("{percent:.0} %"),
        percent => format!("{percent:.1} %"),
    }
}

/// Bytes as people read them.
pub(crate) fn bytes(bytes: f64) -> String {
    match bytes {
        n if n >= 10.0 * 1048576.0 => format!("{:.0} MiB", n / 1048576.0),
        n if n >= 1048576.0 => format!("{:.1} MiB", n / 1048576.0),
        n if n >= 10240.0 => format!("{:.0} KiB", n / 1024.0),
        n => format!("{n:.0} bytes"),
    }
}

/// Why there is no advice.
pub(crate) fn nothing(waits: Option<&Estimate>, loops: &[Loop], kernel: Option<&KernelTime>) -> String {
    let in_kernel = kernel.filter(|kernel| kernel.share.low >= 0.1);
    if let Some(kernel) = in_kernel {
        return format!(
            "No known change to a loop surely saves 2 % of the time; {} of the CPU time passes in the \
             kernel.",
            percent(kernel.share.value)
        );
    }
    let known = loops.iter().filter(|of| of.speed.is_some()).fold(0.0, |sum, of| sum + of.share.value);
    match waits {
        Some(waits) if known >= 0.5 && waits.high < 0.2 => format!(
            "{} of the time does not wait for memory [{}-{}]: another order or layout of data gains little.",
            percent(1.0 - waits.value),
            percent(1.0 - waits.high),
            percent((1.0 - waits.low).min(1.0))
        ),
        _ if known < 0.5 => format!(
            "No known change surely saves 2 % of the time: loops with a known speed have {} of the CPU time.",
            percent(known)
        ),
        _ => "No known change surely saves 2 % of the time.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iteration_that_computes_all_the_time_waits_for_no_memory() {
        assert_eq!(iteration(8.83, Some(8.829)), "An iteration takes 8.83 ns and waits for no memory");
        assert_eq!(iteration(8.83, Some(0.7)), "An iteration takes 8.83 ns, of which 0.70 ns compute");
        assert_eq!(iteration(8.83, None), "An iteration takes 8.83 ns");
    }
}
