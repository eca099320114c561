//! The private key of a certificate, and its source.

use rustls_pki_types::{PrivateKeyDer, pem::PemObject};
use std::{
    fmt,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A private key in PEM: PKCS #8, PKCS #1 or SEC 1, not encrypted. `Display` shows its source, never the key.
#[derive(Clone, PartialEq, Eq)]
pub enum PrivateKey {
    /// The key is in this file, which is read whenever the key is needed.
    File(PathBuf),
    /// The key is in memory, from the configuration.
    Inline(Arc<InlineKey>),
}

/// A key in memory, and a description of its source.
#[derive(PartialEq, Eq)]
pub struct InlineKey {
    pem: String,
    source: String,
}

/// Maximum bytes of a PEM file: the certificates of all public authorities take a fifth of it.
const MAX_PEM: u64 = 1 << 20;

// === impl PrivateKey ===

impl PrivateKey {
    /// Creates a key in memory. `source` describes where the key comes from, for messages.
    pub fn inline(pem: String, source: String) -> Self {
        Self::Inline(Arc::new(InlineKey { pem, source }))
    }

    /// Reads and decodes the key.
    ///
    /// # Errors
    /// A description of what is wrong with the key, without its source.
    pub fn read(&self) -> Result<PrivateKeyDer<'static>, String> {
        let key = match self {
            Self::File(path) => PrivateKeyDer::from_pem_slice(&read_pem(path)?),
            Self::Inline(inline) => PrivateKeyDer::from_pem_slice(inline.pem.as_bytes()),
        };
        key.map_err(|error| error.to_string())
    }
}

impl From<PathBuf> for PrivateKey {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

impl fmt::Display for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Inline(inline) => f.write_str(&inline.source),
        }
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({self})")
    }
}

/// Reads a PEM file of at most 1 MiB.
///
/// # Errors
/// A description of what is wrong with the file, without its name.
pub fn read_pem(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    let length = file.take(MAX_PEM + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    match length as u64 > MAX_PEM {
        true => Err(format!("it is longer than {MAX_PEM} bytes")),
        false => Ok(bytes),
    }
}
