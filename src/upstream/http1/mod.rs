//! The way to a server: HTTP/1.1, our own (RFC 9112).
//!
//! `head` and `body` know no socket: bytes that have arrived go in, and what they are comes out, or how
//! many more are wanted. A fuzz target cuts those bytes anywhere and asks hyper the same. `connection` is
//! one connection's input and output, `pool` makes connections and keeps them. `exchange` is one request until its
//! response begins, with `redirect` and `cookies`; `content` undoes what the server did to the body. `tls` is whom
//! it trusts there and what it shows, `proxy` what stands between us and the server.

mod body;
mod connection;
mod content;
mod cookies;
mod exchange;
mod head;
mod pool;
mod proxy;
mod redirect;
mod tls;

pub use body::{BodyFraming, BodyPart};
pub use head::{HeadReader, is_keep_alive};
pub use proxy::{Proxy, ProxyUrlError};
pub use tls::{TlsError, TlsFiles, UpstreamTls};

pub(super) use content::IncomingBody;
pub(super) use cookies::CookieJar;
pub(super) use exchange::PendingResponse;
pub(super) use head::{header_lines, write_header_line};
pub(super) use pool::{ConnectionReuse, HttpClient, SendOptions, TrafficClass};
