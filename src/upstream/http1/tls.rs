//! TLS to a server: trust roots, client certificate, and server name.

use http::Uri;
use rustls::{AlertDescription as Alert, ClientConfig, RootCertStore, crypto::ring};
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer, ServerName,
    pem::{self, PemObject},
};
use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio_rustls::TlsConnector;

use crate::{
    runtime::{PrivateKey, read_pem},
    upstream::UpstreamSetupError,
};

/// TLS settings of the connections to one server. Equal if their contents are equal.
#[derive(Default, PartialEq, Eq)]
pub struct UpstreamTls {
    /// Certificate authorities for the server's certificate; `None` for the system's.
    authorities: Option<Vec<CertificateDer<'static>>>,
    /// Client certificate, for servers that require one.
    identity: Option<ClientCertificate>,
    /// Name for SNI and for verifying the server's certificate; `None` for the URL's host.
    server_name: Option<ServerName<'static>>,
}

/// Client certificate, followed by its intermediates, with its key.
#[derive(PartialEq, Eq)]
struct ClientCertificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// PEM files and server name of the TLS settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// File of the certificate authorities (`tls.ca`); `None` for the system's.
    pub ca: Option<PathBuf>,
    /// Client certificate file and private key (`tls.cert`, `tls.key`).
    pub identity: Option<(PathBuf, PrivateKey)>,
    /// Name for SNI and for verifying the server's certificate; `None` for the URL's host.
    pub name: Option<ServerName<'static>>,
}

/// Error in the TLS settings of a server.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("no certificate authority can be read from {path} (tls.ca): {why}")]
    Authorities { path: PathBuf, why: String },
    #[error("no certificate can be read from {path} (tls.cert): {why}")]
    Certificate { path: PathBuf, why: String },
    #[error("no private key can be read from {key} (tls.key): {why}")]
    Key { key: PrivateKey, why: String },
    #[error("{cert} (tls.cert) and {key} (tls.key) cannot be used together: {source}")]
    Pair { cert: PathBuf, key: PrivateKey, source: rustls::Error },
}

/// TLS connector of one server.
#[derive(Clone)]
pub(super) struct TlsEndpoint {
    pub(super) connector: TlsConnector,
    pub(super) name: ServerName<'static>,
}

/// Creates the TLS connector for the server at this URL; `None` if the URL has no TLS.
///
/// # Errors
/// [`UpstreamSetupError`] if the URL is not an HTTP URL, or the system's certificates cannot be read.
pub(super) fn tls_endpoint(
    url: &Uri,
    tls: Option<&UpstreamTls>,
) -> Result<Option<TlsEndpoint>, UpstreamSetupError> {
    let Some(host) = url.host().filter(|host| !host.is_empty()) else {
        return Err(UpstreamSetupError::NoHost(url.clone()));
    };
    match url.scheme_str() {
        // Without TLS the system's certificates are not read.
        Some("http") => return Ok(None),
        Some("https") => {}
        _ => return Err(UpstreamSetupError::Scheme(url.clone())),
    }
    let name = match tls.and_then(|tls| tls.server_name.clone()) {
        Some(name) => name,
        None => {
            let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            ServerName::try_from(name).map_err(|_| UpstreamSetupError::NoHost(url.clone()))?
        }
    };
    let roots = match tls.and_then(|tls| tls.authorities.as_deref()) {
        Some(authorities) => root_store(authorities),
        None => system_roots()?,
    };
    let config =
        client_config(roots, tls.and_then(|tls| tls.identity.as_ref())).map_err(UpstreamSetupError::Tls)?;
    Ok(Some(TlsEndpoint { connector: TlsConnector::from(Arc::new(config)), name }))
}

fn client_config(
    roots: RootCertStore,
    identity: Option<&ClientCertificate>,
) -> Result<ClientConfig, rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    match identity {
        Some(ClientCertificate { chain, key }) => {
            config.with_client_auth_cert(chain.clone(), key.clone_key())
        }
        None => Ok(config.with_no_client_auth()),
    }
}

/// Root certificates of the system, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name.
fn system_roots() -> Result<RootCertStore, UpstreamSetupError> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(loaded.certs);
    if usable == 0 {
        let problems: Vec<_> = loaded.errors.iter().map(ToString::to_string).collect();
        return Err(UpstreamSetupError::NoRoots(problems.join("; ")));
    }
    Ok(roots)
}

/// Root store of these authorities, without those that cannot be parsed.
fn root_store(authorities: &[CertificateDer<'static>]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities.iter().cloned());
    roots
}

/// Whether the error is the server's rejection of the client certificate. In TLS 1.3 a server rejects the
/// certificate after the client's handshake, in place of a response, and has not read the request then (RFC
/// 8446, 4.4.2 and 6.2).
pub(super) fn is_certificate_refusal(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::AlertReceived(alert)) = error else { return false };
    matches!(
        alert,
        Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::CertificateRequired
    )
}

// === impl UpstreamTls ===

impl UpstreamTls {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// [`TlsError`] names the file and the reason.
    pub fn read(files: TlsFiles) -> Result<Self, TlsError> {
        let TlsFiles { ca, identity, name } = files;
        let authorities = ca.map(read_authorities).transpose()?;
        let identity = identity.map(|(cert, key)| read_client_certificate(cert, key)).transpose()?;
        Ok(Self { authorities, identity, server_name: name })
    }
}

fn read_authorities(path: PathBuf) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    match read_certificates(&path) {
        Err(why) => Err(TlsError::Authorities { path, why }),
        Ok(certificates) if root_store(&certificates).is_empty() => {
            Err(TlsError::Authorities { path, why: "it holds no valid certificate".to_owned() })
        }
        Ok(certificates) => Ok(certificates),
    }
}

fn read_client_certificate(cert: PathBuf, key: PrivateKey) -> Result<ClientCertificate, TlsError> {
    let chain = read_certificates(&cert).map_err(|why| TlsError::Certificate { path: cert.clone(), why })?;
    let key_der = key.read().map_err(|why| TlsError::Key { key: key.clone(), why })?;
    let certificate = ClientCertificate { chain, key: key_der };
    match client_config(RootCertStore::empty(), Some(&certificate)) {
        Ok(_) => Ok(certificate),
        Err(source) => Err(TlsError::Pair { cert, key, source }),
    }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = read_pem(path)?;
    let certificates: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&bytes).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err("it holds none".to_owned()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(error.to_string()),
    }
}

impl fmt::Debug for UpstreamTls {
    /// Omits the contents of the files.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamTls")
            .field("authorities", &self.authorities.as_ref().map(Vec::len))
            .field("has_identity", &self.identity.is_some())
            .field("name", &self.server_name)
            .finish()
    }
}
