//! The private key of a certificate, and where it comes from.

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
    /// In this file, which is read whenever the key is needed.
    File(PathBuf),
    /// In memory, from the configuration.
    Inline(Arc<InlineKey>),
}

/// A key and its source, in words.
#[derive(PartialEq, Eq)]
pub struct InlineKey {
    pem: String,
    source: String,
}

/// Bytes of a PEM file: the certificates of all public authorities are a fifth of it.
const MAX_PEM: u64 = 1 << 20;

// === impl PrivateKey ===

impl PrivateKey {
    /// A key in memory with its source, in words.
    pub fn inline(pem: String, from: String) -> Self {
        Self::Inline(Arc::new(InlineKey { pem, source: from }))
    }

    /// Reads the key.
    ///
    /// # Errors
    /// What is wrong with the key, without its source.
    pub fn read(&self) -> Result<PrivateKeyDer<'static>, String> {
        let key = match self {
            Self::File(path) => PrivateKeyDer::from_pem_slice(&read_pem(path)?),
            Self::Inline(given) => PrivateKeyDer::from_pem_slice(given.pem.as_bytes()),
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
            Self::Inline(given) => f.write_str(&given.source),
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
/// What is wrong with the file, without its name.
pub fn read_pem(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    let read = file.take(MAX_PEM + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    match read as u64 > MAX_PEM {
        true => Err(format!("it is longer than {MAX_PEM} bytes")),
        false => Ok(bytes),
    }
}
