//! Tasks as text.

use locality_report::schema::{
    Report,
    place::Place,
    tasks::{Partition, Tasks},
};
use locality_units::print as units;

use super::{Page, base, counted, percent, real, size};

/// Nodes named of a part.
const NAMED: usize = 3;

impl Page {
    /// Task parallelism, communication and partitions.
    pub(super) fn tasks(&mut self, report: &Report, top: usize) {
        let Some(tasks) = &report.tasks else { return };
        self.line("");
        let executions = match tasks.node.as_str() {
            "functions" => "calls of",
            "loops" => "iterations of",
            _ => "executions of",
        };
        let ignored = match tasks.ignored.is_empty() {
            true => "all dependences are followed".to_owned(),
            false => format!("dependences of {} are ignored", tasks.ignored.join(", ")),
        };
        self.wrapped(&format!(
            "Tasks: {} {executions} {} {}; view {}: {ignored}; one cycle an instruction",
            units::count(tasks.executions),
            units::count(tasks.nodes_total),
            tasks.node,
            tasks.view,
        ));
        self.wrapped(&format!(
            "Work {} instructions, span {}, parallelism of tasks (TLP) {:.2}",
            units::count(tasks.work),
            units::count(tasks.span),
            real(tasks.tlp),
        ));
        if top > 0 {
            self.nodes(tasks, top);
            self.communication(tasks, top);
        }
        for partition in &tasks.partitions {
            self.partition(partition, tasks);
        }
    }

    /// Bytes between threads.
    pub(super) fn sharing(&mut self, report: &Report, top: usize) {
        let rows = report.sharing.as_deref().unwrap_or_default();
        if rows.is_empty() || top == 0 {
            return;
        }
        self.line("");
        self.line("Bytes written by one thread and read by another:");
        self.line(&format!("  {:>10} {:>12} {:>10}  writer → reader (threads)", "bytes", "reads", "process"));
        for row in rows.iter().take(top) {
            self.line(&format!(
                "  {:>10} {:>12} {:>10}  {} → {}",
                size(row.bytes),
                units::count(row.values),
                row.pid,
                row.from,
                row.to
            ));
        }
        if rows.len() > top {
            let rest: u64 = rows.iter().skip(top).map(|row| row.bytes).sum();
            self.line(&format!("  {:>10} in {} further rows", size(rest), rows.len() - top));
        }
    }

    fn nodes(&mut self, tasks: &Tasks, top: usize) {
        self.line("");
        self.line(&format!("  {:>8} {:>14} {:>12}  {}", "work", "instructions", "executions", tasks.node));
        for node in tasks.nodes.iter().take(top) {
            self.line(&format!(
                "  {:>8} {:>14} {:>12}  {}",
                percent(node.work as f64 / tasks.work.max(1) as f64),
                units::count(node.work),
                units::count(node.executions),
                name(&node.place),
            ));
        }
    }

    fn communication(&mut self, tasks: &Tasks, top: usize) {
        if tasks.communication.is_empty() {
            return;
        }
        self.line("");
        self.line("Values taken from other executions:");
        self.line(&format!("  {:>10} {:>12} {:>9}  writer → reader", "bytes", "values", "through"));
        for row in tasks.communication.iter().take(top) {
            self.line(&format!(
                "  {:>10} {:>12} {:>9}  {} → {}",
                size(row.bytes),
                units::count(row.values),
                row.through,
                name(&row.from),
                name(&row.to),
            ));
        }
        let rest = tasks.communication.iter().skip(top);
        let (rows, bytes) = rest.fold((tasks.left_out.rows, tasks.left_out.bytes), |(rows, bytes), row| {
            (rows + 1, bytes + row.bytes)
        });
        if rows > 0 {
            self.line(&format!("  {:>10} in {} further rows", size(bytes), units::count(rows)));
        }
    }

    fn partition(&mut self, partition: &Partition, tasks: &Tasks) {
        self.line("");
        let pipeline =
            if partition.acyclic { "values pass in one direction" } else { "values pass both ways" };
        self.wrapped(&format!(
            "Partition into {} (a heuristic): {} of {} between {} pass between parts; {pipeline}; balance {:.2}, \
             so at most {:.2} times as fast",
            counted(partition.parts.len(), "part"),
            size(partition.cut_bytes),
            size(partition.nodes_bytes),
            tasks.node,
            real(partition.balance),
            real(partition.bound),
        ));
        self.line(&format!("  {:>8} {:>14} {:>8}  heaviest", "work", "instructions", tasks.node));
        for part in &partition.parts {
            let names: Vec<String> = part.nodes.iter().take(NAMED).map(|node| name(&node.place)).collect();
            self.line(&format!(
                "  {:>8} {:>14} {:>8}  {}",
                percent(part.work as f64 / tasks.work.max(1) as f64),
                units::count(part.work),
                units::count(part.nodes_total),
                names.join(", "),
            ));
        }
    }
}

pub(super) fn name(place: &Place) -> String {
    let function = place.function.as_deref().unwrap_or("unknown");
    match (&place.file, place.line) {
        (Some(file), Some(line)) => format!("{function} {}:{line}", base(file)),
        _ => function.to_owned(),
    }
}
