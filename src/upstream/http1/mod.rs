//! The way to a server: HTTP/1.1, our own (RFC 9112).
//!
//! `head` and `body` know no socket: bytes that have arrived go in, and what they are comes out, or how
//! many more are wanted. A fuzz target cuts those bytes anywhere and asks hyper the same. `connection` is
//! one connection's input and output, `pool` makes connections, keeps them, and sends on them; `tls` is whom
//! it trusts there and what it shows, `proxy` what stands between us and the server.

mod body;
mod connection;
mod head;
mod pool;
mod proxy;
mod tls;

pub use body::{Framing, Next};
pub use head::{HeadReader, is_kept};
pub use proxy::{NoProxy, Proxy};
pub use tls::{Tls, TlsError, TlsFiles};

pub(super) use connection::Incoming;
pub(super) use head::{line, lines};
pub(super) use pool::{Answering, HttpClient, Reuse, Traffic};
