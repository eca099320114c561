//! URL elicitation by the error `-32042`: the client visits the URL and the call is sent again.

use super::asking_server_and_client::{
    ALWAYS, Asking, ProxyAndServer, Questions, Setup, Talk, Way, accept, asked, asked_with_tasks, form,
    refusal, with_tasks,
};
use crate::support::{modern_client::soon, paused_time::passes};
use serde_json::{Value, json};
use std::time::Duration;

fn elsewhere() -> Value {
    let place = |at: &str| json!({ "mode": "url", "elicitationId": at, "url": format!("https://example.com/{at}"), "message": "Sign in", "x": 1 });
    json!({ "code": -32042, "message": "Authorization is required", "data": { "elicitations": [place("in"), place("pay")] } })
}

/// The same as questions for a modern client.
fn shown() -> Value {
    let place = |at: &str| {
        let params = json!({ "mode": "url", "url": format!("https://example.com/{at}"), "message": "Sign in", "x": 1 });
        json!({ "method": "elicitation/create", "params": params })
    };
    json!({ "url-1": place("in"), "url-2": place("pay") })
}

fn been_there() -> Value {
    json!({ "url-1": { "action": "accept" }, "url-2": { "action": "accept" } })
}

async fn sent_elsewhere(world: &ProxyAndServer, talk: &Talk) -> Questions {
    let waiting = talk.begin().await;
    Asking::next(world, Way::OnTheCall).await.fails(elsewhere());
    let questions = Questions::of(&waiting.answer().await);
    assert_eq!(Value::Object(questions.requests.clone()), shown());
    questions
}

#[tokio::test]
async fn a_call_that_needs_an_address_visited_is_made_again_when_its_client_has_been_there() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let questions = sent_elsewhere(&world, &talk).await;
    assert_eq!(world.calls(), 1);
    let waiting = talk.retry(&questions, been_there()).await;
    let server = Asking::next(&world, Way::OnTheCall).await;
    assert_eq!(server.arguments, json!({ "loud": true, "times": 2 }));
    server.says("Hello");
    assert_eq!(waiting.answer().await.text(), "Hello");
    assert_eq!(world.calls(), 2);
}

#[tokio::test]
async fn prompts_and_resources_can_send_a_user_elsewhere_too() {
    for (method, params) in
        [("prompts/get", json!({ "name": "p" })), ("resources/read", json!({ "uri": "file:///a" }))]
    {
        let world = ProxyAndServer::new().await;
        let talk = Talk::new(&asked(&world), method, params);
        let questions = sent_elsewhere(&world, &talk).await;
        let waiting = talk.retry(&questions, been_there()).await;
        Asking::next(&world, Way::OnTheCall).await.result(json!({ "x": 1 }));
        assert_eq!(waiting.answer().await.result()["x"], 1, "{method}");
    }
}

#[tokio::test]
async fn a_user_who_declines_gets_an_error_and_nothing_is_called() {
    for action in ["decline", "cancel"] {
        let world = ProxyAndServer::new().await;
        let talk = Talk::tool(&asked(&world));
        let questions = sent_elsewhere(&world, &talk).await;
        let answers = json!({ "url-1": { "action": "accept" }, "url-2": { "action": action } });
        let (code, message) = refusal(&talk.retry(&questions, answers).await.answer().await);
        assert_eq!(code, -32602);
        assert!(message.contains("declined"), "{message}");
        assert_eq!(world.calls(), 1);
    }
}

/// What has been answered says only that the user was willing to go; whether they have been there the
/// server knows. So a client that lacks answers is not refused, and what it lacks is asked for again.
#[tokio::test]
async fn a_retry_without_all_input_responses_is_decided_by_the_server() {
    for answers in
        [None, Some(json!({})), Some(json!({ "url-1": { "action": "accept" } })), Some(json!({ "url-2": 5 }))]
    {
        let world = ProxyAndServer::new().await;
        let talk = Talk::tool(&asked(&world));
        let first = sent_elsewhere(&world, &talk).await;
        let back = async |questions: &Questions| match &answers {
            Some(answers) => talk.retry(questions, answers.clone()).await,
            None => talk.with("requestState", json!(questions.state)).begin().await,
        };
        let waiting = back(&first).await;
        Asking::next(&world, Way::OnTheCall).await.fails(elsewhere());
        let second = Questions::of(&waiting.answer().await);
        assert_eq!(Value::Object(second.requests.clone()), shown(), "{answers:?}");
        assert_ne!(second.state, first.state);
        // The user has been there in the meantime.
        let waiting = back(&second).await;
        Asking::next(&world, Way::OnTheCall).await.says("Hello");
        assert_eq!(waiting.answer().await.text(), "Hello", "{answers:?}");
        assert_eq!(world.calls(), 3);
    }
}

#[tokio::test]
async fn a_server_that_is_not_satisfied_sends_the_user_again() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let mut questions = sent_elsewhere(&world, &talk).await;
    for _ in 0..3 {
        let waiting = talk.retry(&questions, been_there()).await;
        Asking::next(&world, Way::OnTheCall).await.fails(elsewhere());
        let again = Questions::of(&waiting.answer().await);
        assert_ne!(again.state, questions.state);
        questions = again;
    }
}

#[tokio::test]
async fn a_client_without_url_elicitation_gets_the_missing_capability() {
    for declared in [json!({}), json!({ "elicitation": {} }), json!({ "sampling": {} })] {
        let world = ProxyAndServer::new().await;
        let waiting = Talk::tool(&world.client().declaring(declared.clone())).begin().await;
        Asking::next(&world, Way::OnTheCall).await.fails(elsewhere());
        let answer = waiting.answer().await;
        assert_eq!(answer.refusal(), (400, -32021), "{declared}");
        assert_eq!(
            answer.error()["data"],
            json!({ "requiredCapabilities": { "elicitation": { "url": {} } } })
        );
    }
}

#[tokio::test]
async fn a_legacy_code_never_reaches_a_modern_client() {
    for error in [
        json!({ "code": -32042, "message": "go there" }),
        json!({ "code": -32042, "message": "go there", "data": { "elicitations": [] } }),
        json!({ "code": -32042, "message": "go there", "data": { "elicitations": [{ "mode": "form", "message": "?" }] } }),
    ] {
        let world = ProxyAndServer::new().await;
        let waiting = Talk::tool(&asked(&world)).begin().await;
        Asking::next(&world, Way::OnTheCall).await.fails(error.clone());
        let (code, _) = refusal(&waiting.answer().await);
        assert_ne!(code, -32042, "{error}");
    }
}

#[tokio::test]
async fn after_input_requests_of_its_own_a_call_may_send_the_user_elsewhere() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    server.answered(&world, 0).await;
    server.fails(elsewhere());
    let questions = Questions::of(&waiting.answer().await);
    assert_eq!(Value::Object(questions.requests.clone()), shown());
    let waiting = talk.retry(&questions, been_there()).await;
    let server = Asking::next(&world, Way::OnTheCall).await;
    // It is another call, which asks anew.
    server.ask(0, &form("Who?"));
    let questions = Questions::of(&waiting.answer().await);
    assert_eq!(questions.key(), "elicitation-1");
    let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    assert_eq!(server.answered(&world, 0).await, accept("Ada"));
    server.says("Hello");
    assert_eq!(waiting.answer().await.text(), "Hello");
}

#[tokio::test]
async fn the_call_that_is_made_again_may_become_a_task() {
    let world = ProxyAndServer::with("defer: { after: 10s }").await;
    let client = asked_with_tasks(&world);
    let talk = Talk::tool(&client);
    let waiting = talk.begin().await;
    let server = Asking::next(&world, Way::OnTheCall).await;
    server.fails(elsewhere());
    let waiting = talk.retry(&Questions::of(&waiting.answer().await), been_there()).await;
    let server = Asking::next(&world, Way::OnTheCall).await;
    passes(Duration::from_secs(10)).await;
    let task = waiting.answer().await.task();
    server.says("Hello");
    assert_eq!(client.ended(&task).await["result"]["content"][0]["text"], "Hello");
}

#[tokio::test]
async fn inside_a_task_it_is_a_failure() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.client().declaring(with_tasks(json!({ "elicitation": { "url": {} } })));
    let waiting = Talk::tool(&client).begin().await;
    let server = Asking::next(&world, Way::OnTheCall).await;
    let task = waiting.answer().await.task();
    server.fails(elsewhere());
    let ended = client.ended(&task).await;
    assert_eq!(ended["status"], "failed");
    assert_ne!(ended["error"]["code"], -32042);
    assert_eq!(world.calls(), 1);
}

#[tokio::test]
async fn a_state_to_call_again_is_bound_and_expires_as_any_other() {
    let world = Setup::new().route("questions: { park: 10s }").start().await;
    let alice = asked(&world).bearing("alice");
    let talk = Talk::tool(&alice);
    let questions = sent_elsewhere(&world, &talk).await;
    for other in [talk.by(&asked(&world).bearing("bob")), talk.with("arguments", json!({ "loud": false }))] {
        let (code, message) = refusal(&other.retry(&questions, been_there()).await.answer().await);
        assert_eq!(code, -32602);
        assert!(message.contains("another"), "{message}");
    }
    passes(Duration::from_secs(10)).await;
    // Declining calls nothing, so it can be asked until the time is over.
    let decline = json!({ "url-1": { "action": "decline" } });
    soon("expiring", async {
        loop {
            let (code, message) = refusal(&talk.retry(&questions, decline.clone()).await.answer().await);
            assert_eq!(code, -32602);
            if message.contains("expired") {
                return;
            }
        }
    })
    .await;
    let (code, _) = refusal(&talk.retry(&questions, been_there()).await.answer().await);
    assert_eq!((code, world.calls()), (-32602, 1));
}
