//! Harness: a server that sends input requests, and a client that answers them.

use crate::support::legacy_server::{Call, Events};
pub(super) use crate::{
    proxy::proxy_and_server::{ALWAYS, ProxyAndServer, Setup},
    support::modern_client::{Answer, Client, TASKS, Waiting},
};
use serde_json::{Map, Value, json};

// === the server ===

/// Where a server asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// On the stream of the call it serves.
    OnTheCall,
    /// On the session's own GET stream, where nothing says for which call.
    OnTheSession,
}

pub(super) const WAYS: [Way; 2] = [Way::OnTheCall, Way::OnTheSession];

/// A call at a server that may ask before it answers.
pub(super) struct Asking {
    pub(super) id: Value,
    pub(super) session: String,
    /// Its arguments, as they arrived.
    pub(super) arguments: Value,
    speaks: Speaks,
}

enum Speaks {
    Stream(Events),
    /// The answer will be one document.
    Session {
        call: Box<Call>,
        own: Events,
    },
}

// === impl Asking ===

impl Asking {
    /// The next call that arrives.
    pub(super) async fn next(world: &ProxyAndServer, way: Way) -> Self {
        Self::of(world, world.server.call().await, way).await
    }

    pub(super) async fn of(world: &ProxyAndServer, call: Call, way: Way) -> Self {
        let (id, session) = (call.id(), call.session().to_owned());
        let arguments = call.seen.json["params"]["arguments"].clone();
        let speaks = match way {
            Way::OnTheCall => Speaks::Stream(call.stream()),
            Way::OnTheSession => {
                let own = world.server.listener(&session).await;
                Speaks::Session { call: Box::new(call), own }
            }
        };
        Self { id, session, arguments, speaks }
    }

    fn events(&self) -> &Events {
        match &self.speaks {
            Speaks::Stream(events) | Speaks::Session { own: events, call: _ } => events,
        }
    }

    /// Sends a request of its own under this id. Servers count from 0.
    pub(super) fn ask(&self, id: u32, question: &Value) {
        self.ask_as(&id.to_string(), question);
    }

    /// Sends a request of its own under an id that is spelled like this.
    pub(super) fn ask_as(&self, id: &str, question: &Value) {
        let method = &question["method"];
        let params =
            question.get("params").map(|params| format!(r#","params":{params}"#)).unwrap_or_default();
        let message = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{method}{params}}}"#);
        self.events().raw(format!("event: message\ndata: {message}\n\n"));
    }

    /// Takes a question back.
    pub(super) fn withdraw(&self, id: u32) {
        self.events().notify("notifications/cancelled", json!({ "requestId": id, "reason": "too late" }));
    }

    pub(super) fn notify(&self, method: &str, params: Value) {
        self.events().notify(method, params);
    }

    /// Resolves when the proxy has heard all that was said before.
    pub(super) async fn heard(&self, world: &ProxyAndServer) {
        self.ask(9_999, &json!({ "method": "ping" }));
        assert_eq!(self.answered(world, 9_999).await, json!({}));
    }

    /// What the server was answered: the `result` or the `error`.
    pub(super) async fn answered(&self, world: &ProxyAndServer, id: u32) -> Value {
        let id = json!(id);
        let mut seen =
            world.server.seen(|seen| seen.answers(&id) && seen.session() == self.session).await.json;
        assert_eq!(world.server.count(|seen| seen.answers(&id) && seen.session() == self.session), 1);
        let key = if seen["error"].is_null() { "result" } else { "error" };
        seen[key].take()
    }

    /// Whether the server has been answered so far.
    pub(super) fn is_answered(&self, world: &ProxyAndServer, id: u32) -> bool {
        world.server.count(|seen| seen.answers(&json!(id)) && seen.session() == self.session) > 0
    }

    pub(super) fn result(self, result: Value) {
        match self.speaks {
            Speaks::Stream(events) => events.result(&self.id, result),
            Speaks::Session { call, own: _ } => call.result(result),
        }
    }

    pub(super) fn says(self, text: &str) {
        self.result(json!({ "content": [{ "type": "text", "text": text }] }));
    }

    pub(super) fn fails(self, error: Value) {
        match self.speaks {
            Speaks::Stream(events) => {
                events.send(&json!({ "jsonrpc": "2.0", "id": self.id, "error": error }));
            }
            Speaks::Session { call, own: _ } => call.error(error),
        }
    }

    /// Resolves when the proxy no longer waits for this call.
    pub(super) async fn left(self) {
        match self.speaks {
            Speaks::Stream(events) => events.left().await,
            Speaks::Session { call, own: _ } => call.left().await,
        }
    }

    /// The cancellation that the server receives.
    pub(super) async fn cancelled(&self, world: &ProxyAndServer) {
        let told = world.server.seen(|seen| {
            seen.method() == "notifications/cancelled"
                && seen.session() == self.session
                && seen.json["params"]["requestId"] == self.id
        });
        told.await;
    }
}

/// A form with one field, `name`.
pub(super) fn form(message: &str) -> Value {
    json!({ "method": "elicitation/create", "params": {
        "message": message,
        "requestedSchema": { "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"] },
    }})
}

pub(super) fn sampling() -> Value {
    let said = json!({ "role": "user", "content": { "type": "text", "text": "Capital of France?" } });
    json!({ "method": "sampling/createMessage", "params": { "messages": [said], "maxTokens": 10 } })
}

pub(super) fn roots() -> Value {
    json!({ "method": "roots/list" })
}

// === the client ===

/// All that a client can declare to be asked.
pub(super) fn everything() -> Value {
    json!({ "elicitation": { "form": {}, "url": {} }, "sampling": {}, "roots": {} })
}

/// A client that can be asked everything, and knows no tasks.
pub(super) fn asked(world: &ProxyAndServer) -> Client {
    world.client().declaring(everything())
}

/// A client that can be asked everything, and knows tasks.
pub(super) fn asked_with_tasks(world: &ProxyAndServer) -> Client {
    world.client().declaring(with_tasks(everything()))
}

pub(super) fn with_tasks(mut capabilities: Value) -> Value {
    capabilities["extensions"] = json!({ TASKS: {} });
    capabilities
}

/// A request and its retries.
#[derive(Clone)]
pub(super) struct Talk {
    client: Client,
    method: &'static str,
    params: Value,
}

/// An `InputRequiredResult`.
#[derive(Clone, Debug)]
pub(super) struct Questions {
    pub(super) requests: Map<String, Value>,
    pub(super) state: String,
}

// === impl Talk ===

impl Talk {
    pub(super) fn tool(client: &Client) -> Self {
        Self::new(client, "tools/call", json!({ "name": "greet", "arguments": { "loud": true, "times": 2 } }))
    }

    pub(super) fn new(client: &Client, method: &'static str, params: Value) -> Self {
        Self { client: client.clone(), method, params }
    }

    /// The same request, by a client that is different in this way.
    pub(super) fn by(&self, client: &Client) -> Self {
        Self { client: client.clone(), ..self.clone() }
    }

    /// The same request with another member in its parameters.
    pub(super) fn with(&self, member: &str, value: Value) -> Self {
        let mut talk = self.clone();
        talk.params[member] = value;
        talk
    }

    pub(super) async fn begin(&self) -> Waiting {
        self.client.send(self.method, self.params.clone()).await
    }

    /// Comes back with answers.
    pub(super) async fn retry(&self, questions: &Questions, responses: Value) -> Waiting {
        self.client.send(self.method, self.retrying(questions, responses)).await
    }

    pub(super) fn retrying(&self, questions: &Questions, responses: Value) -> Value {
        let mut params = self.params.clone();
        params["requestState"] = json!(questions.state);
        params["inputResponses"] = responses;
        params
    }

    /// Calls, and is asked something on the call itself.
    pub(super) async fn is_asked(
        &self,
        world: &ProxyAndServer,
        way: Way,
        question: &Value,
    ) -> (Asking, Questions) {
        let waiting = self.begin().await;
        let server = Asking::next(world, way).await;
        server.ask(0, question);
        (server, Questions::of(&waiting.answer().await))
    }
}

// === impl Questions ===

impl Questions {
    /// Reads an answer that must be questions.
    pub(super) fn of(answer: &Answer) -> Self {
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.is_json(), "{answer:?}");
        Self::of_result(&answer.result())
    }

    pub(super) fn of_result(result: &Value) -> Self {
        assert_eq!(result["resultType"], "input_required", "{result:#}");
        let members = result.as_object().expect("an object");
        for member in members.keys() {
            let known = ["resultType", "inputRequests", "requestState", "_meta"];
            assert!(known.contains(&&**member), "{member} has no place in {result:#}");
        }
        let state = result["requestState"].as_str().expect("a state goes with every question").to_owned();
        let requests = result["inputRequests"].as_object().cloned().unwrap_or_default();
        Self { requests, state }
    }

    pub(super) fn keys(&self) -> Vec<&str> {
        self.requests.keys().map(String::as_str).collect()
    }

    /// The key of the only question.
    pub(super) fn key(&self) -> &str {
        let [key] = self.keys()[..] else { panic!("not one question: {self:#?}") };
        key
    }
}

pub(super) fn accept(name: &str) -> Value {
    json!({ "action": "accept", "content": { "name": name } })
}

pub(super) fn sampled() -> Value {
    json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": "Paris" }, "stopReason": "endTurn" })
}

/// An answer that fits, whatever is asked.
pub(super) fn fitting(request: &Value) -> Value {
    match request["method"].as_str() {
        Some("elicitation/create") if request["params"]["mode"] == "url" => json!({ "action": "accept" }),
        Some("elicitation/create") => accept("Ada"),
        Some("sampling/createMessage") => sampled(),
        Some("roots/list") => json!({ "roots": [{ "uri": "file:///home/ada", "name": "home" }] }),
        _ => panic!("not a question: {request}"),
    }
}

/// `tasks/update` with these answers.
pub(super) async fn update(client: &Client, task: &str, responses: Value) -> Answer {
    client.ask("tasks/update", json!({ "taskId": task, "inputResponses": responses })).await
}

/// The code and the words of a refusal with status 200.
pub(super) fn refusal(answer: &Answer) -> (i64, String) {
    assert_eq!(answer.status, 200, "{answer:?}");
    let error = answer.error();
    (error["code"].as_i64().expect("a code"), error["message"].as_str().expect("words").to_owned())
}
