//! The tables of format version 8. `docs/format.md` says the same for people; a test keeps both in step.

/// `PRAGMA application_id` of a profile, "LOCB" in ASCII; stands big-endian at byte 68 of the file.
pub const APPLICATION_ID: i32 = 0x4C4F_4342;

/// `PRAGMA user_version`: the format this program writes.
pub const SCHEMA_VERSION: i64 = 8;

/// Everything that a new file needs. Foreign keys are documented in docs/format.md but not
/// enforced: a killed tracer may leave a row whose partner was never written, and the reader mends
/// that.
pub(crate) const CREATE: &str = "
CREATE TABLE run (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    command TEXT NOT NULL, pids TEXT NOT NULL,
    started_unix_ns INTEGER NOT NULL, started_mono_ns INTEGER NOT NULL,
    wall_ns INTEGER NOT NULL, cpu_ns INTEGER NOT NULL,
    host_kernel TEXT NOT NULL, host_cpu TEXT NOT NULL, host_cpus INTEGER NOT NULL,
    mode TEXT NOT NULL,
    source_address TEXT NOT NULL, source_rate TEXT, source_clock TEXT NOT NULL,
    ended_by TEXT NOT NULL, policy TEXT NOT NULL,
    distance_resolution_ns INTEGER NOT NULL,
    tool_version TEXT NOT NULL,
    distance_scatter_ns INTEGER, user_only INTEGER, source_heap TEXT, ticks INTEGER, kernel_ticks INTEGER, page_faults INTEGER,
    excluded TEXT
);
CREATE TABLE cache_level (
    id INTEGER PRIMARY KEY,
    level INTEGER NOT NULL, bytes INTEGER NOT NULL, ways INTEGER NOT NULL, line_bytes INTEGER NOT NULL
);
CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 0), finished INTEGER NOT NULL);
CREATE TABLE thread (
    id INTEGER PRIMARY KEY,
    pid INTEGER NOT NULL, tid INTEGER NOT NULL, name TEXT NOT NULL,
    started_ns INTEGER NOT NULL, ended_ns INTEGER, not_held TEXT
);
CREATE TABLE module (id INTEGER PRIMARY KEY, path TEXT NOT NULL, build_id TEXT NOT NULL);
CREATE TABLE frame (
    id INTEGER PRIMARY KEY,
    address INTEGER NOT NULL, module INTEGER, module_address INTEGER,
    function TEXT, file TEXT, line INTEGER, inlined INTEGER NOT NULL, unknown TEXT
);
CREATE TABLE stack (id INTEGER PRIMARY KEY, frames TEXT NOT NULL, cut TEXT);
CREATE VIEW stack_frame AS
    SELECT stack.id AS stack, entry.key AS depth, entry.value AS frame
    FROM stack, json_each(stack.frames) AS entry;
CREATE TABLE sample (
    id INTEGER PRIMARY KEY,
    time_ns INTEGER NOT NULL, thread INTEGER NOT NULL, stack INTEGER NOT NULL,
    period_ns INTEGER NOT NULL, held INTEGER NOT NULL,
    access_ip INTEGER, access_address INTEGER, access_bytes INTEGER, access_kind TEXT, access_unknown TEXT,
    of_group INTEGER
);
CREATE TABLE process_group (
    id INTEGER PRIMARY KEY,
    container TEXT, runtime TEXT NOT NULL, pod TEXT, unit TEXT, cgroup TEXT NOT NULL, program TEXT NOT NULL,
    comm TEXT NOT NULL
);
CREATE TABLE watch (
    id INTEGER PRIMARY KEY,
    sample INTEGER NOT NULL, address INTEGER NOT NULL, bytes INTEGER NOT NULL,
    armed_ns INTEGER NOT NULL, ended_ns INTEGER NOT NULL,
    use_time_ns INTEGER, use_thread INTEGER, use_stack INTEGER, use_kind TEXT, use_kernel INTEGER,
    use_confirmed INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    reuse_time_ns INTEGER, reuse_thread INTEGER, reuse_stack INTEGER, reuse_kind TEXT, reuse_kernel INTEGER,
    distance_ns INTEGER,
    p_arm REAL, p_survive REAL,
    threads_armed INTEGER NOT NULL, threads_alive INTEGER NOT NULL,
    of_use INTEGER,
    accesses INTEGER
);
CREATE TABLE window (
    id INTEGER PRIMARY KEY,
    sample INTEGER NOT NULL, instructions INTEGER NOT NULL, accesses INTEGER NOT NULL, end TEXT NOT NULL,
    touches TEXT NOT NULL,
    rate REAL, rate_low REAL, rate_high REAL, rate_source TEXT
);
CREATE TABLE window_use (
    id INTEGER PRIMARY KEY,
    sample INTEGER NOT NULL, skip INTEGER NOT NULL,
    ip INTEGER NOT NULL, access_address INTEGER NOT NULL, access_bytes INTEGER NOT NULL, access_kind TEXT NOT NULL,
    address INTEGER NOT NULL, stack INTEGER NOT NULL
);
CREATE TABLE seen (
    id INTEGER PRIMARY KEY,
    of_use INTEGER NOT NULL, granule INTEGER NOT NULL, accesses INTEGER NOT NULL,
    stack INTEGER, ip INTEGER, access_address INTEGER, access_bytes INTEGER, access_kind TEXT
);
CREATE TABLE line_load (
    id INTEGER PRIMARY KEY,
    sample INTEGER NOT NULL, skip INTEGER NOT NULL,
    ip INTEGER NOT NULL, access_address INTEGER NOT NULL, access_bytes INTEGER NOT NULL, access_kind TEXT NOT NULL,
    line INTEGER NOT NULL, stack INTEGER NOT NULL, gap INTEGER, stands_for REAL, shown INTEGER NOT NULL
);
CREATE TABLE burst (
    id INTEGER PRIMARY KEY,
    of_load INTEGER NOT NULL, first_access INTEGER NOT NULL, last_access INTEGER NOT NULL, touches INTEGER NOT NULL,
    bytes INTEGER NOT NULL
);
CREATE TABLE loop (
    id INTEGER PRIMARY KEY,
    sample INTEGER NOT NULL, header INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, around INTEGER,
    stack INTEGER NOT NULL, latch INTEGER NOT NULL,
    instructions INTEGER NOT NULL, accesses INTEGER NOT NULL, iterations INTEGER NOT NULL,
    runs INTEGER NOT NULL, trips INTEGER NOT NULL,
    core_cycles REAL, bound_by TEXT, unbound_cycles REAL, is_first INTEGER NOT NULL,
    least_cycles REAL, chain_cycles REAL, unit_cycles REAL, unit TEXT, mispredicted INTEGER, new_lines INTEGER,
    distant_cycles REAL, chain TEXT, branches TEXT
);
CREATE TABLE loop_access (
    id INTEGER PRIMARY KEY,
    loop INTEGER NOT NULL, ip INTEGER NOT NULL, stack INTEGER NOT NULL, access_kind TEXT NOT NULL,
    access_bytes INTEGER NOT NULL, executions INTEGER NOT NULL,
    lines INTEGER NOT NULL, pages INTEGER NOT NULL, sets_64 INTEGER NOT NULL, sets_1024 INTEGER NOT NULL,
    stride INTEGER, stride_count INTEGER NOT NULL, steps INTEGER NOT NULL, outer_stride INTEGER,
    dependence TEXT NOT NULL, access_address INTEGER NOT NULL, value_low INTEGER, value_high INTEGER
);
CREATE TABLE window_flow (
    id INTEGER PRIMARY KEY,
    sample INTEGER NOT NULL, first INTEGER NOT NULL, modules TEXT NOT NULL, edges BLOB NOT NULL, left_out INTEGER NOT NULL
);
CREATE TABLE window_execution (
    id INTEGER PRIMARY KEY,
    sample INTEGER NOT NULL, instructions INTEGER NOT NULL, loads INTEGER NOT NULL, stores INTEGER NOT NULL,
    classes TEXT NOT NULL, spans TEXT NOT NULL
);
CREATE TABLE loop_reading (
    id INTEGER PRIMARY KEY,
    sample INTEGER NOT NULL, ip INTEGER NOT NULL, compared INTEGER NOT NULL, compared_with INTEGER NOT NULL
);
CREATE TABLE processor (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    clock REAL, levels TEXT NOT NULL, parallel_line REAL, page_fault_ns REAL, core TEXT
);
CREATE TABLE kernel_sample (
    id INTEGER PRIMARY KEY,
    time_ns INTEGER NOT NULL, thread INTEGER NOT NULL, stack INTEGER NOT NULL, call TEXT
);
CREATE TABLE object (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL, name TEXT NOT NULL, type TEXT, module INTEGER,
    declared_file TEXT, declared_line INTEGER, bytes INTEGER, function TEXT, site INTEGER,
    inferred INTEGER NOT NULL, unknown TEXT,
    name_inferred INTEGER
);
CREATE TABLE record (id INTEGER PRIMARY KEY, name TEXT NOT NULL, bytes INTEGER NOT NULL);
CREATE TABLE field (
    id INTEGER PRIMARY KEY,
    path TEXT NOT NULL, type TEXT, offset INTEGER NOT NULL, bytes INTEGER NOT NULL,
    record INTEGER, record_offset INTEGER NOT NULL
);
CREATE TABLE member (
    id INTEGER PRIMARY KEY,
    record INTEGER NOT NULL, path TEXT NOT NULL, type TEXT, offset INTEGER NOT NULL, bytes INTEGER NOT NULL,
    align INTEGER NOT NULL
);
CREATE TABLE located (
    id INTEGER PRIMARY KEY,
    sample INTEGER, of_use INTEGER, granule INTEGER, watch INTEGER, reuse INTEGER,
    object INTEGER NOT NULL, object_offset INTEGER, field INTEGER,
    of_load INTEGER, before INTEGER
);
CREATE TABLE heap (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    seen INTEGER NOT NULL, made INTEGER NOT NULL, folded INTEGER NOT NULL,
    min_bytes INTEGER, min_bytes_at_end INTEGER, smaller INTEGER, unwatched INTEGER, lost INTEGER
);
CREATE TABLE allocation_site (
    id INTEGER PRIMARY KEY, stack INTEGER NOT NULL, allocations INTEGER NOT NULL, bytes INTEGER NOT NULL
);
CREATE TABLE ledger (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    seen INTEGER NOT NULL, filtered INTEGER NOT NULL, submitted INTEGER NOT NULL, received INTEGER NOT NULL,
    armed INTEGER NOT NULL, trapped INTEGER NOT NULL, censored INTEGER NOT NULL, refused INTEGER NOT NULL
);
CREATE TABLE ledger_cause (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, cause TEXT NOT NULL, n INTEGER NOT NULL);
CREATE TABLE overhead (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    budget_percent REAL, measured_percent REAL,
    stop_ns INTEGER NOT NULL, trap_ns INTEGER NOT NULL, bpf_ns INTEGER NOT NULL, controller_ns INTEGER NOT NULL,
    stops INTEGER NOT NULL, longest_stop_ns INTEGER NOT NULL, max_stop_ns INTEGER NOT NULL,
    heap_ns INTEGER, string_ns INTEGER
);
CREATE TABLE notice (id INTEGER PRIMARY KEY, text TEXT NOT NULL);
";
