//! What the system knows of this process, by the names that all programs give it.

use super::expose;
use procfs::process::{LimitValue, Process};
use prometheus::proto::{MetricFamily, MetricType};

/// Without any where `/proc` is not mounted.
pub(super) fn families() -> Vec<MetricFamily> {
    let Ok(process) = Process::myself() else { return Vec::new() };
    let Ok(stat) = process.stat() else { return Vec::new() };
    let one = |name: &str, help: &str, kind: MetricType, value: f64| {
        let value = match kind {
            MetricType::COUNTER => expose::counter(&[], value),
            _ => expose::gauge(&[], value),
        };
        expose::family(name, help, kind, [value])
    };
    let ticks = procfs::ticks_per_second() as f64;
    let mut families = vec![
        one(
            "process_cpu_seconds_total",
            "Time spent on the processors, by the process and for it.",
            expose::COUNTER,
            (stat.utime + stat.stime) as f64 / ticks,
        ),
        one("process_threads", "Threads.", expose::GAUGE, stat.num_threads as f64),
        one("process_virtual_memory_bytes", "Memory that is mapped.", expose::GAUGE, stat.vsize as f64),
        one(
            "process_resident_memory_bytes",
            "Memory that is there.",
            expose::GAUGE,
            (stat.rss * procfs::page_size()) as f64,
        ),
    ];
    if let Ok(booted) = procfs::boot_time_secs() {
        let started = booted as f64 + stat.starttime as f64 / ticks;
        families.push(one(
            "process_start_time_seconds",
            "When it began, since 1970.",
            expose::GAUGE,
            started,
        ));
    }
    if let Ok(open) = process.fd_count() {
        families.push(one("process_open_fds", "Descriptors that are open.", expose::GAUGE, open as f64));
    }
    if let Ok(limits) = process.limits()
        && let LimitValue::Value(most) = limits.max_open_files.soft_limit
    {
        families.push(one("process_max_fds", "Descriptors that may be open.", expose::GAUGE, most as f64));
    }
    families
}
