//! The admin listener: a small HTTP server for operators.
//!
//! The listener keeps responding during the drain, because operators and health checks need it then, and ends
//! when its task is aborted.
//!
//! | file | |
//! |---|---|
//! | `listener.rs` | accepts connections, and evicts idle ones |
//! | `server.rs` | checks and dispatches requests |
//! | `metrics_listener.rs` | the listener for scrapers: metrics only |
//! | `browser.rs` | protection against web pages |
//! | `token_endpoints.rs` | `/session` and `/token`: how page and commands get a token |
//! | `gate.rs` | authorization by the admin token |
//! | `generated_token.rs` | the token that is generated at start, and its file |
//! | `sign_in.rs` | one-time codes and browser sessions |
//! | `router.rs` | the table of endpoints |
//! | `response.rs` | responses |
//! | `tasks.rs` | `/tasks`, one task, and its cancellation |
//! | `routes.rs` | `/routes` |
//! | `events.rs` | `/events`: the whole state once a second, for the page |
//! | `tap.rs` | `/tap`: live requests, tasks and input requests |
//! | `history.rs` | `/history`: calls per second over the last hour |
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
