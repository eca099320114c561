//! For operators: a small HTTP server on an address of its own.
//!
//! It is not part of the drain. It goes on answering while the proxy stops, for that is when
//! whoever watches needs to be told, and ends when its task is aborted.
//!
//! | file | |
//! |---|---|
//! | `listener.rs` | accepts connections, and closes those that wait when all are taken |
//! | `server.rs` | lets requests in |
//! | `metrics_listener.rs` | the listener for scrapers: metrics, and nothing else |
//! | `browser.rs` | which pages of a browser may reach it |
//! | `token_endpoints.rs` | `/session` and `/token`: how a page and a command come by a token |
//! | `gate.rs` | who may do what: the operator's token |
//! | `generated_token.rs` | the token that is made at start, and its file |
//! | `sign_in.rs` | the page's one-time code, and what it is exchanged for |
//! | `router.rs` | what is served, in one table |
//! | `response.rs` | what operators are answered with |
//! | `tasks.rs` | `/tasks`, one task, and its cancel |
//! | `routes.rs` | `/routes` |
//! | `events.rs` | `/events`: all of it once a second, for a page |
//! | `tap.rs` | `/tap`: requests, tasks and input requests while they happen |
//! | `history.rs` | `/history`: calls a second over the last hour |
//! | `health.rs` | `/live` and `/ready` |
//! | `metrics.rs` | `/metrics`, `/tools`, `/limits` |
//! | `reload.rs` | `/reload` |
//! | `processes.rs` | `/processes` |
//! | `page.rs`, `page/` | `/`, for a browser |

mod browser;
mod events;
mod gate;
mod generated_token;
mod health;
mod history;
mod listener;
mod metrics;
mod metrics_listener;
mod page;
mod processes;
mod reload;
mod response;
mod router;
mod routes;
mod server;
mod sign_in;
mod tap;
mod tasks;
mod token_endpoints;

pub use browser::OperatorAccess;
pub use events::EventStreams;
pub use generated_token::{GeneratedToken, TokenFolder};
pub use metrics_listener::{MetricsListener, serve_metrics};
pub use reload::{ChangedKeys, ReloadReceiver, ReloadResult, ReloadSender};
pub use routes::RouteEntry;
pub use server::{AdminParts, AdminServer, Config, Error, PreparedAccess, serve};
pub use sign_in::BrowserSignIn;
