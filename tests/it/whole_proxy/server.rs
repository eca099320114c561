//! The server of a scenario.

use crate::support::legacy_server::{Call, Canned, Events, LegacyServer, Options, Seen};
use deferral::internals::runtime::PipeNetwork;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// A server that may die and come back.
pub(super) struct Server {
    pipes: PipeNetwork,
    running: Option<LegacyServer>,
    /// How many have run before.
    lives: usize,
    /// How much of what arrived has been looked at.
    looked_at: usize,
}

/// What a server has of a call.
pub(super) struct Served {
    pub(super) session: String,
    pub(super) id: Value,
    speaks: Speaks,
}

enum Speaks {
    Events(Events),
    /// Nothing is said on the call's own answer before its end.
    Document(Box<Call>),
    /// No more.
    Over,
}

pub(super) const ADDRESS: &str = "10.0.0.2:80";

const PREFIXES: [&str; 4] = ["a", "b", "c", "d"];

// === impl Server ===

impl Server {
    pub(super) fn start(pipes: &PipeNetwork) -> Self {
        let mut server = Self { pipes: pipes.clone(), running: None, lives: 0, looked_at: 0 };
        server.come_back();
        server
    }

    pub(super) fn is_alive(&self) -> bool {
        self.running.is_some()
    }

    /// Whether it can die and come back once more.
    pub(super) fn has_lives(&self) -> bool {
        self.lives < PREFIXES.len()
    }

    pub(super) fn die(&mut self) {
        self.running = None;
        self.looked_at = 0;
    }

    /// Knows nothing of what was before.
    pub(super) fn come_back(&mut self) {
        let prefix = PREFIXES[self.lives];
        self.lives += 1;
        let options = Options {
            prefix,
            capabilities: json!({ "tools": {} }),
            tools: Some(json!([
                { "name": "slow", "inputSchema": { "type": "object" } },
                { "name": "quick", "inputSchema": { "type": "object" } },
                { "name": "plain", "inputSchema": { "type": "object" } },
            ])),
            ..Options::default()
        }
        .hook(move |seen| keeps_house(seen, prefix));
        let address: SocketAddr = ADDRESS.parse().expect("an address");
        self.running = Some(LegacyServer::piped(&self.pipes, address, options));
    }

    /// A call that has arrived, and is not looked at yet.
    pub(super) async fn next_call(&self) -> Option<Call> {
        let server = self.running.as_ref()?;
        if server.has_call() { Some(server.call().await) } else { None }
    }

    /// Everything that has arrived since this was last asked.
    pub(super) fn news(&mut self) -> Vec<Seen> {
        let Some(server) = &self.running else { return Vec::new() };
        let mut log = server.log();
        let news = log.split_off(self.looked_at);
        self.looked_at += news.len();
        news
    }

    pub(super) fn listening(&self, session: &str) -> Option<Events> {
        self.running.as_ref()?.listening(session)
    }

    pub(super) fn hang_up(&self, session: &str) {
        if let Some(server) = &self.running {
            server.hang_up(session);
        }
    }
}

/// Sessions of an earlier life are not known; whether anybody is there is always answered.
fn keeps_house(seen: &Seen, prefix: &str) -> Option<Canned> {
    if !seen.session().is_empty() && !seen.session().starts_with(prefix) {
        return Some(Canned::status(404));
    }
    let pong = || Canned::json(200, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": {} }));
    (seen.method() == "ping").then(pong)
}

// === impl Served ===

impl Served {
    pub(super) fn new(call: Call, documents: bool) -> Self {
        let (id, session) = (call.id(), call.session().to_owned());
        let speaks = if documents { Speaks::Document(Box::new(call)) } else { Speaks::Events(call.stream()) };
        Self { session, id, speaks }
    }

    /// Whether the answer is still to be given, and can be.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.speaks, Speaks::Over)
    }

    /// The call's own stream.
    pub(super) fn stream(&self) -> Option<&Events> {
        match &self.speaks {
            Speaks::Events(events) => Some(events),
            Speaks::Document(_) | Speaks::Over => None,
        }
    }

    pub(super) fn answer(&mut self, text: &str) {
        let result = json!({ "content": [{ "type": "text", "text": text }] });
        match std::mem::replace(&mut self.speaks, Speaks::Over) {
            Speaks::Events(events) => events.result(&self.id, result),
            Speaks::Document(call) => call.result(result),
            Speaks::Over => {}
        }
    }

    /// Breaks the connection of the answer, and goes on working.
    pub(super) fn break_off(&mut self) {
        match std::mem::replace(&mut self.speaks, Speaks::Over) {
            Speaks::Events(events) => events.break_off(),
            Speaks::Document(call) => call.document().break_off(),
            Speaks::Over => {}
        }
    }

    /// Says no more, because it is gone.
    pub(super) fn die(&mut self) {
        self.speaks = Speaks::Over;
    }
}

/// A question about a call.
pub(super) fn question(id: u32, text: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": {
        "message": text,
        "requestedSchema": { "type": "object", "properties": {
            "name": { "type": "string", "description": id.to_string() },
        } },
    }})
}

/// Which question this is, whatever id it has on its way.
pub(super) fn number(message: &Value) -> Option<u32> {
    message["params"]["requestedSchema"]["properties"]["name"]["description"].as_str()?.parse().ok()
}
