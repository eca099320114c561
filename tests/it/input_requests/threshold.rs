//! Input requests on the call, which then becomes a task.

use super::asking_server_and_client::{
    Asking, ProxyAndServer, Questions, Setup, TASKS, Talk, WAYS, Way, accept, asked, asked_with_tasks, form,
    sampled, sampling, update,
};
use crate::support::paused_time::passes;
use serde_json::{Value, json};
use std::time::Duration;

/// The threshold of these tests: nothing that is to happen before it takes as long.
const LATER: &str = "defer: { after: 10s }";
const AFTER: Duration = Duration::from_secs(10);
/// How long the questions of some are gathered.
const SETTLE: Duration = Duration::from_secs(15);

#[tokio::test]
async fn a_call_that_asked_becomes_a_task_when_it_is_slow_after_its_answer() {
    for way in WAYS {
        let world = ProxyAndServer::with(LATER).await;
        let client = asked_with_tasks(&world);
        let talk = Talk::tool(&client);
        let (server, questions) = talk.is_asked(&world, way, &form("Who?")).await;
        let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
        assert_eq!(server.answered(&world, 0).await, accept("Ada"));
        passes(AFTER).await;
        let answer = waiting.answer().await;
        let task = answer.task();
        for member in ["requestState", "inputRequests"] {
            assert_eq!(answer.result().get(member), None, "{member} is not of a task");
            assert_eq!(client.task(&task).await.get(member), None, "{member}");
        }
        server.says("Hello Ada");
        let ended = client.ended(&task).await;
        assert_eq!(ended["result"]["content"][0]["text"], "Hello Ada");
        assert_eq!(ended["result"]["resultType"], "complete");
        assert_eq!(world.calls(), 1);
    }
}

#[tokio::test]
async fn the_time_its_client_thinks_does_not_count_against_the_threshold() {
    let world = ProxyAndServer::with(LATER).await;
    let talk = Talk::tool(&asked_with_tasks(&world));
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    passes(AFTER).await;
    let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    server.answered(&world, 0).await;
    server.says("quick enough");
    assert_eq!(waiting.answer().await.text(), "quick enough");
}

#[tokio::test]
async fn an_input_request_that_is_being_settled_wins_over_the_threshold() {
    let setup = Setup::new().route(LATER);
    let world = setup.route("questions: { settle: 15s }").start().await;
    let talk = Talk::tool(&asked_with_tasks(&world));
    let waiting = talk.begin().await;
    let server = Asking::next(&world, Way::OnTheCall).await;
    server.ask(0, &form("Who?"));
    server.heard(&world).await;
    passes(AFTER).await;
    // What was due has been done when others have been answered.
    asked(&world).ask("server/discover", json!({})).await.result();
    passes(SETTLE - AFTER).await;
    let questions = Questions::of(&waiting.answer().await);
    assert_eq!(questions.key(), "elicitation-1");
    let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    server.answered(&world, 0).await;
    server.says("Hello");
    assert_eq!(waiting.answer().await.text(), "Hello");
}

#[tokio::test]
async fn input_requests_before_and_after_the_task_have_keys_of_one_kind() {
    for way in WAYS {
        let world = ProxyAndServer::with(LATER).await;
        let client = asked_with_tasks(&world);
        let talk = Talk::tool(&client);
        let (server, questions) = talk.is_asked(&world, way, &form("Who?")).await;
        assert_eq!(questions.key(), "elicitation-1");
        let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
        server.answered(&world, 0).await;
        passes(AFTER).await;
        let task = waiting.answer().await.task();
        server.ask(1, &form("And where?"));
        let asks = client.until(&task, |task| task["status"] == "input_required").await;
        assert_eq!(asks["inputRequests"], json!({ "elicitation-2": form("And where?") }));
        update(&client, &task, json!({ "elicitation-2": accept("Turin") })).await;
        assert_eq!(server.answered(&world, 1).await, accept("Turin"));
        server.says("Hello");
        assert_eq!(client.ended(&task).await["status"], "completed");
    }
}

#[tokio::test]
async fn unanswered_input_requests_are_sent_on_the_call_before_it_may_become_a_task() {
    let setup = Setup::new().route(LATER);
    let world = setup.route("questions: { settle: 15s }").start().await;
    let talk = Talk::tool(&asked_with_tasks(&world));
    let waiting = talk.begin().await;
    let server = Asking::next(&world, Way::OnTheCall).await;
    server.ask(0, &form("Who?"));
    server.ask(1, &sampling());
    server.heard(&world).await;
    passes(SETTLE).await;
    let first = Questions::of(&waiting.answer().await);
    assert_eq!(first.requests.len(), 2);
    let waiting = talk.retry(&first, json!({ "sampling-1": sampled() })).await;
    server.answered(&world, 1).await;
    passes(SETTLE).await;
    let rest = Questions::of(&waiting.answer().await);
    assert_eq!(rest.key(), "elicitation-1");
    let waiting = talk.retry(&rest, json!({ "elicitation-1": accept("Ada") })).await;
    server.answered(&world, 0).await;
    passes(AFTER).await;
    waiting.answer().await.task();
}

#[tokio::test]
async fn the_state_of_a_call_that_has_become_a_task_finds_the_task() {
    let world = ProxyAndServer::with(LATER).await;
    let client = asked_with_tasks(&world);
    let talk = Talk::tool(&client);
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    server.answered(&world, 0).await;
    passes(AFTER).await;
    let task = waiting.answer().await.task();
    // Its client did not see that answer, and comes back once more.
    let again = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await.answer().await;
    assert_eq!(again.task(), task);
    assert_eq!((world.calls(), world.server.count(|seen| seen.answers(&json!(0)))), (1, 1));
    server.says("done");
    assert_eq!(client.ended(&task).await["status"], "completed");
    // Also when it has ended: a call made anew would be made twice.
    let late = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await.answer().await;
    assert_eq!((late.task(), &late.result()["status"]), (task.clone(), &json!("completed")));
    let plain = talk.by(&asked(&world)).retry(&questions, json!({})).await.answer().await;
    assert_eq!(plain.refusal(), (400, -32021), "{plain:?}");
    let needs = &plain.error()["data"]["requiredCapabilities"]["extensions"];
    assert_eq!(*needs, json!({ TASKS: {} }));
    assert_eq!(world.calls(), 1);
}

#[tokio::test]
async fn a_client_that_disconnects_before_it_has_the_handle_cancels_the_call_it_answered() {
    let world = ProxyAndServer::with("defer: { after: 1h }").await;
    let talk = Talk::tool(&asked_with_tasks(&world));
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    server.answered(&world, 0).await;
    waiting.leave();
    server.cancelled(&world).await;
}

#[tokio::test]
async fn a_call_that_waits_for_answers_counts_as_the_task_it_may_become() {
    for way in WAYS {
        let setup = Setup::new().route(LATER);
        let world = setup.top("limits: { tasks_per_principal: 1 }").start().await;
        let client = asked_with_tasks(&world).bearing("alice");
        let talk = Talk::tool(&client);
        let (server, questions) = talk.is_asked(&world, way, &form("Who?")).await;

        // It waits, and has taken the only place: the next is no task, and cannot ask.
        let other = Talk::tool(&client).begin().await;
        let second = Asking::next(&world, way).await;
        second.ask(7, &form("Who?"));
        let refused = second.answered(&world, 7).await;
        assert!(
            refused["message"].as_str().expect("words").contains("limits.tasks_per_principal"),
            "{refused}"
        );
        second.says("done without");
        assert_eq!(other.answer().await.text(), "done without");
        // What needs not wait needs no place.
        let along = json!({ "elicitation-1": accept("Bob") });
        let other = Talk::tool(&client).with("inputResponses", along).begin().await;
        let second = Asking::next(&world, way).await;
        second.ask(8, &form("Who?"));
        assert_eq!(second.answered(&world, 8).await, accept("Bob"));
        second.says("Hello Bob");
        assert_eq!(other.answer().await.text(), "Hello Bob");
        // Others are not concerned.
        let bob = asked_with_tasks(&world).bearing("bob");
        let (third, _) = Talk::tool(&bob).is_asked(&world, way, &form("Who?")).await;

        // The place is its own: it may ask again in it, and become a task.
        let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
        server.answered(&world, 0).await;
        server.ask(1, &form("Sure?"));
        let questions = Questions::of(&waiting.answer().await);
        let waiting = talk.retry(&questions, json!({ "elicitation-2": accept("sure") })).await;
        server.answered(&world, 1).await;
        passes(AFTER).await;
        let task = waiting.answer().await.task();
        server.says("Hello");
        assert_eq!(client.ended(&task).await["status"], "completed");
        drop(third);
    }
}

#[tokio::test]
async fn an_input_request_after_the_threshold_belongs_to_the_task() {
    for way in WAYS {
        let world = ProxyAndServer::with(LATER).await;
        let client = asked_with_tasks(&world);
        let waiting = Talk::tool(&client).begin().await;
        let server = Asking::next(&world, way).await;
        passes(AFTER).await;
        let task = waiting.answer().await.task();
        server.ask(0, &form("Who?"));
        let asks = client.until(&task, |task| task["status"] != "working").await;
        assert_eq!(asks["status"], "input_required");
        assert_eq!(asks["inputRequests"], json!({ "elicitation-1": form("Who?") }));
        assert_eq!(asks.get("requestState"), None::<&Value>);
        update(&client, &task, json!({ "elicitation-1": accept("Ada") })).await;
        assert_eq!(server.answered(&world, 0).await, accept("Ada"));
        server.says("Hello");
        assert_eq!(client.ended(&task).await["result"]["content"][0]["text"], "Hello");
    }
}
