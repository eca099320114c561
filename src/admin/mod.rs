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
//! | `gate.rs` | who may do what: the operator's token |
//! | `router.rs` | what is served, in one table |
//! | `answer.rs` | what operators are answered with |
//! | `tasks.rs` | `/tasks`, one task, and its cancel |
//! | `routes.rs` | `/routes` |
//! | `events.rs` | `/events`: all of it once a second, for a page |
//! | `health.rs` | `/live` and `/ready` |
//! | `metrics.rs` | `/metrics`, `/tools`, `/limits` |
//! | `reload.rs` | `/reload` |
//! | `processes.rs` | `/processes` |
//! | `page.rs`, `page/` | `/`, for a browser |

mod answer;
mod events;
mod gate;
mod health;
mod listener;
mod metrics;
mod page;
mod processes;
mod reload;
mod router;
mod routes;
mod scrape;
mod server;
mod tasks;

pub use events::Events;
pub use reload::{Asked, Changed, Reloaded, Reloads};
pub use routes::ShownRoute;
pub use scrape::{Scrape, serve_metrics};
pub use server::{Bound, Config, Error, Parts, Prepared, serve};
