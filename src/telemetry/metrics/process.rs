//! The standard process metrics of Prometheus.

use super::expose;
use procfs::process::{LimitValue, Process};
use prometheus::proto::{MetricFamily, MetricType};

/// The metric families for Prometheus; none if `/proc` is not mounted.
pub(super) fn families() -> Vec<MetricFamily> {
    let Ok(process) = Process::myself() else { return Vec::new() };
    let Ok(stat) = process.stat() else { return Vec::new() };
    let single = |name: &str, help: &str, kind: MetricType, value: f64| {
        let value = match kind {
            MetricType::COUNTER => expose::counter(&[], value),
            _ => expose::gauge(&[], value),
        };
        expose::family(name, help, kind, [value])
    };
    let ticks = procfs::ticks_per_second() as f64;
    let mut families = vec![
        single(
            "process_cpu_seconds_total",
            "Total user and system CPU time in seconds.",
            expose::COUNTER,
            (stat.utime + stat.stime) as f64 / ticks,
        ),
        single("process_threads", "Threads of the process.", expose::GAUGE, stat.num_threads as f64),
        single(
            "process_virtual_memory_bytes",
            "Virtual memory size in bytes.",
            expose::GAUGE,
            stat.vsize as f64,
        ),
        single(
            "process_resident_memory_bytes",
            "Resident memory size in bytes.",
            expose::GAUGE,
            (stat.rss * procfs::page_size()) as f64,
        ),
    ];
    if let Ok(booted) = procfs::boot_time_secs() {
        let started = booted as f64 + stat.starttime as f64 / ticks;
        families.push(single(
            "process_start_time_seconds",
            "Start time since the Unix epoch in seconds.",
            expose::GAUGE,
            started,
        ));
    }
    if let Ok(open) = process.fd_count() {
        families.push(single("process_open_fds", "Open file descriptors.", expose::GAUGE, open as f64));
    }
    if let Ok(limits) = process.limits()
        && let LimitValue::Value(maximum) = limits.max_open_files.soft_limit
    {
        families.push(single(
            "process_max_fds",
            "Maximum number of open file descriptors.",
            expose::GAUGE,
            maximum as f64,
        ));
    }
    families
}
