//! Several retries, and input responses that are missing, invalid, early or unknown.

use super::asking_server_and_client::{
    Asking, ProxyAndServer, Questions, Talk, WAYS, Way, accept, asked, fitting, form, refusal, roots,
    sampled, sampling,
};
use serde_json::{Value, json};

#[tokio::test]
async fn a_server_may_ask_again_and_again_each_time_under_a_new_key_and_with_a_new_state() {
    for way in WAYS {
        let world = ProxyAndServer::new().await;
        let talk = Talk::tool(&asked(&world));
        let mut waiting = talk.begin().await;
        let server = Asking::next(&world, way).await;
        let mut states = Vec::new();
        for round in 0..4 {
            server.ask(round, &form(&format!("Round {round}?")));
            let questions = Questions::of(&waiting.answer().await);
            assert_eq!(questions.key(), format!("elicitation-{}", round + 1));
            assert_eq!(questions.requests[questions.key()], form(&format!("Round {round}?")));
            assert!(!states.contains(&questions.state), "each state is new");
            states.push(questions.state.clone());
            let answer = accept(&format!("answer {round}"));
            waiting = talk.retry(&questions, json!({ questions.key(): answer })).await;
            assert_eq!(server.answered(&world, round).await, answer);
        }
        server.says("four answers");
        assert_eq!(waiting.answer().await.text(), "four answers");
        assert_eq!(world.calls(), 1);
    }
}

/// A call that has asked three things at once.
async fn three_questions(world: &ProxyAndServer, way: Way, talk: &Talk) -> (Asking, Questions) {
    let waiting = talk.begin().await;
    let server = Asking::next(world, way).await;
    server.ask(0, &form("Who?"));
    server.ask(1, &sampling());
    server.ask(2, &roots());
    let questions = Questions::of(&waiting.answer().await);
    assert_eq!(questions.keys(), ["elicitation-1", "roots-1", "sampling-1"]);
    (server, questions)
}

#[tokio::test]
async fn an_unanswered_input_request_is_sent_again_under_its_key() {
    for way in WAYS {
        let world = ProxyAndServer::new().await;
        let talk = Talk::tool(&asked(&world));
        let (server, first) = three_questions(&world, way, &talk).await;

        let waiting = talk.retry(&first, json!({ "sampling-1": sampled() })).await;
        assert_eq!(server.answered(&world, 1).await, sampled());
        let rest = Questions::of(&waiting.answer().await);
        assert_eq!(rest.keys(), ["elicitation-1", "roots-1"]);
        assert_eq!(rest.requests["elicitation-1"], form("Who?"));
        assert_ne!(rest.state, first.state);
        assert!(!server.is_answered(&world, 0) && !server.is_answered(&world, 2));

        let answers = json!({ "elicitation-1": accept("Ada"), "roots-1": fitting(&roots()) });
        let waiting = talk.retry(&rest, answers).await;
        assert_eq!(server.answered(&world, 0).await, accept("Ada"));
        assert_eq!(server.answered(&world, 2).await, fitting(&roots()));
        server.says("Hello");
        assert_eq!(waiting.answer().await.text(), "Hello");
        assert_eq!(world.calls(), 1);
    }
}

#[tokio::test]
async fn a_retry_without_input_responses_gets_the_input_requests_again() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let (server, first) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    let plain = talk.with("requestState", json!(first.state));
    let again = Questions::of(&plain.begin().await.answer().await);
    assert_eq!(again.requests, first.requests);
    let empty = talk.retry(&again, json!({})).await.answer().await;
    assert_eq!(Questions::of(&empty).requests, first.requests);
    assert!(!server.is_answered(&world, 0));
    assert_eq!(world.calls(), 1);
}

#[tokio::test]
async fn input_requests_that_arrive_meanwhile_are_sent_with_the_open_ones() {
    for way in WAYS {
        let world = ProxyAndServer::new().await;
        let talk = Talk::tool(&asked(&world));
        let (server, first) = three_questions(&world, way, &talk).await;
        // An input request while no retry waits.
        server.ask(3, &form("And where?"));
        server.heard(&world).await;
        let waiting = talk.retry(&first, json!({ "roots-1": fitting(&roots()) })).await;
        server.answered(&world, 2).await;
        let rest = Questions::of(&waiting.answer().await);
        assert_eq!(rest.keys(), ["elicitation-1", "elicitation-2", "sampling-1"]);
    }
}

#[tokio::test]
async fn answers_to_nothing_are_ignored() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    let answers = json!({
        "elicitation-2": accept("nobody"), "sampling-1": 12, "": null, "elicitation-1": accept("Ada"),
    });
    let waiting = talk.retry(&questions, answers).await;
    assert_eq!(server.answered(&world, 0).await, accept("Ada"));
    server.says("Hello");
    assert_eq!(waiting.answer().await.text(), "Hello");
}

#[tokio::test]
async fn an_answer_for_later_is_not_kept_from_one_retry_to_the_next() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    let answers = json!({ "elicitation-1": accept("Ada"), "elicitation-2": accept("guessed") });
    let waiting = talk.retry(&questions, answers).await;
    server.answered(&world, 0).await;
    server.ask(1, &form("Sure?"));
    assert_eq!(Questions::of(&waiting.answer().await).key(), "elicitation-2");
    assert!(!server.is_answered(&world, 1));
}

#[tokio::test]
async fn an_answer_that_does_not_fit_its_input_request_is_requested_again() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let (server, mut questions) = three_questions(&world, Way::OnTheCall, &talk).await;
    for (key, wrong) in [
        ("elicitation-1", json!(12_345)),
        ("elicitation-1", json!(null)),
        ("elicitation-1", json!({ "action": "agree" })),
        ("elicitation-1", json!({ "action": "accept" })),
        ("elicitation-1", json!({ "action": "accept", "content": { "name": 12_345 } })),
        ("elicitation-1", json!({ "action": "accept", "content": {} })),
        ("sampling-1", accept("Ada")),
        ("sampling-1", json!({ "role": "assistant", "model": "m" })),
        ("roots-1", json!({ "roots": [{ "name": "home" }] })),
    ] {
        let answer = talk.retry(&questions, json!({ key: wrong })).await.answer().await;
        let again = Questions::of(&answer);
        assert_eq!(again.requests, questions.requests, "{wrong}");
        questions = again;
    }
    for id in 0..3 {
        assert!(!server.is_answered(&world, id), "{id}");
    }
}

#[tokio::test]
async fn declining_and_cancelling_are_answers_the_server_gets_as_they_are() {
    for answer in [json!({ "action": "decline" }), json!({ "action": "cancel", "content": null, "x": 1 })] {
        let world = ProxyAndServer::new().await;
        let talk = Talk::tool(&asked(&world));
        let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
        let waiting = talk.retry(&questions, json!({ "elicitation-1": answer })).await;
        assert_eq!(server.answered(&world, 0).await, answer);
        server.result(json!({ "content": [{ "type": "text", "text": "As you like" }], "isError": true }));
        let result = waiting.answer().await.result();
        assert_eq!(
            (&result["isError"], &result["content"][0]["text"]),
            (&json!(true), &json!("As you like"))
        );
    }
}

#[tokio::test]
async fn answers_that_are_no_object_are_an_error_and_the_call_still_waits() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    for wrong in [json!(null), json!([]), json!("elicitation-1"), json!(true)] {
        let (code, message) = refusal(&talk.retry(&questions, wrong.clone()).await.answer().await);
        assert_eq!(code, -32602, "{wrong}");
        assert!(message.contains("inputResponses"), "{message}");
        // Also where no state is sent: before anything is called.
        let fresh = talk.with("inputResponses", wrong).begin().await.answer().await;
        assert_eq!(refusal(&fresh).0, -32602);
    }
    assert_eq!(world.calls(), 1);
    let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    server.answered(&world, 0).await;
    server.says("Hello");
    assert_eq!(waiting.answer().await.text(), "Hello");
}

#[tokio::test]
async fn an_answer_that_is_given_twice_under_one_key_is_an_error() {
    let world = ProxyAndServer::new().await;
    let client = asked(&world);
    let talk = Talk::tool(&client);
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    let retry = talk.retrying(&questions, json!("HERE"));
    let twice = format!(r#"{{"elicitation-1":{0},"elicitation-1":{0}}}"#, accept("Ada"));
    let request = client.request("tools/call", retry);
    let body = {
        use http_body_util::BodyExt;
        let (head, body) = request.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        drop(head);
        String::from_utf8(bytes.to_vec()).expect("utf-8").replace("\"HERE\"", &twice)
    };
    let answer = client.send_request(client.spelled("tools/call", Some("greet"), body)).await.answer().await;
    assert_eq!(refusal(&answer).0, -32602);
    assert!(!server.is_answered(&world, 0));
}

#[tokio::test]
async fn answers_sent_along_with_the_first_call_are_used_by_their_keys() {
    for way in WAYS {
        let world = ProxyAndServer::new().await;
        let along = json!({
            "elicitation-1": accept("Ada"), "elicitation-2": accept("Bob"), "sampling-1": sampled(), "x": {},
        });
        let talk = Talk::tool(&asked(&world)).with("inputResponses", along);
        let waiting = talk.begin().await;
        let server = Asking::next(&world, way).await;
        server.ask(0, &form("Who?"));
        assert_eq!(server.answered(&world, 0).await, accept("Ada"));
        server.ask(1, &sampling());
        assert_eq!(server.answered(&world, 1).await, sampled());
        server.ask(2, &form("Who else?"));
        assert_eq!(server.answered(&world, 2).await, accept("Bob"));
        server.says("Hello both");
        assert_eq!(waiting.answer().await.text(), "Hello both");
    }
}

#[tokio::test]
async fn names_from_the_configuration_come_first_and_in_their_order() {
    let world = ProxyAndServer::with(r#"tools: [{ match: "gr*", keys: [user_name, town] }]"#).await;
    let talk = Talk::tool(&asked(&world)).with("inputResponses", json!({ "town": accept("Turin") }));
    let waiting = talk.begin().await;
    let server = Asking::next(&world, Way::OnTheCall).await;
    server.ask(0, &form("Who?"));
    let questions = Questions::of(&waiting.answer().await);
    assert_eq!(questions.key(), "user_name");
    let waiting = talk.retry(&questions, json!({ "user_name": accept("Ada") })).await;
    server.answered(&world, 0).await;
    server.ask(1, &form("Where?"));
    assert_eq!(server.answered(&world, 1).await, accept("Turin"), "sent along at first");
    server.ask(2, &form("When?"));
    assert_eq!(Questions::of(&waiting.answer().await).key(), "elicitation-1");
}

#[tokio::test]
async fn a_call_with_unknown_input_responses_is_not_refused() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world)).with("inputResponses", json!({ "wrong_key": accept("Ada") }));
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    assert_eq!(questions.key(), "elicitation-1");
    assert!(!server.is_answered(&world, 0));
}

#[tokio::test]
async fn an_invalid_input_response_in_the_first_call_is_requested() {
    let world = ProxyAndServer::new().await;
    let along = json!({ "elicitation-1": 12_345 });
    let talk = Talk::tool(&asked(&world)).with("inputResponses", along);
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    assert_eq!(questions.key(), "elicitation-1");
    assert!(!server.is_answered(&world, 0));
}

#[tokio::test]
async fn an_input_request_withdrawn_before_it_was_shown_is_never_shown() {
    for way in WAYS {
        let world = ProxyAndServer::new().await;
        let talk = Talk::tool(&asked(&world));
        let waiting = talk.begin().await;
        let server = Asking::next(&world, way).await;
        server.ask(0, &form("Who?"));
        server.withdraw(0);
        server.ask(1, &form("Where?"));
        let questions = Questions::of(&waiting.answer().await);
        assert_eq!(Value::Object(questions.requests), json!({ "elicitation-2": form("Where?") }));
        assert!(!server.is_answered(&world, 0), "who withdrew it wants no answer");
    }
}

#[tokio::test]
async fn a_call_whose_only_input_request_is_withdrawn_continues() {
    for way in WAYS {
        let world = ProxyAndServer::new().await;
        let waiting = Talk::tool(&asked(&world)).begin().await;
        let server = Asking::next(&world, way).await;
        server.ask(0, &form("Who?"));
        server.withdraw(0);
        server.says("Never mind");
        assert_eq!(waiting.answer().await.text(), "Never mind");
    }
}

#[tokio::test]
async fn an_input_request_withdrawn_while_its_client_thinks_takes_no_answer_any_more() {
    for way in WAYS {
        let world = ProxyAndServer::new().await;
        let talk = Talk::tool(&asked(&world));
        let (server, questions) = talk.is_asked(&world, way, &form("Who?")).await;
        server.withdraw(0);
        server.ask(1, &form("Where?"));
        server.heard(&world).await;
        let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
        let questions = Questions::of(&waiting.answer().await);
        assert_eq!(questions.key(), "elicitation-2");
        let waiting = talk.retry(&questions, json!({ "elicitation-2": accept("Turin") })).await;
        assert_eq!(server.answered(&world, 1).await, accept("Turin"));
        assert!(!server.is_answered(&world, 0));
        server.says("Hello");
        assert_eq!(waiting.answer().await.text(), "Hello");
    }
}

#[tokio::test]
async fn a_server_that_fails_after_an_answer_fails_the_retry() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    server.answered(&world, 0).await;
    server.fails(json!({ "code": -32603, "message": "no such user" }));
    assert_eq!(refusal(&waiting.answer().await), (-32603, "no such user".to_owned()));
}

#[tokio::test]
async fn a_server_that_goes_away_while_its_client_thinks_fails_the_retry() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    drop(server);
    let answer = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await.answer().await;
    let message = answer.error()["message"].as_str().expect("words").to_owned();
    assert!(message.contains("unknown"), "{message}");
    assert_eq!(world.calls(), 1, "an unknown outcome is not tried again");
}

#[tokio::test]
async fn the_number_of_input_requests_of_a_call_is_bounded() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let waiting = talk.begin().await;
    let server = Asking::next(&world, Way::OnTheCall).await;
    for id in 0..65 {
        server.ask(id, &form("Who?"));
    }
    let refused = server.answered(&world, 64).await;
    assert!(refused["message"].as_str().expect("words").contains("too many"), "{refused}");
    assert_eq!(Questions::of(&waiting.answer().await).requests.len(), 64);
}

#[tokio::test]
async fn the_size_of_input_requests_of_a_call_is_bounded() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let waiting = talk.begin().await;
    let server = Asking::next(&world, Way::OnTheCall).await;
    server.ask(0, &form("Who?"));
    server.ask(1, &form(&"x".repeat(16 << 20)));
    let refused = server.answered(&world, 1).await;
    assert!(refused["message"].as_str().expect("words").contains("too many"), "{refused}");
    assert_eq!(Questions::of(&waiting.answer().await).requests.len(), 1);
}

#[tokio::test]
async fn a_retry_starts_no_new_call() {
    let world = ProxyAndServer::with("calls_per_minute: 1").await;
    let talk = Talk::tool(&asked(&world));
    let waiting = talk.begin().await;
    let server = Asking::next(&world, Way::OnTheCall).await;
    server.ask(0, &form("Who?"));
    let questions = Questions::of(&waiting.answer().await);
    let waiting = talk.retry(&questions, json!({ questions.key(): accept("Ada") })).await;
    assert_eq!(server.answered(&world, 0).await, accept("Ada"));
    server.says("Hello");
    assert_eq!(waiting.answer().await.text(), "Hello");
    assert_eq!(talk.begin().await.answer().await.error()["code"], -31006);
}
