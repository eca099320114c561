//! Who lives in a house, and how each speaks.

use crate::{
    legacy::world::Older,
    support::clients::{Client, Following, TASKS},
};
use deferral::internals::runtime::Pipes;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// A client.
pub(super) struct Person {
    pub(super) principal: &'static str,
    pub(super) speaks: Speaks,
}

pub(super) enum Speaks {
    Modern {
        client: Client,
        tasks: bool,
    },
    Legacy {
        /// In its session, where it has one.
        client: Older,
        session: Option<String>,
        own: Option<Following>,
        /// How much of the session's stream has been looked at.
        looked_at: usize,
    },
}

// === impl Person ===

impl Person {
    pub(super) fn modern(
        pipes: &Pipes,
        at: SocketAddr,
        principal: &'static str,
        tasks: bool,
        askable: bool,
    ) -> Self {
        let mut capabilities = json!({});
        if askable {
            capabilities["elicitation"] = json!({});
        }
        if tasks {
            capabilities["extensions"] = json!({ TASKS: {} });
        }
        let client = Client::new(at).piped(pipes).bearing(principal).declaring(capabilities);
        Self { principal, speaks: Speaks::Modern { client, tasks } }
    }

    pub(super) fn legacy(pipes: &Pipes, at: SocketAddr, principal: &'static str) -> Self {
        let authorization = format!("Bearer {principal}");
        let client = Older::new(at).piped(pipes).with("authorization", &authorization);
        Self { principal, speaks: Speaks::Legacy { client, session: None, own: None, looked_at: 0 } }
    }

    pub(super) fn is_legacy(&self) -> bool {
        matches!(self.speaks, Speaks::Legacy { .. })
    }

    pub(super) fn knows_tasks(&self) -> bool {
        matches!(self.speaks, Speaks::Modern { tasks: true, .. })
    }

    pub(super) fn has_session(&self) -> bool {
        match &self.speaks {
            Speaks::Modern { .. } => true,
            Speaks::Legacy { session, .. } => session.is_some(),
        }
    }

    /// The server has forgotten the session.
    pub(super) fn lose_session(&mut self) {
        if let Speaks::Legacy { session, own, looked_at, .. } = &mut self.speaks {
            *session = None;
            *own = None;
            *looked_at = 0;
        }
    }

    /// Opens a session, and listens in it.
    pub(super) async fn begin(&mut self) {
        if let Speaks::Legacy { client, session, own, looked_at } = &mut self.speaks {
            let within = client.hello().await;
            *session = Some(within.session());
            *own = Some(within.listen().await.follow());
            *looked_at = 0;
        }
    }

    /// Sends a request of the protocol it speaks.
    pub(super) async fn send(&self, id: u64, method: &str, params: Value) -> Following {
        match &self.speaks {
            Speaks::Modern { client, .. } => {
                client.send_request(client.request_as(&json!(id), method, params)).await.follow()
            }
            Speaks::Legacy { client, session, .. } => {
                let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
                let session = session.as_deref().expect("a session");
                client.within(session).post(&body.to_string()).await.follow()
            }
        }
    }

    /// Answers a request of the server, in the way of older revisions.
    pub(super) async fn respond(&self, id: &Value, result: Value) -> Following {
        let Speaks::Legacy { client, session, .. } = &self.speaks else {
            panic!("only they are sent requests")
        };
        let body = json!({ "jsonrpc": "2.0", "id": id, "result": result });
        client.within(session.as_deref().expect("a session")).post(&body.to_string()).await.follow()
    }

    /// What has come on its session's own stream since this was last asked.
    pub(super) fn news(&mut self) -> Vec<Value> {
        let Speaks::Legacy { own: Some(own), looked_at, .. } = &mut self.speaks else { return Vec::new() };
        let news = own.messages().split_off(*looked_at);
        *looked_at += news.len();
        news
    }
}
