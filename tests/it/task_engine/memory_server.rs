//! A server of 2025-11-25 in memory. Each of its sessions is a pipe of lines, as those of a process are. It answers
//! handshakes and pings by itself, and calls as a test says.

use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, split},
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

/// The server; clones are the same.
#[derive(Clone, Default)]
pub(super) struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    sessions: Vec<Session>,
    calls: Vec<ServerCall>,
    /// Cancellations and answers, as they came; calls are named by their numbers.
    received: Vec<String>,
}

struct Session {
    send: mpsc::UnboundedSender<Value>,
    serving: JoinHandle<()>,
    /// Held as long as the session is open.
    open: Option<oneshot::Sender<()>>,
}

/// A `tools/call` that arrived.
struct ServerCall {
    session: usize,
    id: Value,
    token: Value,
    is_over: bool,
}

// === impl Server ===

impl Server {
    /// Serves the sessions that are started, until the proxy is gone.
    pub(super) async fn serve(self, mut started: mpsc::UnboundedReceiver<DuplexStream>) {
        while let Some(pipe) = started.recv().await {
            let (send, sent) = mpsc::unbounded_channel();
            let (open, closed) = oneshot::channel();
            let number = self.state().sessions.len();
            let serving = tokio::spawn(self.clone().serve_session(pipe, number, sent, closed));
            self.state().sessions.push(Session { send, serving, open: Some(open) });
        }
    }

    async fn serve_session(
        self,
        pipe: DuplexStream,
        number: usize,
        mut sent: mpsc::UnboundedReceiver<Value>,
        mut closed: oneshot::Receiver<()>,
    ) {
        let (reads, mut writes) = split(pipe);
        let mut lines = BufReader::new(reads).lines();
        loop {
            let message = tokio::select! {
                _ = &mut closed => return,
                message = sent.recv() => message,
                line = lines.next_line() => match line {
                    Ok(Some(line)) => {
                        self.receive(number, &serde_json::from_str(&line).expect("JSON"));
                        continue;
                    }
                    Ok(None) | Err(_) => return,
                },
            };
            let Some(message) = message else { return };
            if writes.write_all(format!("{message}\n").as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn receive(&self, session: usize, message: &Value) {
        let mut state = self.state();
        let answer = |result: Value| json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
        let reply = match message["method"].as_str() {
            Some("initialize") => Some(answer(json!({
                "protocolVersion": "2025-11-25",
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "server", "version": "1" },
            }))),
            Some("ping") => Some(answer(json!({}))),
            Some("tools/list") => {
                Some(answer(json!({ "tools": [{ "name": "t", "inputSchema": { "type": "object" } }] })))
            }
            Some("tools/call") => {
                let number = state.calls.len();
                state.received.push(format!("call {number}"));
                let (id, token) =
                    (message["id"].clone(), message["params"]["_meta"]["progressToken"].clone());
                state.calls.push(ServerCall { session, id, token, is_over: false });
                None
            }
            Some("notifications/cancelled") => {
                let id = &message["params"]["requestId"];
                let call = state.calls.iter().position(|call| call.session == session && call.id == *id);
                if let Some(call) = call {
                    state.calls[call].is_over = true;
                }
                state.received.push(format!("cancelled {}", call.map_or(-1, |call| call as i64)));
                None
            }
            Some(_) => None,
            None => {
                state
                    .received
                    .push(format!("{} <- {}{}", message["id"], message["result"], message["error"]));
                None
            }
        };
        if let (Some(reply), Some(session)) = (reply, state.sessions.get(session)) {
            let _ = session.send.send(reply);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, call: usize, message: Value) {
        let state = self.state();
        let _ = state.sessions[state.calls[call].session].send.send(message);
    }

    /// How many calls arrived.
    pub(super) fn calls(&self) -> usize {
        self.state().calls.len()
    }

    /// What arrived, calls aside.
    pub(super) fn received(&self) -> Vec<String> {
        self.state().received.clone()
    }

    /// The calls that are neither answered nor cancelled.
    pub(super) fn open(&self) -> Vec<usize> {
        let state = self.state();
        (0..state.calls.len()).filter(|call| !state.calls[*call].is_over).collect()
    }

    pub(super) fn asks(&self, call: usize, id: &str) {
        let params = json!({ "message": "?", "requestedSchema": { "type": "object", "properties": {} } });
        let method = "elicitation/create";
        self.send(call, json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
    }

    /// Reports progress under the token of the call.
    pub(super) fn reports(&self, call: usize) {
        let token = self.state().calls[call].token.clone();
        let params = json!({ "progressToken": token, "progress": 1, "message": "half" });
        self.send(call, json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }));
    }

    pub(super) fn answers(&self, call: usize, result: Value) {
        self.ends(call, "result", result);
    }

    pub(super) fn says(&self, call: usize, text: &str) {
        self.answers(call, json!({ "content": [{ "type": "text", "text": text }] }));
    }

    pub(super) fn fails(&self, call: usize) {
        self.ends(call, "error", json!({ "code": -32050, "message": "no" }));
    }

    fn ends(&self, call: usize, member: &str, value: Value) {
        let id = {
            let call = &mut self.state().calls[call];
            call.is_over = true;
            call.id.clone()
        };
        let mut message = json!({ "jsonrpc": "2.0", "id": id });
        message[member] = value;
        self.send(call, message);
    }

    /// All of its sessions break.
    pub(super) fn dies(&self) {
        let mut state = self.state();
        for session in &mut state.sessions {
            session.open = None;
            session.serving.abort();
        }
        state.calls.iter_mut().for_each(|call| call.is_over = true);
    }
}
