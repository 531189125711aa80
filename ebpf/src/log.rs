//! Messages of the programs, with the feature `ebpf-log`;
//! without the feature, no message is compiled.
//!
//! A trace needs no message. The messages pass through a separate ring (aya-log).

/// Logs a message for developers of the programs: the program's context, then as `format!`.
macro_rules! log {
    ($ctx:expr, $($message:tt)*) => {
        #[cfg(feature = "ebpf-log")]
        aya_log_ebpf::debug!($ctx, $($message)*);
        #[cfg(not(feature = "ebpf-log"))]
        let _ = $ctx;
    };
}

pub(crate) use log;
