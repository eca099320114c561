//! Parked calls whose client does not retry in time, and servers that stop waiting.

use super::asking_server_and_client::{
    Asking, ProxyAndServer, Questions, Setup, Talk, WAYS, Way, accept, asked, asked_with_tasks, form,
    refusal, roots, sampling,
};
use crate::support::{limit_hits::LimitHits, paused_time::passes};
use http::Method;
use serde_json::json;
use std::time::Duration;

const BRIEFLY: &str = "questions: { park: 200ms }";

#[tokio::test]
async fn an_input_request_over_the_park_time_is_cancelled_with_its_call() {
    let hits = LimitHits::of("questions.park");
    for way in WAYS {
        let world = ProxyAndServer::with(BRIEFLY).await;
        let talk = Talk::tool(&asked(&world));
        let waiting = talk.begin().await;
        let server = Asking::next(&world, way).await;
        server.ask(0, &form("Who?"));
        server.ask(1, &sampling());
        server.ask(2, &roots());
        let questions = Questions::of(&waiting.answer().await);

        assert_eq!(server.answered(&world, 0).await, json!({ "action": "cancel" }));
        for id in [1, 2] {
            let error = server.answered(&world, id).await;
            assert_eq!(error["code"], -32603, "{error}");
        }
        server.cancelled(&world).await;
        let (code, message) = refusal(&talk.retry(&questions, json!({})).await.answer().await);
        assert_eq!(code, -32602);
        assert!(message.contains("ended") || message.contains("expired"), "{message}");
        let session = server.session.clone();
        server.left().await;
        // A cancelled request may have hurt its session.
        world.server.seen(|seen| seen.http == Method::DELETE && seen.session() == session).await;
        assert_eq!(world.calls(), 1);
    }
    // Once a call, however much it has asked.
    hits.are(WAYS.len() as u64).await;
}

#[tokio::test]
async fn each_retry_gives_the_next_input_request_its_whole_time() {
    let world = ProxyAndServer::with("questions: { park: 20s }").await;
    let talk = Talk::tool(&asked(&world));
    let (server, mut questions) = talk.is_asked(&world, Way::OnTheCall, &form("Round 0?")).await;
    for round in 1..6 {
        let waiting = talk.retry(&questions, json!({ questions.key(): accept("Ada") })).await;
        server.answered(&world, round - 1).await;
        server.ask(round, &form(&format!("Round {round}?")));
        questions = Questions::of(&waiting.answer().await);
        // All of them together are long over. What was due has been done when somebody has been answered.
        passes(Duration::from_secs(10)).await;
        world.client().ask("server/discover", json!({})).await.result();
        assert_eq!(world.server.messages("notifications/cancelled"), 0, "{round}");
    }
}

#[tokio::test]
async fn a_server_that_stops_waiting_first_has_its_result_delivered_to_the_retry() {
    for way in WAYS {
        let world = ProxyAndServer::new().await;
        let talk = Talk::tool(&asked(&world));
        let (server, questions) = talk.is_asked(&world, way, &form("Who?")).await;
        // As servers on the TypeScript SDK do after a minute.
        server.withdraw(0);
        server
            .result(json!({ "content": [{ "type": "text", "text": "Request timed out" }], "isError": true }));
        let answer = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await.answer().await;
        assert_eq!(
            (answer.text(), &answer.result()["isError"]),
            ("Request timed out".to_owned(), &json!(true))
        );
        let (code, message) = refusal(&talk.retry(&questions, json!({})).await.answer().await);
        assert_eq!(code, -32602);
        assert!(message.contains("has ended"), "{message}");
        assert_eq!(world.calls(), 1);
        assert_eq!(world.server.messages("notifications/cancelled"), 0);
    }
}

/// Waits until the time of all that was parked before is over: as long as a call waits that is parked
/// only now.
async fn server_of_another_is_given_up() {
    let other = ProxyAndServer::with(BRIEFLY).await;
    let (abandoned, _) = Talk::tool(&asked(&other)).is_asked(&other, Way::OnTheCall, &form("?")).await;
    abandoned.cancelled(&other).await;
}

/// The call was sent and requested input: no error may claim that nothing was done.
#[tokio::test]
async fn a_retry_of_a_call_whose_server_is_down_reports_an_unknown_outcome() {
    for way in WAYS {
        let world = ProxyAndServer::new().await;
        let talk = Talk::tool(&asked(&world));
        let (_server, questions) = talk.is_asked(&world, way, &form("Who?")).await;
        let ProxyAndServer { server, proxy: _proxy } = world;
        drop(server);
        let answer = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await.answer().await;
        assert_eq!(refusal(&answer).0, -31002, "{answer:?}");
        // Later the call is unknown. No error invites the client to run it twice.
        let (code, message) = refusal(&talk.retry(&questions, json!({})).await.answer().await);
        assert_eq!(code, -32602);
        assert!(message.contains("it may have run"), "{message}");
    }
}

#[tokio::test]
async fn an_unfetched_result_of_a_parked_call_is_dropped_without_a_cancellation() {
    for way in WAYS {
        let world = ProxyAndServer::with(BRIEFLY).await;
        let talk = Talk::tool(&asked(&world));
        let (server, questions) = talk.is_asked(&world, way, &form("Who?")).await;
        server.withdraw(0);
        server.says("done without");
        server_of_another_is_given_up().await;
        assert_eq!(refusal(&talk.retry(&questions, json!({})).await.answer().await).0, -32602);
        assert_eq!(world.server.messages("notifications/cancelled"), 0);
    }
}

#[tokio::test]
async fn the_permit_of_an_expired_parked_call_is_free_again() {
    for way in WAYS {
        let setup = Setup::new().route(BRIEFLY).route("defer: { after: 30s }");
        let world = setup.top("limits: { tasks_per_principal: 1, sessions: 1 }").start().await;
        let talk = Talk::tool(&asked_with_tasks(&world));
        for _ in 0..3 {
            let (server, _) = talk.is_asked(&world, way, &form("Who?")).await;
            server.cancelled(&world).await;
        }
    }
}

#[tokio::test]
async fn stopping_the_proxy_abandons_what_waits_for_a_client() {
    for way in WAYS {
        let world = Setup::new().top("drain: 50ms").start().await;
        let talk = Talk::tool(&asked(&world));
        let (server, _) = talk.is_asked(&world, way, &form("Who?")).await;
        let ProxyAndServer { server: legacy, proxy } = world;
        proxy.stop().await;
        let answers = legacy.log().into_iter().filter(|seen| seen.answers(&json!(0))).collect::<Vec<_>>();
        let [answer] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(answer.json["result"], json!({ "action": "cancel" }));
        let told = |seen: &crate::support::legacy_server::Seen| {
            seen.method() == "notifications/cancelled" && seen.json["params"]["requestId"] == server.id
        };
        assert_eq!(legacy.count(told), 1);
    }
}
