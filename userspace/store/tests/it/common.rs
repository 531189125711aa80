//! Random profiles, and a way to write them whole.

use std::path::Path;

use fastrand::Rng;
use locality_model::*;
use locality_profile::{Error, Writer};

fn text(rng: &mut Rng) -> String {
    const WORDS: [&str; 8] = ["", "main", "a'b\"c", "Größe <→>", "x\0y", "::<T>", "/usr/lib/x.so", "%s\n"];
    WORDS[rng.usize(..WORDS.len())].to_owned()
}

fn maybe<T>(rng: &mut Rng, make: impl Fn(&mut Rng) -> T) -> Option<T> {
    rng.bool().then(|| make(rng))
}

/// A number that something measured may have: no reader believes times of years, or larger counts.
fn number(rng: &mut Rng) -> u64 {
    match rng.u8(..4) {
        0 => 0,
        1 => 1 << 48,
        2 => rng.u64(..1000),
        _ => rng.u64(..1 << 48),
    }
}

fn address(rng: &mut Rng) -> u64 {
    if rng.bool() { rng.u64(..) } else { u64::MAX }
}

fn causes(rng: &mut Rng) -> Vec<(String, u64)> {
    (0..rng.usize(..4)).map(|_| (text(rng), number(rng))).collect()
}

fn kind(rng: &mut Rng) -> AccessKind {
    [AccessKind::Load, AccessKind::Store, AccessKind::ReadWrite, AccessKind::Unknown][rng.usize(..4)]
}

/// A profile with `samples` samples whose ids all lead somewhere.
pub fn random_profile(seed: u64, samples: usize) -> Profile {
    let rng = &mut Rng::with_seed(seed);
    let threads = 1 + rng.u32(..5);
    let modules = 1 + rng.u32(..5);
    let frames = 1 + rng.u32(..40);
    let stacks = 1 + rng.u32(..40);
    let groups = 1 + rng.u32(..4);
    let touch = |rng: &mut Rng| Touch {
        time_ns: number(rng),
        thread: ThreadId(rng.u32(..threads)),
        stack: StackId(rng.u32(..stacks)),
        kind: kind(rng),
        kernel: rng.bool(),
    };
    let watch = |rng: &mut Rng| Watch {
        sample: SampleId(rng.u32(..samples as u32)),
        of_use: maybe(rng, |rng| UseId(rng.u32(..samples as u32))),
        address: address(rng),
        bytes: 1 << rng.u8(..4),
        armed_ns: number(rng),
        ended_ns: number(rng),
        use_touch: maybe(rng, touch),
        use_confirmed: rng.bool(),
        outcome: match rng.u8(..5) {
            0 => {
                Outcome::Reused { touch: touch(rng), distance_ns: number(rng), accesses: maybe(rng, number) }
            }
            1 => Outcome::Replaced,
            2 => Outcome::StillArmed,
            3 => Outcome::Refused,
            _ => Outcome::Gone,
        },
        p_arm: rng.f64(),
        p_survive: rng.f64(),
        threads_armed: rng.u32(..),
        threads_alive: rng.u32(..),
    };
    let whole = |rng: &mut Rng| Access {
        ip: address(rng),
        address: address(rng),
        size: rng.u32(..=4096),
        kind: kind(rng),
    };
    let seen = |rng: &mut Rng| {
        let stack = StackId(rng.u32(..stacks));
        match rng.bool() {
            true => Seen::Reused { distance: number(rng), access: whole(rng), stack },
            false => Seen::Open { accesses: number(rng) },
        }
    };
    let window = |rng: &mut Rng| Window {
        sample: SampleId(rng.u32(..samples as u32)),
        instructions: number(rng),
        accesses: number(rng),
        end: text(rng),
        touches: (0..rng.usize(..3)).map(|_| (rng.u32(1..), number(rng))).collect(),
        rate: maybe(rng, |rng| {
            let (low, value) = (rng.f64(), rng.f64());
            Rate { value, low, high: low + rng.f64(), source: text(rng) }
        }),
    };
    let (objects, records, fields) = (rng.u32(..6), rng.u32(..4), rng.u32(..6));
    let object = |rng: &mut Rng| Object {
        kind: [
            ObjectKind::Static,
            ObjectKind::ThreadLocal,
            ObjectKind::Stack,
            ObjectKind::Heap,
            ObjectKind::Mapped,
            ObjectKind::File,
            ObjectKind::Unknown,
        ][rng.usize(..7)],
        name: text(rng),
        type_name: maybe(rng, text),
        module: maybe(rng, |rng| ModuleId(rng.u32(..modules))),
        declared: maybe(rng, |rng| (text(rng), maybe(rng, |rng| rng.u32(..)))),
        bytes: maybe(rng, number),
        function: maybe(rng, text),
        site: maybe(rng, |rng| StackId(rng.u32(..stacks))),
        inferred: rng.bool(),
        name_inferred: rng.bool(),
        unknown: maybe(rng, text),
    };
    let member = |rng: &mut Rng| Member {
        path: text(rng),
        type_name: maybe(rng, text),
        offset: number(rng),
        bytes: number(rng),
        align: number(rng),
    };
    let record = |rng: &mut Rng| Record {
        name: text(rng),
        bytes: number(rng),
        members: (0..rng.usize(..4)).map(|_| member(rng)).collect(),
    };
    let field = |rng: &mut Rng| Field {
        path: text(rng),
        type_name: maybe(rng, text),
        offset: number(rng),
        bytes: number(rng),
        record: if records > 0 { maybe(rng, |rng| RecordId(rng.u32(..records))) } else { None },
        record_offset: number(rng),
    };
    let located = |rng: &mut Rng| Located {
        of: match rng.u8(..if samples / 2 > 0 { 6 } else { 4 }) {
            0 => Accessed::Sample(SampleId(rng.u32(..samples as u32))),
            1 => Accessed::Use(UseId(rng.u32(..samples as u32))),
            2 => Accessed::Seen(UseId(rng.u32(..samples as u32)), rng.u32(..)),
            3 => Accessed::Load(LoadId(rng.u32(..samples as u32))),
            4 => Accessed::WatchUse(WatchId(rng.u32(..samples as u32 / 2))),
            _ => Accessed::WatchReuse(WatchId(rng.u32(..samples as u32 / 2))),
        },
        object: ObjectId(rng.u32(..objects)),
        offset: maybe(rng, number),
        field: if fields > 0 { maybe(rng, |rng| FieldId(rng.u32(..fields))) } else { None },
    };
    let missed = |rng: &mut Rng| Missed {
        min_bytes: number(rng),
        min_bytes_at_end: number(rng),
        smaller: number(rng),
        unwatched: number(rng),
        lost: number(rng),
    };
    let heap = |rng: &mut Rng| Heap {
        missed: maybe(rng, missed),
        seen: number(rng),
        made: number(rng),
        folded: number(rng),
        sites: (0..rng.usize(..3))
            .map(|_| AllocationSite {
                stack: StackId(rng.u32(..stacks)),
                allocations: number(rng),
                bytes: number(rng),
            })
            .collect(),
    };
    let flow = |rng: &mut Rng| {
        let edge = |rng: &mut Rng| FlowEdge { from: rng.u64(..), to: rng.u64(..), count: number(rng) };
        let mut edges: Vec<FlowEdge> = (0..rng.usize(..5)).map(|_| edge(rng)).collect();
        edges.sort_unstable();
        WindowFlow {
            sample: SampleId(rng.u32(..samples as u32)),
            first: rng.u64(..),
            modules: (0..rng.usize(..3)).map(|_| (ModuleId(rng.u32(..modules)), rng.u64(..))).collect(),
            edges,
            left_out: number(rng),
        }
    };
    let execution = |rng: &mut Rng| WindowExecution {
        sample: SampleId(rng.u32(..samples as u32)),
        instructions: number(rng),
        loads: number(rng),
        stores: number(rng),
        classes: (0..rng.usize(..3)).map(|_| (text(rng), number(rng))).collect(),
        spans: (0..rng.usize(..4))
            .map(|_| ExecutionSpan { in_flight: rng.u32(..), instructions: number(rng), cycles: number(rng) })
            .collect(),
    };
    let reading = |rng: &mut Rng| LoopReading {
        sample: SampleId(rng.u32(..samples as u32)),
        ip: rng.u64(..),
        left: rng.i64(..),
        right: rng.i64(..),
    };
    let loop_access = |rng: &mut Rng| {
        let executions = rng.u64(1..1 << 20);
        let steps = rng.u64(..=executions);
        LoopAccess {
            ip: address(rng),
            stack: StackId(rng.u32(..stacks)),
            kind: kind(rng),
            bytes: rng.u32(..=64),
            executions,
            lines: rng.u64(..=executions),
            pages: rng.u64(..=executions),
            sets: [rng.u64(..64), rng.u64(..1024)],
            stride: maybe(rng, |rng| rng.i64(..)),
            stride_count: rng.u64(..=steps),
            steps,
            outer_stride: maybe(rng, |rng| rng.i64(..)),
            dependence: [Dependence::None, Dependence::Indexed, Dependence::Chased][rng.usize(..3)],
            address: address(rng),
            values: maybe(rng, |rng| (rng.i64(..), rng.i64(..))),
        }
    };
    let seen_loop = |rng: &mut Rng| SeenLoop {
        sample: SampleId(rng.u32(..samples as u32)),
        header: address(rng),
        span: (address(rng), address(rng)),
        around: maybe(rng, address),
        stack: StackId(rng.u32(..stacks)),
        latch: StackId(rng.u32(..stacks)),
        instructions: rng.u64(..1 << 40),
        accesses: rng.u64(..1 << 40),
        iterations: rng.u64(..1 << 40),
        runs: rng.u64(..1 << 40),
        trips: rng.u64(..1 << 40),
        core_cycles: rng.f64() * 1e6,
        bound_by: maybe(rng, text),
        unbound_cycles: rng.f64() * 1e6,
        is_first: rng.bool(),
        needs: maybe(rng, |rng| LoopNeeds {
            cycles: rng.f64() * 1e6,
            chain_cycles: rng.f64() * 1e6,
            unit_cycles: rng.f64() * 1e6,
            unit: text(rng),
            mispredicted: rng.u64(..1 << 40),
            new_lines: rng.u64(..1 << 40),
            distant_cycles: rng.f64() * 1e6,
        }),
        chain: (0..rng.usize(..3))
            .map(|_| ChainStep {
                ip: address(rng),
                stack: StackId(rng.u32(..stacks)),
                class: ["load", "fp_add"][rng.usize(..2)].to_owned(),
                cycles: rng.f64() * 1e6,
            })
            .collect(),
        branches: (0..rng.usize(..3))
            .map(|_| {
                let executed = rng.u64(1..1 << 40);
                let judged = rng.u64(..=executed);
                LoopBranch {
                    ip: address(rng),
                    stack: StackId(rng.u32(..stacks)),
                    executed,
                    taken: rng.u64(..=executed),
                    judged,
                    mispredicted: rng.u64(..=judged),
                }
            })
            .collect(),
        by_access: (0..rng.usize(..4)).map(|_| loop_access(rng)).collect(),
    };
    let kernel_sample = |rng: &mut Rng| KernelSample {
        time_ns: number(rng),
        thread: ThreadId(rng.u32(..threads)),
        stack: StackId(rng.u32(..stacks)),
        call: maybe(rng, text),
    };
    let load = |rng: &mut Rng| Load {
        sample: SampleId(rng.u32(..samples as u32)),
        skip: number(rng),
        access: whole(rng),
        line: address(rng),
        stack: StackId(rng.u32(..stacks)),
        gap: maybe(rng, number),
        stands_for: rng.f64(),
        shown: number(rng),
        bursts: (0..rng.usize(..3))
            .map(|_| {
                let from = number(rng);
                Burst { from, to: from + number(rng), touches: number(rng), bytes: address(rng) }
            })
            .collect(),
    };
    let of_use = |rng: &mut Rng| Use {
        sample: SampleId(rng.u32(..samples as u32)),
        skip: number(rng),
        access: whole(rng),
        address: address(rng),
        stack: StackId(rng.u32(..stacks)),
        seen: (0..rng.usize(..3)).map(|_| (1 << rng.u8(..8), seen(rng))).collect(),
    };
    Profile {
        run: Run {
            command: text(rng),
            pids: (0..rng.usize(..4)).map(|_| rng.u32(..)).collect(),
            started_unix_ns: number(rng),
            started_mono_ns: number(rng),
            wall_ns: number(rng),
            cpu_ns: number(rng),
            host: Host {
                kernel: text(rng),
                cpu: text(rng),
                cpus: rng.u32(..1024),
                caches: (0..rng.u8(..4))
                    .map(|level| CacheLevel {
                        level,
                        bytes: number(rng),
                        ways: rng.u32(..),
                        line: 1 << rng.u8(..9),
                    })
                    .collect(),
            },
            mode: if rng.bool() { Mode::Live } else { Mode::Exact },
            sources: Sources {
                address: text(rng),
                rate: maybe(rng, text),
                clock: text(rng),
                heap: maybe(rng, text),
            },
            ended_by: text(rng),
            policy: text(rng),
            distance_resolution_ns: number(rng),
            tool_version: text(rng),
            distance_scatter_ns: maybe(rng, number),
            user_only: rng.bool(),
            ticks: maybe(rng, |rng| {
                let all = rng.u64(..1 << 40);
                (all, rng.u64(..=all))
            }),
            page_faults: maybe(rng, |rng| rng.u64(..1 << 40)),
            excluded: (0..rng.usize(..3)).map(|_| (text(rng), number(rng))).collect(),
            processor: maybe(rng, |rng| Processor {
                clock: 0.5 + rng.f64(),
                levels: [(); 3].map(|()| [(); 3].map(|()| rng.f64() * 500.0)),
                parallel_line: rng.f64() * 100.0,
                page_fault_ns: rng.f64() * 1000.0,
                core: maybe(rng, |rng| Core::from_values([(); Core::VALUES].map(|()| rng.f64() * 8.0))),
            }),
        },
        threads: (0..threads)
            .map(|_| Thread {
                pid: rng.u32(..),
                tid: rng.u32(..),
                name: text(rng),
                started_ns: number(rng),
                ended_ns: maybe(rng, number),
                not_held: maybe(rng, text),
            })
            .collect(),
        modules: (0..modules).map(|_| Module { path: text(rng), build_id: text(rng) }).collect(),
        frames: (0..frames)
            .map(|_| Frame {
                address: address(rng),
                module: maybe(rng, |rng| ModuleId(rng.u32(..modules))),
                module_address: maybe(rng, address),
                function: maybe(rng, text),
                file: maybe(rng, text),
                line: maybe(rng, |rng| rng.u32(..)),
                inlined: rng.bool(),
                unknown: maybe(rng, text),
            })
            .collect(),
        stacks: (0..stacks)
            .map(|_| Stack {
                frames: (0..rng.usize(..20)).map(|_| FrameId(rng.u32(..frames))).collect(),
                cut: maybe(rng, text),
            })
            .collect(),
        groups: (0..groups)
            .map(|_| Group {
                container: maybe(rng, text),
                runtime: text(rng),
                pod: maybe(rng, text),
                unit: maybe(rng, text),
                cgroup: text(rng),
                program: text(rng),
                comm: text(rng),
            })
            .collect(),
        samples: (0..samples)
            .map(|_| Sample {
                time_ns: number(rng),
                thread: ThreadId(rng.u32(..threads)),
                stack: StackId(rng.u32(..stacks)),
                period_ns: number(rng),
                held: rng.bool(),
                access: if rng.bool() {
                    Ok(Access {
                        ip: address(rng),
                        address: address(rng),
                        size: rng.u32(..=4096),
                        kind: kind(rng),
                    })
                } else {
                    Err(text(rng))
                },
                group: maybe(rng, |rng| GroupId(rng.u32(..groups))),
            })
            .collect(),
        watches: if samples == 0 { Vec::new() } else { (0..samples / 2).map(|_| watch(rng)).collect() },
        windows: if samples == 0 { Vec::new() } else { (0..samples / 3).map(|_| window(rng)).collect() },
        uses: (0..samples).map(|_| of_use(rng)).collect(),
        loads: (0..samples).map(|_| load(rng)).collect(),
        loops: if samples == 0 { Vec::new() } else { (0..samples).map(|_| seen_loop(rng)).collect() },
        flows: (0..samples).map(|_| flow(rng)).collect(),
        executions: (0..samples).map(|_| execution(rng)).collect(),
        readings: (0..samples).map(|_| reading(rng)).collect(),
        kernel_samples: (0..samples).map(|_| kernel_sample(rng)).collect(),
        objects: (0..objects).map(|_| object(rng)).collect(),
        records: (0..records).map(|_| record(rng)).collect(),
        fields: (0..fields).map(|_| field(rng)).collect(),
        located: if objects == 0 { Vec::new() } else { (0..samples).map(|_| located(rng)).collect() },
        heap: maybe(rng, heap),
        ledger: Ledger {
            seen: number(rng),
            filtered: number(rng),
            submitted: number(rng),
            received: number(rng),
            lost: causes(rng),
            filtered_by: causes(rng),
            armed: number(rng),
            trapped: number(rng),
            censored: number(rng),
            refused: number(rng),
            unreachable: causes(rng),
            stops: causes(rng),
        },
        overhead: Overhead {
            budget_percent: rng.f64(),
            measured_percent: rng.f64(),
            stop_ns: number(rng),
            trap_ns: number(rng),
            bpf_ns: number(rng),
            controller_ns: number(rng),
            stops: number(rng),
            longest_stop_ns: number(rng),
            max_stop_ns: number(rng),
            heap_ns: rng.bool().then(|| number(rng)),
            string_ns: rng.bool().then(|| number(rng)),
        },
        notices: (0..rng.usize(..4)).map(|_| text(rng)).collect(),
        partial: false,
    }
}

/// Puts every row of the profile.
pub fn put_all(writer: &mut Writer, profile: &Profile) -> Result<(), Error> {
    writer.put_run(&profile.run)?;
    for (id, thread) in (0..).zip(&profile.threads) {
        writer.put_thread(ThreadId(id), thread)?;
    }
    for (id, module) in (0..).zip(&profile.modules) {
        writer.put_module(ModuleId(id), module)?;
    }
    for (id, frame) in (0..).zip(&profile.frames) {
        writer.put_frame(FrameId(id), frame)?;
    }
    for (id, stack) in (0..).zip(&profile.stacks) {
        writer.put_stack(StackId(id), stack)?;
    }
    for (id, group) in (0..).zip(&profile.groups) {
        writer.put_group(GroupId(id), group)?;
    }
    for (id, sample) in (0..).zip(&profile.samples) {
        writer.put_sample(SampleId(id), sample)?;
    }
    for (id, window) in (0..).zip(&profile.windows) {
        writer.put_window(id, window)?;
    }
    for (id, of_use) in (0..).zip(&profile.uses) {
        writer.append_use(UseId(id), of_use)?;
    }
    for (id, load) in (0..).zip(&profile.loads) {
        writer.append_load(LoadId(id), load)?;
    }
    for seen in &profile.loops {
        writer.append_loop(seen.clone())?;
    }
    for flow in &profile.flows {
        writer.append_flow(flow.clone())?;
    }
    for execution in &profile.executions {
        writer.append_execution(execution.clone())?;
    }
    for reading in &profile.readings {
        writer.append_reading(*reading)?;
    }
    for sample in &profile.kernel_samples {
        writer.append_kernel_sample(sample.clone())?;
    }
    for (id, watch) in (0..).zip(&profile.watches) {
        let mut watch = watch.clone();
        // Of some they are known only later.
        let later = match &mut watch.outcome {
            Outcome::Reused { accesses, .. } if id % 2 == 0 => accesses.take(),
            _ => None,
        };
        writer.append_watch(&watch)?;
        if let Some(accesses) = later {
            writer.put_counted(WatchId(id), Some(accesses))?;
        }
    }
    for (id, object) in (0..).zip(&profile.objects) {
        writer.put_object(ObjectId(id), object)?;
    }
    for (id, record) in (0..).zip(&profile.records) {
        writer.put_record(RecordId(id), record)?;
    }
    for (id, field) in (0..).zip(&profile.fields) {
        writer.put_field(FieldId(id), field)?;
    }
    for located in &profile.located {
        writer.append_located(*located)?;
    }
    if let Some(heap) = &profile.heap {
        writer.put_heap(heap)?;
    }
    writer.put_ledger(&profile.ledger)?;
    writer.put_overhead(&profile.overhead)?;
    writer.put_notices(&profile.notices)
}

/// Writes a finished profile file.
pub fn write_file(path: &Path, profile: &Profile) {
    let mut writer = Writer::create(path, None).unwrap();
    put_all(&mut writer, profile).unwrap();
    writer.finish().unwrap();
}
