//! Input requests over every transport and revision.

use super::asking_server_and_client::{
    ALWAYS, Asking, ProxyAndServer, Questions, Setup, Talk, WAYS, Way, accept, asked, asked_with_tasks, form,
    update,
};
use crate::support::{modern_client::Version, paused_time::passes};
use http::Method;
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn an_input_request_is_answered_under_the_servers_own_id_letter_for_letter() {
    for way in WAYS {
        for id in ["0", "-1", "9007199254740993", r#""0""#, r#""a\u0062\n""#, r#""""#] {
            let world = ProxyAndServer::new().await;
            let talk = Talk::tool(&asked(&world));
            let waiting = talk.begin().await;
            let server = Asking::next(&world, way).await;
            server.ask_as(id, &form("Who?"));
            let questions = Questions::of(&waiting.answer().await);
            let _waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
            world.server.seen(|seen| seen.answers_raw(id)).await;
        }
    }
}

#[tokio::test]
async fn over_http_2_one_connection_carries_the_call_its_retries_and_much_else() {
    for way in WAYS {
        let world = ProxyAndServer::with("defer: { after: 10s }").await;
        let client = asked_with_tasks(&world).over(Version::Http2);
        let mut kept = client.kept().await;
        let talk = Talk::tool(&client);
        let params = json!({ "name": "greet", "arguments": { "loud": true, "times": 2 } });
        let waiting = kept.begin(client.request("tools/call", params)).await;
        // A stream is opened when its response is awaited.
        let waiting = tokio::spawn(waiting.answer());
        let server = Asking::next(&world, way).await;
        server.ask(0, &form("Who?"));
        let questions = Questions::of(&waiting.await.expect("an answer"));
        kept.ask("server/discover", json!({})).await.result();
        let retry = talk.retrying(&questions, json!({ "elicitation-1": accept("Ada") }));
        let slow = async {
            assert_eq!(server.answered(&world, 0).await, accept("Ada"));
            passes(Duration::from_secs(10)).await;
        };
        let (answer, ()) = tokio::join!(kept.ask("tools/call", retry), slow);
        let task = answer.task();
        server.ask(1, &form("And where?"));
        client.until(&task, |task| task["status"] == "input_required").await;
        let answers = json!({ "taskId": task, "inputResponses": { "elicitation-2": accept("Turin") } });
        kept.ask("tasks/update", answers).await.result();
        assert_eq!(server.answered(&world, 1).await, accept("Turin"));
        server.says("Hello");
        assert_eq!(client.ended(&task).await["status"], "completed");
    }
}

#[tokio::test]
async fn a_server_without_sessions_can_ask_too() {
    for way in WAYS {
        let world = Setup::new().server(|options| options.sessions = false).start().await;
        let talk = Talk::tool(&asked(&world));
        let (server, questions) = talk.is_asked(&world, way, &form("Who?")).await;
        let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
        assert_eq!(server.answered(&world, 0).await, accept("Ada"));
        server.says("Hello");
        assert_eq!(waiting.answer().await.text(), "Hello");
    }
}

#[tokio::test]
async fn servers_of_every_legacy_revision_can_ask() {
    for version in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let world = Setup::new().server(|options| options.version = version).start().await;
        let talk = Talk::tool(&asked(&world));
        let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
        let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
        assert_eq!(server.answered(&world, 0).await, accept("Ada"));
        server.says("Hello");
        assert_eq!(waiting.answer().await.text(), "Hello");
    }
}

#[tokio::test]
async fn an_input_request_outlives_the_stream_it_came_on_where_the_server_can_resume_it_again() {
    for mode in ["defer: { mode: never }", ALWAYS] {
        let world = ProxyAndServer::with(mode).await;
        let client = asked_with_tasks(&world);
        let talk = Talk::tool(&client);
        let waiting = talk.begin().await;
        let call = world.server.call().await;
        let (id, session) = (call.id(), call.session().to_owned());
        let events = call.stream();
        let mut question = form("Who?");
        question["jsonrpc"] = json!("2.0");
        question["id"] = json!(0);
        events.raw(format!("id: 7\nretry: 10\ndata: {question}\n\n"));
        drop(events);
        let resumed = |seen: &crate::support::legacy_server::Seen| {
            seen.http == Method::GET && seen.header("last-event-id") == Some("7")
        };
        world.server.seen(resumed).await;
        let resumed = world.server.listener(&session).await;

        let answer = waiting.answer().await;
        let told =
            |seen: &crate::support::legacy_server::Seen| seen.answers(&json!(0)) && seen.session() == session;
        let result = json!({ "content": [{ "type": "text", "text": "Hello" }] });
        if mode == ALWAYS {
            let task = answer.task();
            client.until(&task, |task| task["status"] == "input_required").await;
            update(&client, &task, json!({ "elicitation-1": accept("Ada") })).await;
            assert_eq!(world.server.seen(told).await.json["result"], accept("Ada"));
            resumed.result(&id, result);
            assert_eq!(client.ended(&task).await["status"], "completed");
        } else {
            let waiting =
                talk.retry(&Questions::of(&answer), json!({ "elicitation-1": accept("Ada") })).await;
            assert_eq!(world.server.seen(told).await.json["result"], accept("Ada"));
            resumed.result(&id, result);
            assert_eq!(waiting.answer().await.text(), "Hello");
        }
        assert_eq!(world.calls(), 1);
    }
}
