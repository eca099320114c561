//! For operators: a small HTTP server on an address of its own.
//!
//! It is not part of the drain. It goes on answering while the proxy stops, for that is when
//! whoever watches needs to be told, and ends when its task is aborted.
//!
//! | file | |
//! |---|---|
//! | `listener.rs` | accepts connections, and closes those that wait when all are taken |
//! | `server.rs` | lets requests in |
//! | `scrape.rs` | the listener for scrapers: metrics, and nothing else |
//! | `browser.rs` | which pages of a browser may reach it |
//! | `entry.rs` | `/session` and `/token`: how a page and a command come by a token |
//! | `gate.rs` | who may do what: the operator's token |
//! | `made_token.rs` | the token that is made at start, and its file |
//! | `sign_in.rs` | the page's one-time code, and what it is exchanged for |
//! | `router.rs` | what is served, in one table |
//! | `answer.rs` | what operators are answered with |
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

mod answer;
mod browser;
mod entry;
mod events;
mod gate;
mod health;
mod history;
mod listener;
mod made_token;
mod metrics;
mod page;
mod processes;
mod reload;
mod router;
mod routes;
mod scrape;
mod server;
mod sign_in;
mod tap;
mod tasks;

pub use browser::OperatorAccess;
pub use events::Events;
pub use made_token::{MadeToken, TokenFolder};
pub use reload::{Asked, Changed, Reloaded, Reloads};
pub use routes::ShownRoute;
pub use scrape::{Scrape, serve_metrics};
pub use server::{Bound, Config, Error, Parts, Prepared, serve};
pub use sign_in::SignIn;
