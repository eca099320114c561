//! Certificates.

use rustls::{ServerConfig, crypto::ring};
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio_rustls::TlsAcceptor;

/// The files TLS needs, both PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPaths {
    /// The certificate, followed by those that lead to its root.
    pub cert: PathBuf,
    /// Its private key: PKCS #8, PKCS #1 or SEC 1, not encrypted.
    pub key: PathBuf,
}

/// Why TLS cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read certificates from {path} (tls.cert): {source}")]
    Cert { path: PathBuf, source: pem::Error },
    #[error("{path} (tls.cert) holds no certificate")]
    NoCert { path: PathBuf },
    #[error("cannot read a private key from {path} (tls.key): {source}")]
    Key { path: PathBuf, source: pem::Error },
    #[error("{cert} (tls.cert) and {key} (tls.key) cannot be used together: {source}")]
    Pair { cert: PathBuf, key: PathBuf, source: rustls::Error },
}

// === impl TlsPaths ===

impl TlsPaths {
    /// Whether the files could be served with, for those who only want to know.
    ///
    /// # Errors
    /// [`TlsError`] names the file and what is wrong with it.
    pub fn check(&self) -> Result<(), TlsError> {
        acceptor(self, &[]).map(|_| ())
    }
}

/// Reads the files, and offers these protocols, the best first (RFC 7301).
///
/// # Errors
/// [`TlsError`] names the file and what is wrong with it.
pub fn acceptor(paths: &TlsPaths, protocols: &[&[u8]]) -> Result<TlsAcceptor, TlsError> {
    let chain = certificates(&paths.cert)?;
    let key = PrivateKeyDer::from_pem_file(&paths.key)
        .map_err(|source| TlsError::Key { path: paths.key.clone(), source })?;
    let pair = |source| TlsError::Pair { cert: paths.cert.clone(), key: paths.key.clone(), source };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(pair)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(pair)?;
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unread = |source| TlsError::Cert { path: path.to_owned(), source };
    let chain: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(unread)?.collect::<Result<_, _>>().map_err(unread)?;
    if chain.is_empty() {
        return Err(TlsError::NoCert { path: path.to_owned() });
    }
    Ok(chain)
}
