//! Harness: a client of 2025-11-25 that runs calls as tasks, and its server.

use crate::support::{
    legacy_server::{LegacyServer, Options, PATIENCE, Seen},
    paused_time::a_moment,
};
pub(super) use crate::{
    legacy::proxy_and_client::LegacyClient,
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::{
        legacy_server::{Call, Canned, Events},
        modern_client::{Answer, Stream, Waiting, soon},
    },
};
use deferral::internals::{app, config, policy::LegacyTaskPolicy};
pub(super) use serde_json::{Value, json};
use std::path::Path;
use tokio::time::timeout;

/// A client in a session, or in none.
#[derive(Clone, Debug)]
pub(super) struct Tasker(pub(super) LegacyClient);

pub(super) const RELATED: &str = "io.modelcontextprotocol/related-task";
/// A well-formed id that no task has.
pub(super) const UNKNOWN: &str = "0123456789abcdef0123456789abcdef";

/// A world whose route makes tasks on these terms.
pub(super) async fn on_terms(legacy: LegacyTaskPolicy) -> ProxyAndServer {
    let options =
        Options { capabilities: json!({ "tools": {} }), tools: Some(json!([])), ..Options::default() }
            .hook(pong);
    let server = LegacyServer::start(options).await;
    let yaml = format!(
        "listen: 127.0.0.1:0\nadmin: \"off\"\nroutes:\n  - upstream: {{ url: \"{}\" }}\n    defer: {{ mode: always }}\n",
        server.url()
    );
    let mut config = config::parse(Path::new("test.yaml"), &yaml).expect("a configuration");
    config.routes[0].route.legacy_tasks = legacy;
    let proxy = app::start(config).expect("the proxy starts");
    ProxyAndServer { server, proxy }
}

/// What a world is made of here: a server that has no tasks, and says that each session is there.
pub(super) fn setup() -> Setup {
    Setup::new().server(|options| {
        *options = std::mem::take(options).hook(pong);
        options.capabilities = json!({ "tools": { "listChanged": true }, "logging": {} });
        options.tools = Some(json!([]));
    })
}

/// Answers a ping.
pub(super) fn pong(seen: &Seen) -> Option<Canned> {
    let answer = || Canned::json(200, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": {} }));
    (seen.method() == "ping").then(answer)
}

/// A world with this setting of the route.
pub(super) async fn world(route: &'static str) -> ProxyAndServer {
    setup().route(route).start().await
}

/// The next message, which comes soon.
pub(super) async fn heard(stream: &mut Stream) -> Value {
    soon("a message is waited for", stream.next()).await
}

/// A question of the server.
pub(super) fn question(id: impl Into<Value>, text: &str) -> Value {
    json!({
        "jsonrpc": "2.0",
        "id": id.into(),
        "method": "elicitation/create",
        "params": { "mode": "form", "message": text, "requestedSchema": { "type": "object", "properties": {} } },
    })
}

pub(super) fn request(id: &Value, method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

/// What the message says of the task it belongs to.
pub(super) fn related(message: &Value) -> &Value {
    &message["params"]["_meta"][RELATED]["taskId"]
}

/// All that is put in the session's own stream has come to the client once this mark has.
pub(super) async fn up_to_mark(world: &ProxyAndServer, session: &str, stream: &mut Stream) -> Vec<Value> {
    let mark = json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "data": "mark" } });
    world.server.listener(session).await.raw(format!("data: {mark}\n\n"));
    let mut before = Vec::new();
    loop {
        let message = heard(stream).await;
        if message == mark {
            return before;
        }
        before.push(message);
    }
}

/// The next message that is no notification of a status.
pub(super) async fn beyond_status(stream: &mut Stream) -> Value {
    loop {
        let message = heard(stream).await;
        if message["method"] != "notifications/tasks/status" {
            return message;
        }
    }
}

// === impl Tasker ===

impl Tasker {
    /// A new session, without credentials.
    pub(super) async fn hello(world: &ProxyAndServer) -> Self {
        Self(LegacyClient::new(world.addr()).hello().await)
    }

    /// A new session with these credentials.
    pub(super) async fn bearing(world: &ProxyAndServer, token: &str) -> Self {
        Self(LegacyClient::new(world.addr()).with("authorization", &format!("Bearer {token}")).hello().await)
    }

    /// In a session that is there already.
    pub(super) fn within(world: &ProxyAndServer, session: &str) -> Self {
        Self(LegacyClient::new(world.addr()).within(session))
    }

    pub(super) async fn send(&self, method: &str, params: Value) -> Waiting {
        self.0.post(&request(&json!(7), method, &params)).await
    }

    pub(super) async fn ask(&self, method: &str, params: Value) -> Answer {
        self.send(method, params).await.answer().await
    }

    /// `tasks/get` and the like.
    pub(super) async fn of(&self, method: &str, task: &str) -> Answer {
        self.ask(method, json!({ "taskId": task })).await
    }

    pub(super) async fn get(&self, task: &str) -> Value {
        self.of("tasks/get", task).await.result()
    }

    /// A `tasks/result` that waits.
    pub(super) async fn waits(&self, task: &str) -> Stream {
        let stream = self.send("tasks/result", json!({ "taskId": task })).await.stream().await;
        assert_eq!(stream.headers["content-type"], "text/event-stream");
        stream
    }

    /// The messages of the whole answer to `tasks/result`.
    pub(super) async fn result(&self, task: &str) -> Answer {
        self.of("tasks/result", task).await
    }

    pub(super) async fn list(&self) -> Vec<String> {
        let mut result = self.ask("tasks/list", json!({})).await.result();
        let tasks = result["tasks"].take();
        let ids = tasks.as_array().expect("a list").iter();
        ids.map(|task| task["taskId"].as_str().expect("an id").to_owned()).collect()
    }

    /// A call that wants to be a task.
    pub(super) async fn begins(&self, task: Value) -> Answer {
        self.ask("tools/call", json!({ "name": "slow", "arguments": {}, "task": task })).await
    }

    /// A task, and the call at the server.
    pub(super) async fn makes(&self, world: &ProxyAndServer) -> (String, Call) {
        let answer = self.begins(json!({})).await;
        (id(&answer), world.server.call().await)
    }

    /// A task whose server has begun to answer with an event stream.
    pub(super) async fn makes_stream(&self, world: &ProxyAndServer) -> (String, Value, Events) {
        let (task, call) = self.makes(world).await;
        let id = call.id();
        (task, id, call.stream())
    }

    /// The task once it has this status.
    pub(super) async fn becomes(&self, task: &str, status: &str) -> Value {
        self.until(task, |shown| shown["status"] == status).await
    }

    pub(super) async fn until(&self, task: &str, wished: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let asked = async {
            loop {
                a_moment().await;
                let answer = self.of("tasks/get", task).await;
                if answer.json()["error"]["code"] == -31006 {
                    // Asked too often.
                    continue;
                }
                last = answer.result();
                if wished(&last) {
                    return last.clone();
                }
            }
        };
        match timeout(PATIENCE, asked).await {
            Ok(shown) => shown,
            Err(_) => panic!("the task did not become what was wished for; it is {last:#}"),
        }
    }

    /// Opens the session's own stream.
    pub(super) async fn listens(&self) -> Stream {
        let stream = self.0.listen().await.stream().await;
        assert_eq!(stream.status, 200);
        stream
    }

    /// Posts a message that is no request.
    pub(super) async fn posts(&self, message: &Value) {
        assert_eq!(self.0.post(&message.to_string()).await.answer().await.status, 202);
    }

    /// Answers a question.
    pub(super) async fn answers(&self, id: &Value, result: Value) {
        self.posts(&json!({ "jsonrpc": "2.0", "id": id, "result": result })).await;
    }
}

/// The id of the task that was made.
pub(super) fn id(answer: &Answer) -> String {
    let result = answer.result();
    result["task"]["taskId"].as_str().unwrap_or_else(|| panic!("no task: {result:#}")).to_owned()
}
