//! Opening a session: what a failed handshake means for the call that needs it, and which revision is offered.

use super::*;

const NOT_RUN: i64 = -31001;
const UNAUTHORIZED: i64 = -31008;

/// What becomes of a call where the server treats one message of the handshake like this.
async fn refused_in(options: Options) -> CallError {
    let world = World::new(options).await;
    let lost = world.call(1).lost().await;
    assert_eq!(world.server.messages("tools/call"), 0, "the call was not sent");
    lost
}

#[tokio::test]
async fn a_handshake_that_fails_says_that_the_call_did_not_run() {
    for method in ["initialize", "notifications/initialized"] {
        let breaks = Options { breaks: Box::new(move |seen| seen.method() == method), ..Options::default() };
        let lost = refused_in(breaks).await;
        assert_eq!(lost.code(), NOT_RUN, "{method}: {lost}");
        assert!(lost.to_string().contains("no call was sent"), "{lost}");
        assert!(!lost.to_string().contains("unknown") && !lost.leaves_it_running(), "{lost}");
        for status in [400, 404, 410, 500, 503] {
            let refuses = Options::default()
                .hook(move |seen| (seen.method() == method).then(|| Canned::status(status).body("no")));
            let lost = refused_in(refuses).await;
            assert_eq!(lost.code(), NOT_RUN, "{method} {status}: {lost}");
            assert!(lost.to_string().contains(&format!("HTTP {status}")), "{lost}");
        }
    }
    let garbled = |body: &'static str| {
        Options::default().hook(move |seen| {
            let canned = Canned::status(200).body(body).header("content-type", "application/json");
            (seen.method() == "initialize").then_some(canned)
        })
    };
    for body in ["", "{", "[]", r#"{"jsonrpc":"2.0","id":1}"#] {
        let lost = refused_in(garbled(body)).await;
        assert_eq!(lost.code(), NOT_RUN, "{body}: {lost}");
    }
}

#[tokio::test]
async fn credentials_refused_in_the_handshake_are_refused_credentials() {
    for method in ["initialize", "notifications/initialized"] {
        for status in [401, 403] {
            let refuses = Options::default()
                .hook(move |seen| (seen.method() == method).then(|| Canned::status(status)));
            assert_eq!(refused_in(refuses).await.code(), UNAUTHORIZED, "{method} {status}");
        }
    }
}

#[tokio::test]
async fn a_limit_that_ends_a_handshake_keeps_its_name() {
    let options = Options { ignores: Box::new(|seen| seen.method() == "initialize"), ..Options::default() };
    let world = World::with(options, |config| config.timeouts.first_byte = Duration::from_millis(20)).await;
    let lost = world.call(1).lost().await;
    assert_eq!(lost.code(), NOT_RUN, "{lost}");
    assert!(lost.limit().is_some(), "{lost}");
}
