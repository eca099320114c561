//! CPU time of the proxy's process for each call.
//!
//! Everything is measured once in each round, in the same order, so that a disturbance meets all
//! alike; a ratio is taken within a round, and the median of the rounds is reported.

use super::{
    Failure, Options,
    load::Load,
    peers,
    process::{Cpu, Process},
    proxies::{Proxy, Yard},
    report::{Cost, Report, median},
    scenario::{Client, Scenario},
};

/// One proxy under one kind of call.
struct Series {
    proxy: Proxy,
    scenario: Scenario,
    /// The series of the bare proxy that it is measured by.
    base: usize,
    /// The series of the binary that it is held against.
    baseline: Option<usize>,
    /// The series with the memory store.
    memory: Option<usize>,
    /// Which process it is.
    process: usize,
    load: Load,
    rounds: Vec<Cpu>,
}

pub(crate) async fn measure(yard: &Yard, options: &Options, report: &mut Report) -> Result<(), Failure> {
    let mut processes: Vec<(Proxy, Process)> = Vec::new();
    let mut all: Vec<Series> = Vec::new();
    for (proxy, scenario) in plan(options) {
        let process = match processes.iter().position(|(started, _)| *started == proxy) {
            Some(at) => at,
            None => {
                processes.push((proxy, proxy.start(yard).await?));
                processes.len() - 1
            }
        };
        let address = processes[process].1.address;
        let about = |error| Failure::from(format!("{}, {}: {error}", proxy.name(), scenario.name()));
        let ask = scenario.prepare(address).await.map_err(about)?;
        let load = Load::open(address, options.connections, ask).await.map_err(about)?;
        let base = base(&all, proxy, scenario);
        all.push(Series {
            proxy,
            scenario,
            base,
            baseline: None,
            memory: None,
            process,
            load,
            rounds: Vec::new(),
        });
    }
    for at in 0..all.len() {
        let like = |proxy| {
            all.iter().position(|one: &Series| one.proxy == proxy && one.scenario == all[at].scenario)
        };
        let baseline = like(Proxy::Baseline).filter(|_| all[at].proxy == Proxy::Deferral);
        let memory = like(Proxy::Deferral).filter(|_| all[at].proxy == Proxy::Disk);
        (all[at].baseline, all[at].memory) = (baseline, memory);
    }
    for round in 1..=options.rounds() {
        eprintln!("round {round} of {}", options.rounds());
        for series in &mut all {
            let process = &processes[series.process].1;
            let before = process.cpu()?;
            series
                .load
                .run(options.calls())
                .await
                .map_err(|error| format!("{}, {}: {error}", series.proxy.name(), series.scenario.name()))?;
            series.rounds.push(process.cpu()?.since(before));
        }
    }
    for series in &all {
        report.costs.push(cost(series, &all, options.calls()));
    }
    Ok(())
}

/// What is measured, the bare proxy first, and what is held against each other side by side.
fn plan(options: &Options) -> Vec<(Proxy, Scenario)> {
    let plain = [Scenario::Fast(Client::Plain), Scenario::Streamed(Client::Plain)];
    let ours = [
        plain[0],
        Scenario::Fast(Client::Elicitation),
        Scenario::Fast(Client::Tasks),
        plain[1],
        Scenario::Streamed(Client::Tasks),
        Scenario::Fast(Client::Legacy),
        Scenario::Streamed(Client::Legacy),
        Scenario::Completed,
        Scenario::Working,
    ];
    let quiet = [plain[0], Scenario::Completed];
    let peers = peers().flat_map(|peer| plain.map(|scenario| (peer, scenario)));
    let lines = [
        (Proxy::BareLines, plain[0]),
        (Proxy::Lines, plain[0]),
        (Proxy::Lines, Scenario::Fast(Client::Tasks)),
        (Proxy::Lines, Scenario::Completed),
    ];
    peers
        .chain(ours.into_iter().flat_map(|scenario| {
            let disk = ON_DISK.contains(&scenario).then_some(Proxy::Disk);
            options.ours().chain(disk).map(move |proxy| (proxy, scenario))
        }))
        .chain(quiet.map(|scenario| (Proxy::Quiet, scenario)))
        .chain(lines)
        // Without the bare proxy there is nothing to compare with.
        .filter(|(proxy, scenario)| {
            matches!(proxy, Proxy::Bare | Proxy::BareLines) || wants(options, *proxy, *scenario)
        })
        .collect()
}

/// Whether it is to be measured: by itself, or as another is held against it.
pub(crate) fn wants(options: &Options, proxy: Proxy, scenario: Scenario) -> bool {
    let is_beside_disk = proxy == Proxy::Deferral && ON_DISK.contains(&scenario);
    options.wants(proxy.name())
        || options.wants(scenario.name())
        || is_beside_disk && options.wants(Proxy::Disk.name())
}

/// What no store is asked for, and what is answered from memory by every store.
pub(crate) const ON_DISK: [Scenario; 4] =
    [Scenario::Fast(Client::Plain), Scenario::Fast(Client::Tasks), Scenario::Completed, Scenario::Working];

/// The bare proxy under the like: events beside events, all else beside a JSON answer.
fn base(all: &[Series], proxy: Proxy, scenario: Scenario) -> usize {
    let like = match scenario {
        Scenario::Streamed(_) => Scenario::Streamed(Client::Plain),
        Scenario::Fast(_) | Scenario::Completed | Scenario::Working => Scenario::Fast(Client::Plain),
    };
    let bare = match proxy {
        Proxy::BareLines | Proxy::Lines => Proxy::BareLines,
        _ => Proxy::Bare,
    };
    let found = all.iter().position(|series| series.proxy == bare && series.scenario == like);
    // Its own base.
    found.unwrap_or(all.len())
}

fn cost(series: &Series, others: &[Series], calls: usize) -> Cost {
    let each = |cpu: &Cpu| cpu.ns as f64 / 1e3 / calls as f64;
    let to = |other: &Series| -> Vec<f64> {
        series.rounds.iter().zip(&other.rounds).map(|(one, other)| one.ns as f64 / other.ns as f64).collect()
    };
    let ratios = to(&others[series.base]);
    let median_to = |at: Option<usize>| at.map(|at| median(to(&others[at]).into_iter()));
    let all = series.rounds.iter().fold(Cpu::default(), |sum, round| sum.and(*round));
    Cost {
        proxy: series.proxy.name(),
        scenario: series.scenario.name(),
        cpu_us: median(series.rounds.iter().map(each)),
        user_share: all.user_share(),
        ratio: median(ratios.iter().copied()),
        ratio_least: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        ratio_most: ratios.iter().copied().fold(0.0, f64::max),
        baseline: median_to(series.baseline),
        memory: median_to(series.memory),
        goal: match series.proxy {
            Proxy::Deferral | Proxy::Disk | Proxy::Quiet => Some(series.scenario.goal()),
            // Nothing is saved by giving an answer of ours: writing a line costs as little.
            Proxy::Lines => Some(1.5),
            Proxy::Bare | Proxy::Nginx | Proxy::Baseline | Proxy::BareLines => None,
        },
    }
}
