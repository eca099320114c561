//! A client gets only input requests that it declares a capability for.

use super::asking_server_and_client::{
    ALWAYS, Asking, ProxyAndServer, Questions, Setup, Talk, WAYS, Way, accept, asked, asked_with_tasks, form,
    refusal, roots, sampling, update, with_tasks,
};
use serde_json::{Value, json};

fn url() -> Value {
    json!({ "method": "elicitation/create", "params": {
        "mode": "url", "message": "Sign in", "url": "https://example.com/in", "elicitationId": "e",
    }})
}

fn sampling_with_tools() -> Value {
    let mut question = sampling();
    question["params"]["tools"] = json!([{ "name": "t", "inputSchema": { "type": "object" } }]);
    question
}

/// What a client declares, what the server asks, and what the client lacks; `Missing` where it lacks nothing.
fn cases() -> Vec<(Value, Value, Option<Value>)> {
    let form_only = json!({ "elicitation": { "form": {} } });
    let url_only = json!({ "elicitation": { "url": {} } });
    let plain = json!({ "elicitation": {} });
    let lacks = |what: Value| Some(what);
    vec![
        (plain.clone(), form("Who?"), None),
        (form_only.clone(), form("Who?"), None),
        (url_only.clone(), url(), None),
        (json!({ "sampling": {} }), sampling(), None),
        (json!({ "sampling": { "tools": {} } }), sampling_with_tools(), None),
        (json!({ "roots": { "listChanged": true } }), roots(), None),
        (plain, url(), lacks(json!({ "elicitation": { "url": {} } }))),
        (form_only, url(), lacks(json!({ "elicitation": { "url": {} } }))),
        (url_only, form("Who?"), lacks(json!({ "elicitation": { "form": {} } }))),
        (json!({ "sampling": {} }), sampling_with_tools(), lacks(json!({ "sampling": { "tools": {} } }))),
        (json!({ "sampling": {} }), form("Who?"), lacks(json!({ "elicitation": { "form": {} } }))),
        (json!({ "elicitation": {} }), sampling(), lacks(json!({ "sampling": {} }))),
        (json!({ "elicitation": {} }), roots(), lacks(json!({ "roots": {} }))),
        (
            json!({ "elicitation": null, "roots": {} }),
            form("Who?"),
            lacks(json!({ "elicitation": { "form": {} } })),
        ),
    ]
}

#[tokio::test]
async fn an_undeclared_input_request_is_refused_and_a_failed_call_names_the_capability() {
    for way in WAYS {
        for (declared, question, lacking) in cases() {
            let world = ProxyAndServer::new().await;
            let waiting = Talk::tool(&world.client().declaring(declared.clone())).begin().await;
            let server = Asking::next(&world, way).await;
            server.ask(0, &question);
            let Some(lacking) = lacking else {
                let questions = Questions::of(&waiting.answer().await);
                assert_eq!(questions.requests[questions.key()]["method"], question["method"], "{declared}");
                continue;
            };
            let refused = server.answered(&world, 0).await;
            assert_eq!(refused["code"], -32601, "{declared} {refused}");
            if way == Way::OnTheCall {
                server.result(json!({ "content": [], "isError": true }));
            } else {
                server.fails(json!({ "code": -32603, "message": "Method not found" }));
            }
            let answer = waiting.answer().await;
            assert_eq!(answer.refusal(), (400, -32021), "{declared}");
            assert_eq!(answer.error()["data"], json!({ "requiredCapabilities": lacking }), "{declared}");
        }
    }
}

#[tokio::test]
async fn a_result_despite_a_refused_input_request_is_relayed_also_after_an_answered_one() {
    for way in WAYS {
        let world = ProxyAndServer::new().await;
        let talk = Talk::tool(&world.client().declaring(json!({ "elicitation": {} })));
        let (server, questions) = talk.is_asked(&world, way, &form("Who?")).await;
        let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
        server.answered(&world, 0).await;
        server.ask(1, &sampling());
        assert_eq!(server.answered(&world, 1).await["code"], -32601);
        server.says("Hello, without a poem");
        let answer = waiting.answer().await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, "Hello, without a poem".to_owned()));
    }
}

#[tokio::test]
async fn a_retry_too_fails_with_what_its_client_would_have_had_to_declare() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&world.client().declaring(json!({ "elicitation": {} })));
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    server.answered(&world, 0).await;
    server.ask(1, &sampling());
    server.answered(&world, 1).await;
    server.result(json!({ "content": [], "isError": true }));
    let answer = waiting.answer().await;
    assert_eq!(answer.refusal(), (400, -32021));
    assert_eq!(answer.error()["data"], json!({ "requiredCapabilities": { "sampling": {} } }));
}

#[tokio::test]
async fn undeclared_input_requests_are_refused_in_a_task_too() {
    for way in WAYS {
        let world = ProxyAndServer::with(ALWAYS).await;
        let client = world.client().declaring(with_tasks(json!({ "elicitation": {} })));
        let waiting = Talk::tool(&client).begin().await;
        let server = Asking::next(&world, way).await;
        let task = waiting.answer().await.task();
        server.ask(0, &url());
        assert_eq!(server.answered(&world, 0).await["code"], -32601);
        server.ask(1, &form("Who?"));
        let found = client.until(&task, |task| task["status"] == "input_required").await;
        assert_eq!(found["inputRequests"], json!({ "elicitation-1": form("Who?") }));
        update(&client, &task, json!({ "elicitation-1": accept("Ada") })).await;
        server.answered(&world, 1).await;
        server.fails(json!({ "code": -32603, "message": "no way to sign in" }));
        let ended = client.until(&task, |task| task["status"] == "failed").await;
        assert_eq!(ended["error"]["code"], -32021);
        assert_eq!(
            ended["error"]["data"],
            json!({ "requiredCapabilities": { "elicitation": { "url": {} } } })
        );
    }
}

#[tokio::test]
async fn the_server_receives_the_clients_capabilities_without_tasks() {
    let world = ProxyAndServer::new().await;
    let declared = [
        (json!({ "elicitation": {} }), json!({ "elicitation": {} })),
        (
            json!({ "elicitation": { "url": {} }, "x": 1.50 }),
            json!({ "elicitation": { "url": {} }, "x": 1.50 }),
        ),
        (
            with_tasks(
                json!({ "elicitation": { "form": {}, "url": {} }, "sampling": { "tools": {}, "context": {} } }),
            ),
            json!({ "elicitation": { "form": {}, "url": {} }, "sampling": { "tools": {}, "context": {} } }),
        ),
        (
            json!({ "roots": {}, "tasks": { "list": {} }, "extensions": { "com.example/x": { "a": 1 }, "io.modelcontextprotocol/tasks": {} } }),
            json!({ "roots": {}, "extensions": { "com.example/x": { "a": 1 } } }),
        ),
    ];
    for (declared, told) in declared {
        let waiting = Talk::tool(&world.client().declaring(declared.clone())).begin().await;
        let server = Asking::next(&world, Way::OnTheCall).await;
        let session = server.session.clone();
        server.says("hi");
        waiting.answer().await;
        // Sessions are numbered as they were opened.
        let opened: usize = session[1..].parse().expect("a number");
        let mut handshakes = world.server.log().into_iter().filter(|seen| seen.method() == "initialize");
        let handshake = handshakes.nth(opened - 1).expect("the session was opened");
        assert_eq!(handshake.json["params"]["capabilities"], told, "{declared}");
    }
}

#[tokio::test]
async fn a_tool_can_require_a_capability_before_anything_is_sent() {
    let route = r#"tools: [{ match: "gr*", requires: { sampling: {}, elicitation: { url: {} } } }]"#;
    let world = ProxyAndServer::with(route).await;
    let client = world.client().declaring(json!({ "elicitation": {}, "sampling": {} }));
    let answer = Talk::tool(&client).begin().await.answer().await;
    assert_eq!(answer.refusal(), (400, -32021));
    assert_eq!(answer.error()["data"], json!({ "requiredCapabilities": { "elicitation": { "url": {} } } }));
    assert_eq!(world.calls(), 0);
    let waiting = Talk::tool(&asked(&world)).begin().await;
    Asking::next(&world, Way::OnTheCall).await.says("hi");
    assert_eq!(waiting.answer().await.text(), "hi");
}

#[tokio::test]
async fn a_repeated_input_request_needs_the_capability_of_the_retry() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let waiting = talk.begin().await;
    let server = Asking::next(&world, Way::OnTheCall).await;
    server.ask(0, &form("Who?"));
    server.ask(1, &sampling());
    let questions = Questions::of(&waiting.answer().await);
    // The same client, which this time says that it has no model.
    let less = talk.by(&world.client().declaring(json!({ "elicitation": {} })));
    let answer = less.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await.answer().await;
    assert_eq!(answer.refusal(), (400, -32021), "{answer:?}");
    assert_eq!(answer.error()["data"], json!({ "requiredCapabilities": { "sampling": {} } }));
    assert_eq!(server.answered(&world, 0).await, accept("Ada"));
    // The call still waits for one that does.
    let again = Questions::of(&talk.retry(&questions, json!({})).await.answer().await);
    assert_eq!(again.key(), "sampling-1");
    assert!(!server.is_answered(&world, 1));
}

#[tokio::test]
async fn a_server_may_not_ask_anything_but_elicitation_sampling_and_roots() {
    for way in WAYS {
        let world = Setup::new().start().await;
        let waiting = Talk::tool(&asked_with_tasks(&world)).begin().await;
        let server = Asking::next(&world, way).await;
        for (id, method) in ["tasks/get", "tools/call", "vendor/ask"].into_iter().enumerate() {
            let id = u32::try_from(id).expect("few");
            server.ask(id, &json!({ "method": method, "params": {} }));
            assert_eq!(server.answered(&world, id).await["code"], -32601, "{method}");
        }
        server.heard(&world).await;
        // It is no question to the client, so its failure is its own.
        server.fails(json!({ "code": -32603, "message": "no answer" }));
        assert_eq!(refusal(&waiting.answer().await), (-32603, "no answer".to_owned()));
    }
}
