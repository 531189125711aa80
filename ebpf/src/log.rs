//! Messages of the programs, with the feature `ebpf-log`; without it none of this is compiled.
//!
//! Not here: anything that a trace needs. The messages pass through a ring of their own (aya-log).

/// Logs a message for those who change the programs: the program's context, then as `format!`.
macro_rules! log {
    ($ctx:expr, $($message:tt)*) => {
        #[cfg(feature = "ebpf-log")]
        aya_log_ebpf::debug!($ctx, $($message)*);
        #[cfg(not(feature = "ebpf-log"))]
        let _ = $ctx;
    };
}

pub(crate) use log;
