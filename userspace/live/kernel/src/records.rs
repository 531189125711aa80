//! Decodes ring-buffer bytes. The only module that reads kernel bytes. Never panics; unknown bytes
//! become [`Record::Unknown`].

use locality_common::{
    heap::{HeapRecord, HeapSiteRecord},
    record::{
        Header, KernelRecord, LifecycleRecord, MeterRecord, SampleRecord, TouchRecord, kind, read_plain,
    },
};

/// A decoded record with its copy of the user stack, which begins at the recorded `rsp`.
#[derive(Debug, Clone)]
pub enum Record {
    /// The clock interrupted a target.
    Sample(Box<SampleRecord>, Vec<u8>),
    /// A watchpoint trapped.
    Touch(Box<TouchRecord>, Vec<u8>),
    /// A thread or process began, ended or changed its program.
    Lifecycle(LifecycleRecord),
    /// A thread's progress after a stop.
    Meter(Box<MeterRecord>),
    /// A block was allocated or given back.
    Heap(HeapRecord),
    /// A site of allocations was met for the first time.
    HeapSite(Box<HeapSiteRecord>, Vec<u8>),
    /// The clock met a target in the kernel.
    Kernel(Box<KernelRecord>, Vec<u8>),
    /// An unknown kind, or a record too short for its kind.
    Unknown(u32),
}

/// Decodes one record.
pub fn decode(bytes: &[u8]) -> Record {
    let Some(header) = read_plain::<Header>(bytes) else { return Record::Unknown(0) };
    let stack = |fixed: usize| bytes.get(fixed..).unwrap_or_default().to_vec();
    let record =
        match header.kind {
            kind::SAMPLE => read_plain(bytes)
                .map(|sample| Record::Sample(Box::new(sample), stack(size_of::<SampleRecord>()))),
            kind::TOUCH => {
                read_plain(bytes).map(|touch| Record::Touch(Box::new(touch), stack(size_of::<TouchRecord>())))
            }
            kind::KERNEL => read_plain(bytes)
                .map(|record| Record::Kernel(Box::new(record), stack(size_of::<KernelRecord>()))),
            kind::LIFECYCLE => read_plain(bytes).map(Record::Lifecycle),
            kind::METER => read_plain(bytes).map(|meter| Record::Meter(Box::new(meter))),
            kind::HEAP => read_plain(bytes).map(Record::Heap),
            // The record's room is that of the deepest stack.
            kind::HEAP_SITE => read_plain(bytes).map(|site| {
                let bytes = bytes.get(..header.bytes as usize).unwrap_or(bytes);
                let stack = bytes.get(size_of::<HeapSiteRecord>()..).unwrap_or_default().to_vec();
                Record::HeapSite(Box::new(site), stack)
            }),
            _ => None,
        };
    record.unwrap_or(Record::Unknown(header.kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_decode(mut bytes in proptest::collection::vec(any::<u8>(), 0..2000), kind in 0u8..9) {
            if let Some(first) = bytes.first_mut() {
                *first = kind;
                for byte in bytes.iter_mut().take(4).skip(1) {
                    *byte = 0;
                }
            }
            let record = decode(&bytes);
            if let Record::Sample(_, stack) = record {
                prop_assert_eq!(stack.len() + size_of::<SampleRecord>(), bytes.len());
            }
        }
    }

    #[test]
    fn short_and_unknown_records_are_named() {
        assert!(matches!(decode(&[]), Record::Unknown(0)));
        let mut bytes = vec![0u8; 64];
        bytes[0] = kind::SAMPLE as u8;
        assert!(matches!(decode(&bytes), Record::Unknown(kind::SAMPLE)));
        bytes[0] = 77;
        assert!(matches!(decode(&bytes), Record::Unknown(77)));
    }
}
