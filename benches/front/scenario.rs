//! What clients ask for, and what they declare when they do.

use super::{
    Failure,
    load::{self, Answer, Ask},
};
use deferral::internals::protocol::meta;
use serde_json::Value;
use std::{net::SocketAddr, time::Duration};
use tokio::time::{sleep, timeout};

/// One kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// A tool that answers at once.
    Fast(Client),
    /// The same from a server that answers with an event stream.
    Streamed(Client),
    /// `tasks/get` of a task with a result.
    Completed,
    /// `tasks/get` of a task that works.
    Working,
}

/// What a client declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    Plain,
    Elicitation,
    Tasks,
    /// Speaks 2025-11-25 in a session, and is passed on.
    Legacy,
}

/// In every result of the upstream's tools, whoever passes it on.
const RESULT: &str = r#""type":"text""#;

/// Long enough for a call to become a task: a result that is there first is simply given.
const SHORT: f64 = 0.2;

/// How long a task that ends at once may take to say so.
const SETTLE: Duration = Duration::from_secs(10);

// === impl Scenario ===

impl Scenario {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Fast(Client::Plain) => "tools/call, nothing declared",
            Self::Fast(Client::Elicitation) => "tools/call, elicitation declared",
            Self::Fast(Client::Tasks) => "tools/call, tasks declared",
            Self::Fast(Client::Legacy) => "tools/call, legacy client",
            Self::Streamed(Client::Legacy) => "tools/call, events, legacy client",
            Self::Streamed(Client::Plain) => "tools/call, answered with events",
            Self::Streamed(Client::Elicitation) => "tools/call, events, elicitation declared",
            Self::Streamed(Client::Tasks) => "tools/call, events, tasks declared",
            Self::Completed => "tasks/get, completed",
            Self::Working => "tasks/get, working",
        }
    }

    /// The most it may cost, as a multiple of the bare proxy.
    pub(crate) const fn goal(self) -> f64 {
        match self {
            Self::Fast(Client::Legacy) | Self::Streamed(Client::Legacy) => 1.5,
            Self::Fast(_) | Self::Streamed(_) => 2.0,
            Self::Completed | Self::Working => 1.0,
        }
    }

    /// The request, after what must be there for it has been made at `proxy`.
    pub(crate) async fn prepare(self, proxy: SocketAddr) -> Result<Ask, Failure> {
        match self {
            Self::Fast(client) => Ok(call("fast", "{}", client)),
            Self::Streamed(client) => Ok(call("streamed", "{}", client)),
            Self::Working => Ok(get(&task(proxy, 3600.0).await?, r#""status":"working""#)),
            Self::Completed => {
                let ask = get(&task(proxy, SHORT).await?, r#""status":"completed""#);
                timeout(SETTLE, async {
                    while load::once(proxy, &ask).await.is_err() {
                        sleep(Duration::from_millis(20)).await;
                    }
                })
                .await
                .map_err(|_| "a task does not complete")?;
                Ok(Ask { wants: RESULT, ..ask })
            }
        }
    }
}

/// A call of the tool that takes its time, which becomes a task wherever it can.
pub(crate) fn slow(seconds: f64, client: Client) -> Ask {
    call("slow", &format!(r#"{{"seconds":{seconds}}}"#), client)
}

/// The tool of a process that says how many calls it holds.
pub(crate) fn tells_held() -> Ask {
    call("held", "{}", Client::Plain)
}

/// The handle that a slow call is answered with.
pub(crate) fn deferred(seconds: f64) -> Ask {
    Ask { wants: r#""resultType":"task""#, ..slow(seconds, Client::Tasks) }
}

/// Makes a task that works for so long; gives its id.
async fn task(proxy: SocketAddr, seconds: f64) -> Result<String, Failure> {
    let Answer { body, .. } = load::once(proxy, &deferred(seconds)).await?;
    let answer: Value = serde_json::from_slice(&body)?;
    let id = answer["result"]["taskId"].as_str().ok_or("a handle without taskId")?;
    Ok(id.to_owned())
}

fn call(tool: &str, arguments: &str, client: Client) -> Ask {
    if client == Client::Legacy {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}}}"#
        );
        return Ask::in_session(&body, RESULT);
    }
    let meta = meta(client);
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments},"_meta":{meta}}}}}"#
    );
    Ask::post("tools/call", tool, &body, RESULT)
}

fn get(id: &str, wants: &'static str) -> Ask {
    let meta = meta(Client::Tasks);
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{{"taskId":"{id}","_meta":{meta}}}}}"#
    );
    Ask::post("tasks/get", id, &body, wants)
}

/// What a request of 2026-07-28 says of its client.
fn meta(client: Client) -> String {
    let capabilities = match client {
        Client::Plain | Client::Legacy => "{}".to_owned(),
        Client::Elicitation => r#"{"elicitation":{}}"#.to_owned(),
        Client::Tasks => format!(r#"{{"extensions":{{"{}":{{}}}}}}"#, meta::TASKS_EXTENSION),
    };
    format!(
        r#"{{"{}":"2026-07-28","{}":{{"name":"bench","version":"1.0.0"}},"{}":{capabilities}}}"#,
        meta::PROTOCOL_VERSION,
        meta::CLIENT_INFO,
        meta::CLIENT_CAPABILITIES
    )
}
