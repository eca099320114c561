//! Certificates.

use crate::runtime::{PrivateKey, read_pem};
use rustls::{ServerConfig, crypto::ring};
use rustls_pki_types::{
    CertificateDer,
    pem::{self, PemObject},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio_rustls::TlsAcceptor;

/// Files of a TLS certificate, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPaths {
    /// The certificate, followed by the chain to its root.
    pub cert: PathBuf,
    /// The private key of the certificate.
    pub key: PrivateKey,
}

/// Error of a certificate or private key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read certificates from {path} (tls.cert): {why}")]
    Cert { path: PathBuf, why: String },
    #[error("{path} (tls.cert) holds no certificate")]
    NoCert { path: PathBuf },
    #[error("cannot read a private key from {key} (tls.key): {why}")]
    Key { key: PrivateKey, why: String },
    #[error("{cert} (tls.cert) and {key} (tls.key) cannot be used together: {source}")]
    Pair { cert: PathBuf, key: PrivateKey, source: rustls::Error },
}

// === impl TlsPaths ===

impl TlsPaths {
    /// Checks that the files are usable.
    ///
    /// # Errors
    /// [`TlsError`] names the file and what is wrong with it.
    pub fn check(&self) -> Result<(), TlsError> {
        acceptor(self, &[]).map(|_| ())
    }
}

/// Reads the files, and builds a TLS acceptor that offers these ALPN protocols, the preferred one first (RFC
/// 7301).
///
/// # Errors
/// [`TlsError`] names the file and what is wrong with it.
pub fn acceptor(paths: &TlsPaths, protocols: &[&[u8]]) -> Result<TlsAcceptor, TlsError> {
    let chain = read_certificates(&paths.cert)?;
    let key = paths.key.read().map_err(|why| TlsError::Key { key: paths.key.clone(), why })?;
    let pair_error = |source| TlsError::Pair { cert: paths.cert.clone(), key: paths.key.clone(), source };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(pair_error)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(pair_error)?;
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read_error = |why| TlsError::Cert { path: path.to_owned(), why };
    let bytes = read_pem(path).map_err(read_error)?;
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&bytes).collect();
    let chain = found.map_err(|error| read_error(error.to_string()))?;
    if chain.is_empty() {
        return Err(TlsError::NoCert { path: path.to_owned() });
    }
    Ok(chain)
}
