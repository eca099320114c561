//! Starts, calls and kills in random order leave no process and no descriptor: neither when proxies end, nor in a proxy that
//! keeps running (`one_proxy`).
//!
//! `CHAOS` says how many there are, `SEED` which.

mod one_proxy;

use super::{Proxy, arguments, is_supervisor, send};
use futures_util::{StreamExt, stream};
use serde_json::json;
use std::{
    env, fs,
    future::ready,
    sync::atomic::{AtomicUsize, Ordering},
};

/// Default number of events.
const USUAL: usize = 60;
/// Proxies at the same time.
const AT_ONCE: usize = 3;
/// Descriptors that a proxy may have open in front of one command, with a client or two.
const DESCRIPTORS: usize = 40;

struct Chance(u64);

impl Chance {
    fn of(&mut self, many: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("it fits") % many
    }

    fn one<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.of(all.len())]
    }
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"))
}

/// One proxy and what happens to it. Gives how much that was.
async fn round(seed: u64) -> usize {
    let mut chance = Chance(seed);
    let nasty = chance.one(&["plain", "plain", "helper", "setsid", "both"]);
    let proxy = Proxy::start(nasty);
    let client = proxy.client();
    let mut done = 2;
    for _ in 0..1 + chance.of(3) {
        done += 1;
        match chance.of(5) {
            0 | 1 => assert_eq!(client.call("echo").await.answer().await.text(), "x"),
            // A client that leaves, and those after it wait for what it has left behind.
            2 => {
                let before = proxy.logged("it sleeps");
                let waiting = client.send("tools/call", arguments("sleep", json!({ "seconds": 0.5 }))).await;
                let waiting = waiting.follow();
                proxy.has_logged_more("it sleeps", before).await;
                waiting.leave();
            }
            // The command, or anything that it has started. Where the supervisor is killed and then the proxy,
            // there is nobody left to see to it.
            3 => {
                let below = proxy.below();
                let below: Vec<_> = below.into_iter().filter(|pid| !is_supervisor(*pid)).collect();
                if !below.is_empty() {
                    send("-KILL", chance.one(&below));
                    break;
                }
            }
            _ => {
                let client = client.declaring(json!({ "elicitation": {} }));
                assert_eq!(client.call("echo").await.answer().await.text(), "x");
            }
        }
    }
    let open = fs::read_dir(format!("/proc/{}/fd", proxy.child.id())).expect("it runs").count();
    assert!(open <= DESCRIPTORS, "{open}");
    match chance.of(3) {
        0 => proxy.stops().await,
        _ => proxy.dies().await,
    }
    done
}

#[tokio::test]
async fn starts_calls_and_kills_in_random_order_leave_no_process_and_no_descriptor() {
    let (many, seed) = (number("CHAOS").map_or(USUAL, |many| many as usize), number("SEED").unwrap_or(1));
    let done = AtomicUsize::new(0);
    let rounds = stream::iter(0..).take_while(|_| ready(done.load(Ordering::Relaxed) < many));
    let rounds = rounds.map(|n: u64| round(seed.wrapping_add(n * 7919))).buffer_unordered(AT_ONCE);
    rounds
        .for_each(async |more| {
            done.fetch_add(more, Ordering::Relaxed);
        })
        .await;
}
