//! Instructions of the proxy's process for each call, outside the kernel, as valgrind counts them.
//!
//! Slow, but the same on every machine and in every run. What happens once is taken out by counting
//! two runs of different length.

use super::{
    Failure, Options,
    cost::{self, ON_DISK},
    load::Load,
    peers,
    proxies::{self, Proxy, Yard},
    report::{Instructions, Report},
    scenario::{Client, Scenario},
};
use std::fs;

const FEW: usize = 500;
const MANY: usize = 2_500;
/// Valgrind runs one thread at a time, so more would only wait.
const CONNECTIONS: usize = 8;

pub(crate) async fn measure(yard: &Yard, options: &Options, report: &mut Report) -> Result<(), Failure> {
    let Some(valgrind) = proxies::find("valgrind") else {
        report.note("valgrind is not installed: no instructions are counted");
        return Ok(());
    };
    let valgrind = valgrind.display().to_string();
    let ours = [
        Scenario::Fast(Client::Plain),
        Scenario::Fast(Client::Elicitation),
        Scenario::Fast(Client::Tasks),
        Scenario::Fast(Client::Legacy),
        Scenario::Completed,
        Scenario::Working,
    ];
    let plan = peers()
        .map(|peer| (peer, Scenario::Fast(Client::Plain)))
        // The older binary first, so that there is something to hold the other against.
        .chain(ours.into_iter().flat_map(|scenario| {
            let proxies: Vec<_> = options.ours().collect();
            let disk = ON_DISK.contains(&scenario).then_some(Proxy::Disk);
            proxies.into_iter().rev().chain(disk).map(move |proxy| (proxy, scenario))
        }))
        .chain([(Proxy::Quiet, Scenario::Fast(Client::Plain)), (Proxy::Quiet, Scenario::Completed)]);
    let mut bare = None;
    for (proxy, scenario) in plan {
        if proxy != Proxy::Bare && !cost::wants(options, proxy, scenario) {
            continue;
        }
        eprintln!("instructions: {}, {}", proxy.name(), scenario.name());
        let few = count(yard, &valgrind, proxy, scenario, FEW).await?;
        let many = count(yard, &valgrind, proxy, scenario, MANY).await?;
        let each = many.saturating_sub(few) as f64 / (MANY - FEW) as f64;
        let base = *bare.get_or_insert(each);
        let to = |other: Proxy| {
            let all = &mut report.instructions.iter();
            let other = all.find(|one| one.proxy == other.name() && one.scenario == scenario.name());
            other.map(|other| each / other.each)
        };
        let baseline = to(Proxy::Baseline).filter(|_| proxy == Proxy::Deferral);
        let memory = to(Proxy::Deferral).filter(|_| proxy == Proxy::Disk);
        report.instructions.push(Instructions {
            proxy: proxy.name(),
            scenario: scenario.name(),
            each,
            ratio: each / base,
            baseline,
            memory,
        });
    }
    Ok(())
}

/// Everything that is executed from start to end of a process that serves so many calls.
async fn count(
    yard: &Yard,
    valgrind: &str,
    proxy: Proxy,
    scenario: Scenario,
    calls: usize,
) -> Result<u64, Failure> {
    let log = yard.folder.join("valgrind.log");
    let runner = [
        valgrind.to_owned(),
        "--tool=cachegrind".to_owned(),
        "--cache-sim=no".to_owned(),
        "--cachegrind-out-file=/dev/null".to_owned(),
        format!("--log-file={}", log.display()),
    ];
    let process = proxy.start_under(yard, &runner).await?;
    let ask = scenario.prepare(process.address).await?;
    let mut load = Load::open(process.address, CONNECTIONS, ask).await?;
    load.run(calls).await?;
    drop(load);
    process.end().await?;
    let text = fs::read_to_string(&log)?;
    let line = text.lines().find(|line| line.contains("I ") && line.contains("refs:"));
    let count = line.and_then(|line| line.rsplit(':').next()).ok_or("valgrind counted nothing")?;
    Ok(count.trim().replace(',', "").parse()?)
}
