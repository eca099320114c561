//! TLS in front of a server, with the certificates in `tls/`.

use super::legacy_server::locked;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::net::{TcpListener, TcpStream};

/// Speaks TLS in front of a server, at an address of this machine, and says at which port. The
/// certificate is for `localhost` and `127.0.0.1`, and signed by `tls/authority.pem`.
pub(crate) async fn tls_before(server: SocketAddr, address: &str) -> u16 {
    let certificate = (&include_bytes!("tls/certificate.pem")[..], &include_bytes!("tls/key.pem")[..]);
    let config = tls_of(rustls::ALL_VERSIONS).with_no_client_auth();
    accepting(server, address, certified(config, certificate), |_| {}).await
}

/// The same where only clients with a certificate signed by `tls/house-authority.pem` are served, by whom the
/// server's own is signed, too, for `tools.house.example`. Says also for which names it was asked.
pub(crate) async fn house_tls_before(
    server: SocketAddr,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> (u16, Names) {
    let authority = CertificateDer::from_pem_slice(include_bytes!("tls/house-authority.pem"));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.expect("a certificate")).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let config = tls_of(versions).with_client_cert_verifier(clients.build().expect("it can verify"));
    let certificate =
        (&include_bytes!("tls/house-server.pem")[..], &include_bytes!("tls/house-server-key.pem")[..]);
    let names = Names::default();
    let asked = Arc::clone(&names);
    let note = move |name: Option<&str>| locked(&asked).push(name.map(str::to_owned));
    (accepting(server, "127.0.0.1", certified(config, certificate), note).await, names)
}

/// The names that clients have asked for, each once, of those who were let in.
pub(crate) type Names = Arc<Mutex<Vec<Option<String>>>>;

fn tls_of(
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> rustls::ConfigBuilder<rustls::ServerConfig, rustls::WantsVerifier> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider);
    config.with_protocol_versions(versions).expect("versions")
}

fn certified(
    config: rustls::ConfigBuilder<rustls::ServerConfig, rustls::server::WantsServerCert>,
    (certificate, key): (&[u8], &[u8]),
) -> tokio_rustls::TlsAcceptor {
    let certificate = CertificateDer::from_pem_slice(certificate).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(key).expect("a key");
    Arc::new(config.with_single_cert(vec![certificate], key).expect("they fit")).into()
}

async fn accepting(
    server: SocketAddr,
    address: &str,
    acceptor: tokio_rustls::TlsAcceptor,
    note: impl Fn(Option<&str>) + Send + Sync + 'static,
) -> u16 {
    let listener = TcpListener::bind((address, 0)).await.expect("a free port");
    let port = listener.local_addr().expect("a bound socket").port();
    let note = Arc::new(note);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (acceptor, note) = (acceptor.clone(), Arc::clone(&note));
            tokio::spawn(async move {
                // A client that trusts nobody here, or is not trusted, leaves in the middle.
                let Ok(mut client) = acceptor.accept(socket).await else { return };
                note(client.get_ref().1.server_name());
                let mut server = TcpStream::connect(server).await.expect("the server runs");
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    port
}
