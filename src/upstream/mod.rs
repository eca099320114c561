//! Connections to MCP servers.
//!
//! An [`Upstream`] (`api`) is one server: it takes calls in the format of 2026-07-28 and yields their events.
//! `legacy` implements it for legacy servers over a `transport`: `http` (Streamable HTTP, over connections of
//! `http1`) or `stdio` (pipes of a process). Begin with `api`, then `legacy/mod.rs`.

mod api;
mod background;
mod call_error;
mod caller;
mod changes;
mod config;
mod create;
mod deferral;
mod description;
pub mod duplex;
mod event;
mod forward;
mod http;
pub mod http1;
mod http_origin;
mod http_relay;
mod legacy;
pub mod own_ids;
mod process_table;
mod server_url;
pub mod stdio;
mod transport;

pub use self::http::HttpUpstream;
pub use api::{
    CallResumption, CallTarget, OutgoingCall, ReadyServer, ResumedCall, Subscription, Upstream,
    UpstreamStatus,
};
pub use call_error::CallError;
pub use caller::{CallerIdentity, ClientSession};
pub use changes::{ChangeNotification, ChangeNotifier, ToolChanges};
pub use config::{
    ApplyReload, Config, DEFAULT_MAX_CONNECTIONS, UpstreamLimits, UpstreamSetupError, UpstreamTimeouts,
};
pub use create::{UpstreamTarget, create_upstream};
pub use deferral::{CallAnchor, Deferral};
pub use description::UpstreamDescription;
pub use event::{
    InputRequired, PendingServerRequest, Responder, ServerRequest, UpstreamEvent, UpstreamEvents,
};
pub use forward::{
    BackgroundRead, HttpRequest, HttpResponse, HttpResponseBody, RequestPurpose, ResponseInterest,
};
pub use http_origin::{HttpOrigin, OriginRequest, OriginResponse};
pub use http_relay::{GetStreamEvent, HttpRelay, NativeCall, OffStreamCall};
pub use http1::{Proxy, ProxyUrlError, TlsError, TlsFiles, UpstreamTls};
pub use process_table::ProcessTable;
pub use server_url::ServerUrl;
pub use stdio::{ServerCommand, StdioUpstream};

pub(crate) use call_error::root_cause;
pub(crate) use legacy::sole_call;
