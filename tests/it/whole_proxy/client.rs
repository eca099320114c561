//! Clients of a scenario, and their messages.

use crate::{
    legacy::proxy_and_client::LegacyClient,
    support::modern_client::{Client, Following, TASKS},
};
use deferral::internals::runtime::PipeNetwork;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// A client.
pub(super) struct ScenarioClient {
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
        client: LegacyClient,
        session: Option<String>,
        own: Option<Following>,
        /// Whether it is one of those that take tasks they have not asked for.
        takes: bool,
        /// How much of the session's stream has been looked at.
        looked_at: usize,
    },
}

// === impl ScenarioClient ===

impl ScenarioClient {
    pub(super) fn modern(
        pipes: &PipeNetwork,
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

    pub(super) fn legacy(pipes: &PipeNetwork, at: SocketAddr, principal: &'static str, takes: bool) -> Self {
        let authorization = format!("Bearer {principal}");
        let client = LegacyClient::new(at).piped(pipes).with("authorization", &authorization);
        let client = client.with("x-takes-tasks", if takes { "yes" } else { "no" });
        Self { principal, speaks: Speaks::Legacy { client, session: None, own: None, takes, looked_at: 0 } }
    }

    /// Whether it takes tasks that it has not asked for, in the way of older revisions.
    pub(super) fn takes_tasks(&self) -> bool {
        matches!(self.speaks, Speaks::Legacy { takes: true, .. })
    }

    /// Whether it reads its session's own stream.
    pub(super) fn listens(&self) -> bool {
        matches!(&self.speaks, Speaks::Legacy { own: Some(own), .. } if !own.is_over())
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
        if let Speaks::Legacy { client, session, .. } = &mut self.speaks {
            *session = Some(client.hello().await.session());
            self.listen().await;
        }
    }

    /// Opens the session's own stream.
    pub(super) async fn listen(&mut self) {
        if let Speaks::Legacy { client, session: Some(session), own, looked_at, .. } = &mut self.speaks {
            *own = Some(client.within(session).listen().await.follow());
            *looked_at = 0;
        }
    }

    pub(super) fn listen_no_more(&mut self) {
        if let Speaks::Legacy { own, .. } = &mut self.speaks {
            own.take().into_iter().for_each(Following::leave);
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
        self.tell(&json!({ "jsonrpc": "2.0", "id": id, "result": result })).await
    }

    /// Takes a request back, in the way of older revisions.
    pub(super) async fn cancel(&self, id: u64) -> Following {
        let params = json!({ "requestId": id, "reason": "nobody wants it" });
        self.tell(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params })).await
    }

    async fn tell(&self, message: &Value) -> Following {
        let Speaks::Legacy { client, session, .. } = &self.speaks else { panic!("only they say it so") };
        client.within(session.as_deref().expect("a session")).post(&message.to_string()).await.follow()
    }

    /// What has come on its session's own stream since this was last asked.
    pub(super) fn news(&mut self) -> Vec<Value> {
        let Speaks::Legacy { own: Some(own), looked_at, .. } = &mut self.speaks else { return Vec::new() };
        let news = own.messages().split_off(*looked_at);
        *looked_at += news.len();
        news
    }
}
