//! The whole proxy, on pipes and a paused clock, in random order.
//!
//! One proxy as its program starts it, a server behind it, and several clients of both eras, all in one thread. A seed
//! chooses the next event: calls, some of which become tasks, requested or unsolicited; input requests on either stream,
//! input responses, cancels, disconnects, broken streams, a server that dies, a slow store, time, and the shutdown. Each
//! call and each input request has a number, and every message about it carries that number; so a message that reaches the
//! wrong client, and one that reaches no client, is found. Stored tasks are compared with those that clients know.
//!
//! `tests/it/simulation/mod.rs` is the same for the state machine of one call, which it covers more densely.

mod client;
mod scenario;
mod server;

use proptest::prelude::*;
use scenario::{Asks, ClientSet, Odds, Profile, WholeProxy};
use std::time::Duration;

/// Parameters of a scenario.
fn profile() -> impl Strategy<Value = Profile> {
    let asks = prop_oneof![Just(Asks::OnTheCall), Just(Asks::OnTheSession), Just(Asks::Anywhere)];
    let crowd = prop_oneof![
        Just(ClientSet::OneModern),
        Just(ClientSet::OneLegacy),
        Just(ClientSet::OneTaker),
        Just(ClientSet::OneOfBoth),
        Just(ClientSet::Everybody),
    ];
    let askable = prop::bool::weighted(0.75);
    let odds = prop::array::uniform27(prop_oneof![Just(1_u8), Just(0), Just(5)]).prop_map(Odds::new);
    let ends = (any::<bool>(), any::<bool>());
    let storing = prop_oneof![3 => Just(Duration::ZERO), 1 => Just(Duration::from_secs(1))];
    let kinds = (asks, any::<bool>(), any::<bool>(), 2..5_usize, crowd, askable, (ends, storing), odds);
    kinds.prop_map(|(asks, documents, always, sessions, crowd, askable, (ends, storing), odds)| Profile {
        asks,
        documents,
        always,
        sessions,
        crowd,
        askable,
        in_a_hurry: ends.0,
        meets: ends.1,
        storing,
        odds,
    })
}

/// Number of random scenarios; more with `DEFERRAL_WHOLE_PROXY_SEEDS`.
fn cases() -> u32 {
    std::env::var("DEFERRAL_WHOLE_PROXY_SEEDS").ok().and_then(|cases| cases.parse().ok()).unwrap_or(64)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_client_receives_its_own_messages_and_no_others(
        profile in profile(),
        picks in prop::collection::vec(any::<u16>(), 20..120),
    ) {
        WholeProxy::run(profile, &picks);
    }
}
