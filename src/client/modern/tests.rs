use super::{
    script::{JSON, SSE, ScriptedServer},
    *,
};
use tokio::net::TcpListener;

const ALL: ClientSupport = ClientSupport { tasks: true, elicitation: true, sampling: true, roots: true };

impl ScriptedServer {
    async fn call(&self, arguments: &str) -> (Result<CallEnding, Error>, Vec<String>) {
        self.call_and_answer(arguments, &[]).await
    }

    /// Calls the tool, and answers its input requests with these responses, one element for each round.
    /// Returns the end of the call and its steps.
    async fn call_and_answer(
        &self,
        arguments: &str,
        answers: &[&str],
    ) -> (Result<CallEnding, Error>, Vec<String>) {
        let mut client = ModernClient::new(self.url.clone(), HeaderMap::new(), ALL);
        let mut steps = Vec::new();
        let arguments = super::super::arguments(arguments).unwrap();
        let call = ToolCall { tool: "tool", arguments: &arguments };
        let mut turn = client.call(&call, &mut |step| steps.push(format!("{step:?}"))).await;
        let mut answers = answers.iter();
        while let Ok(CallTurn::InputRequired(questions)) = turn {
            let keys: Vec<_> = questions.iter().map(|question| &*question.key).collect();
            let whence = match client.pending_input.as_ref().expect("it waits for the answers") {
                PendingInput::Call { .. } => "",
                PendingInput::Task { .. } => "in a task: ",
            };
            steps.push(format!("Asked({whence}{})", keys.join(" ")));
            let answers = answers.next().expect("an answer is left");
            let answers: InputResponseMap = serde_json::from_str(answers).unwrap();
            turn = client.respond(&call, &answers, &mut |step| steps.push(format!("{step:?}"))).await;
        }
        let ending = turn.map(|turn| match turn {
            CallTurn::Ended(ending) => ending,
            asked @ CallTurn::InputRequired(_) => unreachable!("{asked:?}"),
        });
        (ending, steps)
    }
}

fn result(ending: Result<CallEnding, Error>) -> String {
    match ending {
        Ok(CallEnding::Result(result)) => result.get().to_owned(),
        other => panic!("{other:?}"),
    }
}

fn task(status: &str, more: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"resultType":"complete","taskId":"t1","status":"{status}","createdAt":"","lastUpdatedAt":"","ttlMs":null,"pollIntervalMs":300{more}}}}}"#
    )
}

fn created_task() -> String {
    task("working", "").replace(r#""complete""#, r#""task""#)
}

#[tokio::test]
async fn a_result_is_unchanged_and_the_request_has_all_headers_and_metadata() {
    let server =
        ScriptedServer::new(&[(200, JSON, r#"{"jsonrpc":"2.0","id":$ID,"result":{"n": 9007199254740993}}"#)])
            .await;
    let (ending, steps) = server.call(r#"{"x": 1.50}"#).await;
    assert_eq!(result(ending), r#"{"n": 9007199254740993}"#);
    assert!(steps.is_empty());
    let (headers, body) = server.requests().remove(0);
    assert_eq!(headers["mcp-method"], "tools/call");
    assert_eq!(headers["mcp-name"], "tool");
    assert_eq!(headers["mcp-protocol-version"], "2026-07-28");
    assert_eq!(headers["accept"], "application/json, text/event-stream");
    let meta = &body["params"]["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    assert!(
        meta["io.modelcontextprotocol/clientCapabilities"]["extensions"][meta::TASKS_EXTENSION].is_object()
    );
    assert_eq!(meta["progressToken"], body["id"]);
}

#[tokio::test]
async fn an_event_stream_has_progress_and_then_the_result() {
    let server = ScriptedServer::new(&[(
        200,
        SSE,
        ": hello\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":$ID,\"progress\":1,\"total\":4,\"message\":\"m\"}}\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/other\"}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{}}\n\n",
    )])
    .await;
    let (ending, steps) = server.call("{}").await;
    assert_eq!(result(ending), "{}");
    assert_eq!(steps, [r#"Progress(Progress { done: 1.0, total: Some(4.0), message: Some("m") })"#]);
}

#[tokio::test]
async fn a_stream_that_ends_early_is_a_lost_connection() {
    let server = ScriptedServer::new(&[(200, SSE, ":\n\n")]).await;
    let (ending, _) = server.call("{}").await;
    assert!(matches!(ending, Err(Error::Broken { .. })), "{ending:?}");
}

#[tokio::test(start_paused = true)]
async fn a_task_is_polled_to_its_end_even_if_a_poll_is_lost() {
    let server = ScriptedServer::new(&[
        (200, JSON, &created_task()),
        (200, JSON, &task("working", r#","statusMessage":"half way (2/4)""#)),
        (503, JSON, r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-31006,"message":"busy"}}"#),
        (200, JSON, r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-31006,"message":"busy"}}"#),
        (200, JSON, &task("completed", r#","result":{"content":[]}"#)),
    ])
    .await;
    let (ending, steps) = server.call("{}").await;
    assert_eq!(result(ending), r#"{"content":[]}"#);
    let kinds: Vec<_> = steps.iter().map(|step| step.split('(').next().unwrap()).collect();
    assert_eq!(kinds, ["Handle", "Polled", "Lost", "Lost", "Polled"]);
    let heard = server.requests();
    assert_eq!(
        (&heard[1].0["mcp-method"], &heard[1].0["mcp-name"]),
        (&"tasks/get".parse().unwrap(), &"t1".parse().unwrap())
    );
    assert_eq!(heard[1].1["params"]["taskId"], "t1");
}

#[tokio::test(start_paused = true)]
async fn every_end_of_a_task_is_distinguished() {
    let failed = task("failed", r#","error":{"code":-32603,"message":"no"}"#);
    for (last, expected) in [
        (failed, r#"Error(RawValue({"code":-32603,"message":"no"}))"#),
        (task("cancelled", ""), "Cancelled(Task { id: \"t1\", status: Cancelled"),
        (
            r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32602,"message":"Task not found"}}"#.to_owned(),
            r#"Error(RawValue({"code":-32602,"message":"Task not found"}))"#,
        ),
    ] {
        let server = ScriptedServer::new(&[(200, JSON, &created_task()), (200, JSON, &last)]).await;
        let (ending, _) = server.call("{}").await;
        let ending = format!("{:?}", ending.expect("it ended"));
        assert!(ending.starts_with(expected), "{ending}");
    }
    let server =
        ScriptedServer::new(&[(200, JSON, &created_task()), (200, JSON, &task("completed", ""))]).await;
    let error = server.call("{}").await.0.unwrap_err().to_string();
    assert_eq!(error, "task t1: the response is not valid: a completed task without its result");
}

fn input_required(questions: &str, state: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"resultType":"input_required","inputRequests":{{{questions}}}{state}}}}}"#
    )
}

const DONE: &str = r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#;

#[tokio::test]
async fn a_call_is_made_again_with_answers_and_the_state_that_came_with_the_question() {
    let server = ScriptedServer::new(&[
        (
            200,
            JSON,
            &input_required(
                r#""z":{"method":"roots/list"},"a":{"method":"vendor/ask"}"#,
                r#","requestState":"s\u0041/1""#,
            ),
        ),
        (200, JSON, &input_required(r#""b":{"method":"roots/list"}"#, "")),
        (200, JSON, DONE),
    ])
    .await;
    let answers = [r#"{"z":{"roots": [1.0]},"a":{}}"#, r#"{"b":{"roots":[]}}"#];
    let (ending, steps) = server.call_and_answer(r#"{"x": 1.50}"#, &answers).await;
    assert_eq!(result(ending), "{}");
    assert_eq!(steps, ["Asked(z a)", "Asked(b)"], "in the order of the server");
    let heard: Vec<_> = server.requests().into_iter().map(|(_, body)| body).collect();
    assert_eq!(heard[0]["params"].get("requestState"), None);
    assert_eq!(heard[0]["params"].get("inputResponses"), None);
    assert_eq!(heard[1]["params"]["requestState"], "sA/1");
    assert_eq!(heard[1]["params"]["inputResponses"]["z"]["roots"][0], 1.0);
    assert_eq!(heard[2]["params"].get("requestState"), None, "none came with the second question");
    assert_eq!(heard[2]["params"]["inputResponses"]["b"], serde_json::json!({ "roots": [] }));
    let empty = serde_json::json!({});
    for body in &heard {
        assert_eq!(body["params"]["name"], "tool");
        assert_eq!(body["params"]["arguments"]["x"], 1.5);
        assert_eq!(body["params"]["_meta"]["progressToken"], body["id"]);
        let declared = &body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        assert_eq!(declared["elicitation"], serde_json::json!({ "form": {}, "url": {} }));
        assert_eq!((&declared["sampling"], &declared["roots"]), (&empty, &empty));
    }
    assert!(heard[0]["id"] != heard[1]["id"] && heard[1]["id"] != heard[2]["id"]);
}

#[tokio::test(start_paused = true)]
async fn a_request_state_without_input_requests_is_retried() {
    let server = ScriptedServer::new(&[
        (200, JSON, &input_required("", r#","requestState":"s1""#)),
        (200, JSON, &input_required("", r#","requestState":"s2""#)),
        (200, JSON, DONE),
        (200, JSON, &input_required("", "")),
    ])
    .await;
    let (ending, steps) = server.call("{}").await;
    assert_eq!((result(ending), steps.len()), ("{}".to_owned(), 0));
    let states: Vec<_> =
        server.requests().iter().map(|(_, body)| body["params"]["requestState"].clone()).collect();
    assert_eq!(states, [Value::Null, "s1".into(), "s2".into()]);
    let error = server.call("{}").await.0.unwrap_err().to_string();
    assert!(error.contains("neither input requests nor `requestState`"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_task_gets_its_input_responses_and_no_request_is_returned_twice() {
    let question = |keys: &str| {
        let questions: Vec<_> =
            keys.split(' ').map(|key| format!(r#""{key}":{{"method":"roots/list"}}"#)).collect();
        task("input_required", &format!(r#","inputRequests":{{{}}}"#, questions.join(",")))
    };
    let server = ScriptedServer::new(&[
        (200, JSON, &created_task()),
        (200, JSON, &question("a b")),
        (503, JSON, r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-31006,"message":"busy"}}"#),
        (200, JSON, DONE),
        // The response to `a` has not taken effect yet.
        (200, JSON, &question("a b")),
        (200, JSON, DONE),
        (200, JSON, &question("a b")),
        (200, JSON, &task("completed", r#","result":{}"#)),
    ])
    .await;
    let answers = [r#"{"a":{"n": 1.0}}"#, r#"{"b":{}}"#];
    let (ending, steps) = server.call_and_answer("{}", &answers).await;
    assert_eq!(result(ending), "{}");
    let kinds: Vec<_> =
        steps.iter().filter(|step| !step.starts_with("Polled")).map(|step| &step[..5]).collect();
    assert_eq!(kinds, ["Handl", "Asked", "Lost(", "Asked"]);
    let asked: Vec<_> = steps.iter().filter(|step| step.starts_with("Asked")).collect();
    assert_eq!(asked, ["Asked(in a task: a b)", "Asked(in a task: b)"]);
    let heard = server.requests();
    let updates: Vec<_> = heard.iter().filter(|(_, body)| body["method"] == "tasks/update").collect();
    assert_eq!(updates.len(), 3);
    assert_eq!(updates[0].0["mcp-name"], "t1");
    assert_eq!(updates[0].1["params"]["taskId"], "t1");
    assert_eq!(updates[1].1["params"]["inputResponses"], serde_json::json!({ "a": { "n": 1.0 } }));
    assert_eq!(updates[2].1["params"]["inputResponses"], serde_json::json!({ "b": {} }));
}

#[tokio::test(start_paused = true)]
async fn refused_input_responses_are_an_error_with_the_reason() {
    let asked = task("input_required", r#","inputRequests":{"a":{"method":"roots/list"}}"#);
    let refused = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32602,"message":"no"}}"#;
    let server =
        ScriptedServer::new(&[(200, JSON, &created_task()), (200, JSON, &asked), (200, JSON, refused)]).await;
    let error = server.call_and_answer("{}", &["{}"]).await.0.unwrap_err().to_string();
    assert_eq!(error, "task t1: the input responses were refused: no (-32602)");
    let server = ScriptedServer::new(&[(200, JSON, &input_required(r#""a":1"#, ""))]).await;
    assert!(matches!(server.call("{}").await.0, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn a_call_that_is_refused_says_so() {
    let server = ScriptedServer::new(&[
        (400, JSON, r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32021,"message":"no"}}"#),
        (502, "text/html", "<h1>Bad gateway</h1>"),
        (200, JSON, r#"{"jsonrpc":"2.0","id":99,"result":{}}"#),
        (200, JSON, "not JSON"),
    ])
    .await;
    assert!(
        matches!(server.call("{}").await.0.unwrap(), CallEnding::Error(error) if error.get().contains("-32021"))
    );
    assert_eq!(
        server.call("{}").await.0.unwrap_err().to_string(),
        "HTTP 502 Bad Gateway: <h1>Bad gateway</h1>"
    );
    for _ in 0..2 {
        assert!(matches!(server.call("{}").await.0, Err(Error::Invalid(_))));
    }
}

#[tokio::test]
async fn arguments_are_mirrored_where_the_tool_asks_for_it_on_whatever_page_it_is() {
    let schema = r#"{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"}}},"on":{"type":"boolean","x-mcp-header":"On"}}}"#;
    let second = format!(
        r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"tools":[{{"name":"tool","inputSchema":{schema}}}]}}}}"#
    );
    let server = ScriptedServer::new(&[
        (200, JSON, r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":[{"name":"other"}],"nextCursor":"c2"}}"#),
        (200, JSON, &second),
    ])
    .await;
    let mut client = ModernClient::new(server.url.clone(), HeaderMap::new(), ClientSupport::default());
    client.probe(Some("tool")).await.unwrap();
    assert_eq!(server.requests()[1].1["params"]["cursor"], "c2");
    let arguments = super::super::arguments(r#"{"region":"Zürich","deep":{"n":42}}"#).unwrap();
    let headers = params::mirror_arguments(&client.mirrored_params, &arguments);
    assert_eq!(headers["mcp-param-n"], "42");
    assert_eq!(headers["mcp-param-region"], headers::encode("Zürich"));
    assert!(!headers.contains_key("mcp-param-on"));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url: Uri = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
    drop(listener);
    let mut client = ModernClient::new(url.clone(), HeaderMap::new(), ALL);
    let error = client.probe(Some("x")).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("{url} cannot be reached: ")), "{error}");
}

#[tokio::test]
async fn an_undeclared_task_is_not_followed() {
    let server = ScriptedServer::new(&[(200, JSON, &created_task())]).await;
    let mut client = ModernClient::new(server.url.clone(), HeaderMap::new(), ClientSupport::default());
    let arguments = super::super::no_arguments();
    let call = ToolCall { tool: "tool", arguments: &arguments };
    let turn = client.call(&call, &mut |step| panic!("{step:?}")).await;
    assert!(matches!(turn, Err(Error::UndeclaredTask { task }) if task == "t1"));
    assert_eq!(server.requests().len(), 1);
}
