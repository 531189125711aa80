//! Writes a complete profile, merged from several profiles.

use std::path::Path;

use locality_model::{
    FieldId, FrameId, GroupId, LoadId, ModuleId, ObjectId, Profile, RecordId, SampleId, StackId, ThreadId,
    UseId, WatchId,
};

use crate::error::Error;
use crate::place::Owner;
use crate::writer::Writer;

/// Writes a profile; an earlier profile of equal name becomes `FILE.old`.
///
/// # Errors
/// The file cannot be made or written; an incomplete file is left, recognisable on reading.
pub fn write(path: &Path, profile: &Profile, owner: Option<Owner>) -> Result<(), Error> {
    let mut writer = Writer::create(path, owner)?;
    writer.put_run(&profile.run)?;
    writer.put_ledger(&profile.ledger)?;
    writer.put_overhead(&profile.overhead)?;
    writer.put_notices(&profile.notices)?;
    if let Some(heap) = &profile.heap {
        writer.put_heap(heap)?;
    }
    (0..).zip(&profile.threads).try_for_each(|(id, row)| writer.put_thread(ThreadId(id), row))?;
    (0..).zip(&profile.modules).try_for_each(|(id, row)| writer.put_module(ModuleId(id), row))?;
    (0..).zip(&profile.frames).try_for_each(|(id, row)| writer.put_frame(FrameId(id), row))?;
    (0..).zip(&profile.stacks).try_for_each(|(id, row)| writer.put_stack(StackId(id), row))?;
    (0..).zip(&profile.groups).try_for_each(|(id, row)| writer.put_group(GroupId(id), row))?;
    (0..).zip(&profile.samples).try_for_each(|(id, row)| writer.put_sample(SampleId(id), row))?;
    (0..).zip(&profile.windows).try_for_each(|(id, row)| writer.put_window(id, row))?;
    (0..).zip(&profile.uses).try_for_each(|(id, row)| writer.append_use(UseId(id), row))?;
    (0..).zip(&profile.loads).try_for_each(|(id, row)| writer.append_load(LoadId(id), row))?;
    for (id, watch) in (0..).zip(&profile.watches) {
        writer.append_watch(watch)?;
        if let locality_model::Outcome::Reused { accesses: Some(accesses), .. } = watch.outcome {
            writer.put_counted(WatchId(id), Some(accesses))?;
        }
    }
    profile.loops.iter().try_for_each(|row| writer.append_loop(row.clone()))?;
    profile.flows.iter().try_for_each(|row| writer.append_flow(row.clone()))?;
    profile.executions.iter().try_for_each(|row| writer.append_execution(row.clone()))?;
    profile.readings.iter().try_for_each(|row| writer.append_reading(*row))?;
    profile.kernel_samples.iter().try_for_each(|row| writer.append_kernel_sample(row.clone()))?;
    (0..).zip(&profile.objects).try_for_each(|(id, row)| writer.put_object(ObjectId(id), row))?;
    (0..).zip(&profile.records).try_for_each(|(id, row)| writer.put_record(RecordId(id), row))?;
    (0..).zip(&profile.fields).try_for_each(|(id, row)| writer.put_field(FieldId(id), row))?;
    profile.located.iter().try_for_each(|row| writer.append_located(*row))?;
    writer.finish()
}

#[cfg(test)]
mod tests {
    use locality_model::testing::{demo, loops};

    use super::*;

    #[test]
    fn what_is_written_whole_is_read_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("whole.locality");
        for profile in [demo(), loops::windowed()] {
            write(&path, &profile, None).unwrap();
            let read = crate::read(&path).unwrap();
            assert_eq!(read.samples, profile.samples);
            assert_eq!(read.watches, profile.watches);
            assert_eq!((read.uses, read.loads, read.windows), (profile.uses, profile.loads, profile.windows));
            assert_eq!((read.loops, read.located), (profile.loops, profile.located));
            assert_eq!((read.run, read.ledger, read.partial), (profile.run, profile.ledger, false));
        }
    }
}
