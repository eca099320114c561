//! What the listener needs to know. Stands in until `crate::front` has these types.

use crate::policy::Access;
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// How clients come in.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: Vec<SocketAddr>,
    pub tls: Option<TlsPaths>,
    pub access: Access,
    pub limits: Limits,
    pub timeouts: Timeouts,
    pub keep_alive: Duration,
    pub public_url: Option<http::Uri>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPaths {
    pub cert: PathBuf,
    pub key: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub body_bytes: usize,
    pub header_bytes: usize,
    pub headers: usize,
    pub connections: usize,
    pub calls: usize,
    pub depth: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub read_headers: Duration,
    pub read_body: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 8808))],
            tls: None,
            access: Access::default(),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            keep_alive: Duration::from_secs(5),
            public_url: None,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 4 << 20,
            header_bytes: 64 << 10,
            headers: 128,
            connections: 10_000,
            calls: 10_000,
            depth: 128,
        }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { read_headers: Duration::from_secs(10), read_body: Duration::from_secs(30) }
    }
}
