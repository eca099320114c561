//! HTTP/1.1 client (RFC 9112).
//!
//! `head` and `body` parse bytes without sockets: they take the bytes that have arrived and return what these
//! mean, or how many more bytes are needed. A fuzz target splits bytes anywhere and compares the result with
//! hyper's. `connection` does the input and output of one connection, `pool` connects and keeps connections.
//! `exchange` is one request until its response begins, with `redirect` and `cookies`; `content` decodes the
//! body. `tls` has the trust roots and the client certificate, `proxy` the HTTP proxy between this process
//! and the server. Begin with `exchange`.

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
