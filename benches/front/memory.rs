//! Resident memory of the proxy for each task it has parked and each call it holds.

use super::{
    Failure, Options,
    load::{self, Ask, Connection, Load},
    peers,
    process::Process,
    proxies::{Proxy, Yard},
    report::{Memory, Report},
    scenario::{Client, Scenario, deferred, slow, tells_held},
};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::{net::SocketAddr, time::Duration};
use tokio::time::{sleep, timeout};

/// How long the upstream may take to have heard of all calls.
const ARRIVAL: Duration = Duration::from_secs(60);

/// Until what was needed on the way has been given back.
const SETTLE: Duration = Duration::from_millis(500);

/// Longer than anything here: nothing that is held ends by itself.
const LONG: f64 = 3600.0;

/// Descriptors for everything else.
const SPARE: u64 = 256;

pub(crate) async fn measure(yard: &Yard, options: &Options, report: &mut Report) -> Result<(), Failure> {
    let count = affordable(options.held(), report)?;
    // The older binary first, so that there is something to hold the other against.
    let ours: Vec<_> = options.ours().collect();
    let lines = [IDLE, HELD, ADDED, PARKED].map(|what| (Proxy::Lines, what));
    let held = peers().chain(ours.iter().rev().copied()).map(|proxy| (proxy, HELD));
    for (proxy, what) in held.chain(ours.iter().rev().map(|proxy| (*proxy, PARKED))).chain(lines) {
        if !options.wants(proxy.name()) && !options.wants(what) {
            continue;
        }
        eprintln!("memory: {}, {what}", proxy.name());
        let process = proxy.start(yard).await?;
        warm(&process, options).await?;
        let mut before = process.resident()?;
        let mut connections = Vec::new();
        match what {
            PARKED => park(&process, count).await?,
            HELD => {
                open(&process, count, &mut connections).await?;
                hold(&mut connections).await?;
            }
            _ => {
                open(&process, count, &mut connections).await?;
                use_once(&process, &mut connections).await?;
                if what == ADDED {
                    sleep(SETTLE).await;
                    before = process.resident()?;
                    hold(&mut connections).await?;
                }
            }
        }
        let server = match proxy {
            Proxy::Lines => (process.address, tells_held()),
            _ => (yard.upstream, Ask::get("/held")),
        };
        arrived(&server, if what == IDLE { 0 } else { count }).await?;
        sleep(SETTLE).await;
        let kib = (process.resident()? - before) / count as f64;
        let older = report.memory.iter().find(|one| one.proxy == Proxy::Baseline.name() && one.what == what);
        let baseline = older.filter(|_| proxy == Proxy::Deferral).map(|older| kib / older.kib);
        report.memory.push(Memory {
            proxy: proxy.name(),
            what,
            count,
            kib,
            before_mib: before / 1024.0,
            baseline,
            goal: match (proxy, what) {
                (Proxy::Lines, ADDED | PARKED) => Some(4.0),
                (_, PARKED) => Some(24.0),
                _ => None,
            },
        });
        drop((connections, process));
        if proxy != Proxy::Lines {
            arrived(&server, 0).await?;
        }
    }
    Ok(())
}

/// A connection that has been used and waits for its client's next request.
const IDLE: &str = "idle connection";
/// With the connection of its client.
const HELD: &str = "held call";
/// Without it: on connections that were idle.
const ADDED: &str = "held call, its connection left out";
const PARKED: &str = "parked task";

/// How many can be held: each takes two descriptors of a proxy.
fn affordable(wanted: usize, report: &mut Report) -> Result<usize, Failure> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Children begin with what we have.
    setrlimit(Resource::Nofile, limit)?;
    let Some(descriptors) = limit.current else { return Ok(wanted) };
    let most = usize::try_from(descriptors.saturating_sub(SPARE) / 2)?;
    if most < wanted {
        report
            .note(format!("{most} calls are held instead of {wanted}, for want of descriptors (ulimit -n)"));
    }
    match wanted.min(most) {
        0 => Err(format!("{descriptors} descriptors are too few to hold a call (ulimit -n)").into()),
        count => Ok(count),
    }
}

/// Lets the process allocate what it needs once.
async fn warm(process: &Process, options: &Options) -> Result<(), Failure> {
    let ask = Scenario::Fast(Client::Plain).prepare(process.address).await?;
    let mut load = Load::open(process.address, options.connections, ask).await?;
    load.run(options.connections * 20).await?;
    drop(load);
    sleep(SETTLE).await;
    Ok(())
}

/// Makes tasks; their clients have left when this returns.
async fn park(process: &Process, count: usize) -> Result<(), Failure> {
    let mut connection = Connection::open(process.address).await?;
    for _ in 0..count {
        connection.ask(&deferred(LONG)).await?;
    }
    Ok(())
}

async fn open(process: &Process, count: usize, connections: &mut Vec<Connection>) -> Result<(), Failure> {
    for _ in 0..count {
        connections.push(Connection::open(process.address).await?);
    }
    Ok(())
}

/// Makes a call on each that is answered at once.
async fn use_once(process: &Process, connections: &mut [Connection]) -> Result<(), Failure> {
    let ask = Scenario::Fast(Client::Plain).prepare(process.address).await?;
    for connection in connections {
        connection.ask(&ask).await?;
    }
    Ok(())
}

/// Makes calls whose clients wait.
async fn hold(connections: &mut [Connection]) -> Result<(), Failure> {
    let ask = slow(LONG, Client::Plain);
    for connection in connections {
        connection.send(&ask).await?;
    }
    Ok(())
}

/// Waits until the upstream holds as many calls.
async fn arrived((server, ask): &(SocketAddr, Ask), count: usize) -> Result<(), Failure> {
    let mut held = 0;
    let all = timeout(ARRIVAL, async {
        loop {
            let answer = String::from_utf8(load::once(*server, ask).await?.body)?;
            // A number, or `held 7.` in a tool's result.
            let said = answer.split_once("held ").map_or(&*answer, |(_, rest)| rest);
            held = said.split('.').next().unwrap_or_default().parse::<usize>()?;
            if held == count {
                return Ok::<_, Failure>(());
            }
            sleep(Duration::from_millis(50)).await;
        }
    });
    all.await.map_err(|_| format!("the server holds {held} calls instead of {count}"))?
}
