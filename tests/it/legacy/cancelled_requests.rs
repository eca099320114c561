//! Requests that the client has cancelled, or whose session it has deleted, get no response
//! (2025-11-25, *Cancellation*).

use super::proxy_and_client::{HELLO, LegacyClient};
use crate::{
    front::listener_and_service::Lines,
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::legacy_server::Canned,
};
use http::Method;
use tokio::sync::watch;

fn cancel(id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"enough"}}}}"#
    )
}

const SAID: &str = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\n";

#[tokio::test]
async fn the_stream_of_a_cancelled_request_ends_without_an_error() {
    let lines = Lines::record();
    let world = ProxyAndServer::new().await;
    let client = LegacyClient::new(world.addr()).within("s1");
    for breaks in [false, true] {
        let waiting = client.call(23).await;
        let events = world.server.call().await.stream();
        events.raw(SAID);
        assert_eq!(client.post(&cancel("23")).await.answer().await.status, 202);
        let mut stream = waiting.stream().await;
        let mut text = stream.piece().await.expect("it goes on").expect("it does not break off");
        match breaks {
            true => events.break_off(),
            false => drop(events),
        }
        text += &stream.rest().await;
        assert_eq!(text, SAID);
    }
    let outcomes: Vec<_> = lines.until(4).await.iter().map(|line| line["outcome"].clone()).collect();
    assert_eq!(outcomes, ["result", "departed", "result", "departed"]);
}

#[tokio::test]
async fn a_request_that_was_cancelled_gets_no_error_of_ours_before_its_answer_has_begun() {
    let world = ProxyAndServer::new().await;
    let client = LegacyClient::new(world.addr()).within("s1");
    let waiting = client.call(23).await;
    let called = world.server.call().await;
    client.post(&cancel("23")).await.answer().await;
    called.canned(Canned::status(500).body("cancelled"));
    let answer = waiting.answer().await;
    assert_eq!((answer.status.as_u16(), &*answer.body), (200, ""));
    assert_eq!(answer.header("content-type"), "text/event-stream");
}

#[tokio::test]
async fn only_a_cancelled_request_in_this_session_goes_unanswered() {
    let world = ProxyAndServer::new().await;
    let client = LegacyClient::new(world.addr()).within("s1");
    let others = [client.with("mcp-session-id", "s2"), client.with("authorization", "Bearer other")];
    let not_these = ["\"23\"", "24"];
    for other in &others {
        other.post(&cancel("23")).await.answer().await;
    }
    for id in not_these {
        client.post(&cancel(id)).await.answer().await;
    }
    let waiting = client.call(23).await;
    let events = world.server.call().await.stream();
    let mut stream = waiting.stream().await;
    drop(events);
    assert!(stream.rest().await.contains("-31002"));
}

#[tokio::test]
async fn a_cancellation_from_another_principal_has_no_effect() {
    let world = ProxyAndServer::new().await;
    let client = LegacyClient::new(world.addr()).within("s1");
    let waiting = client.call(23).await;
    let events = world.server.call().await.stream();
    client.post(&cancel("23")).await.answer().await;
    let many: Vec<_> = (0..=16 << 10).map(|id| cancel(&id.to_string())).collect();
    let stranger = client.with("mcp-session-id", "invented").with("authorization", "Bearer other");
    stranger.post(&format!("[{}]", many.join(","))).await.answer().await;
    let stream = waiting.stream();
    drop(events);
    assert_eq!(stream.await.rest().await, "");
}

#[tokio::test]
async fn the_stream_of_a_deleted_session_ends_without_an_error() {
    for (status, owed) in [(200, false), (204, false), (405, true)] {
        let (say, said) = watch::channel(false);
        let world = Setup::new()
            .server(|options| {
                options.hook = Some(Box::new(move |seen| {
                    (seen.http == Method::DELETE).then(|| {
                        // The stream ends before this is answered.
                        say.send_replace(true);
                        Canned::status(status)
                    })
                }));
            })
            .start()
            .await;
        let client = LegacyClient::new(world.addr());
        client.post(HELLO).await.answer().await;
        let client = client.within("s1");
        let waiting = client.call(23).await;
        let events = world.server.call().await.stream();
        events.raw(SAID);
        let mut stream = waiting.stream().await;
        let mut text = stream.piece().await.expect("it goes on").expect("it does not break off");
        let leaving = client.send(Method::DELETE, "/mcp", "").await;
        said.clone().wait_for(|told| *told).await.expect("it is asked");
        drop(events);
        text += &stream.rest().await;
        assert_eq!(text.contains("-31002"), owed, "{status}: {text}");
        assert_eq!(leaving.answer().await.status, status);
    }
}
